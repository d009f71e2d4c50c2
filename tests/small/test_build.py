"""A build can go on from the packs alone: they come back bit for bit, and training continues at their step."""

from __future__ import annotations

import torch

from ti_fix.small import packs
from ti_fix.small.training import diffusion, pack, unpack


def test_packs_survive_unpacking_and_packing(tmp_path):
    unpack.unpack(tmp_path)
    pack.pack_all(tmp_path, tmp_path / "packs")
    for name in ("rows_clip_l", "rows_clip_g", "vae", "sdxl"):
        before, after = (packs.read_pack(name, folder) for folder in (packs.FOLDER, tmp_path / "packs"))
        assert before[1] == after[1]
        assert before[0].keys() == after[0].keys()
        assert all(torch.equal(value, after[0][key]) for key, value in before[0].items())


def test_training_goes_on_from_the_pack(tmp_path):
    unpack.unpack(tmp_path)
    trainer = diffusion.Trainer("sdxl", tmp_path)
    steps = packs.read_pack("sdxl")[1]["steps"]
    losses = [trainer.train_step() for _ in range(3)]
    trainer.save()
    assert trainer.step == steps + 3
    assert sum(losses) / 3 < 0.75  # an untrained network starts at 1
    assert diffusion.Trainer("sdxl", tmp_path).step == steps + 3
