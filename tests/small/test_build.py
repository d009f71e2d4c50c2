"""A build can go on from the packs alone: they come back bit for bit, and training continues at their step."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ti_fix.small import build, packs
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


def test_stages_run_in_order_and_what_needs_a_failed_one_waits(tmp_path, monkeypatch):
    stages = {"first": ((), ()), "second": ((), ("first",)), "bad": ((), ()), "never": ((), ("bad",))}
    started = []

    def start(stage, _):
        started.append(stage)
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({int(stage == 'bad')})"])

    monkeypatch.setattr(build, "STAGES", stages)
    monkeypatch.setattr(build, "start", start)
    monkeypatch.setattr(build.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="failed: bad; see the logs"):
        build.build(tmp_path)
    assert sorted(started) == ["bad", "first", "second"] and started.index("first") < started.index("second")
    assert sorted(path.name for path in (tmp_path / "done").iterdir()) == ["first", "second"]
    build.build(tmp_path, ["first"])
    assert len(started) == 3  # done before
