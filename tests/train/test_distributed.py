"""Two processes share a run: the result is that of one process with the same global batch."""

from __future__ import annotations

import datetime as dt
import os

import pytest
import torch
import torch.distributed as dist

from tests.train.making import config, done, losses, run
from ti_fix.train.distributed import Group, current, join

pytestmark = pytest.mark.loopback


def _child(rank, store, settings, out):
    """Run as one of two processes and leave vectors and losses in a file."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=dt.timedelta(seconds=120)
    )
    events = run(settings)
    torch.save({**done(events).embedding.vectors, "losses": torch.tensor(losses(events))}, out / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_give_the_result_of_one(tmp_path, accumulate):
    settings = config(steps=4, batch_size=3, accumulate=accumulate, out=str(tmp_path / "out"), checkpoint_every=2)
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _child(rank, tmp_path / "store", settings, tmp_path)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    alone = run(config(steps=4, batch_size=3, accumulate=accumulate))
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.pop("losses").tolist() == pytest.approx(losses(alone), rel=1e-5)
        for key, block in found.items():
            torch.testing.assert_close(block, done(alone).embedding.vectors[key], rtol=1e-5, atol=1e-5)
    assert len(list((tmp_path / "out").rglob("*.safetensors"))) == 2


def test_a_process_alone_is_a_group_of_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert current() == join() == Group(rank=0, size=1)
    assert Group().any(True) and not Group().any(False)
