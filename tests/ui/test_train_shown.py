"""What the Train page shows of runs and pictures, without a run."""

from __future__ import annotations

import pytest

from tests.train.making import TRIGGER, image
from ti_fix.train import TrainConfig
from ti_fix.train.history import Run
from ti_fix.ui import train_view
from ti_fix.ui.train_pictures import Album


@pytest.mark.parametrize(("count", "steps", "vectors"), [(1, "step", "vector"), (2, "steps", "vectors")])
def test_an_earlier_run_counts_in_the_right_number(count, steps, vectors):
    config = TrainConfig(name=TRIGGER, vectors=count)
    run = Run(config=config, when=0, steps=count, curve=(), saved=(), previews=(), final=None, resumable=False)
    assert f"<b>{count}</b> <span>{steps}</span> · {count} <span>{vectors}</span> · " in train_view.history([run])


def test_a_picture_goes_with_its_caption_and_its_mask(tmp_path):
    for name in ("a.png", "a-mask.png", "b.png"):
        image(0, (8, 8)).save(tmp_path / name)
    (tmp_path / "a.txt").write_text("a tower", encoding="utf-8")
    Album(folder=tmp_path).remove(tmp_path / "a.png")
    assert [each.name for each in tmp_path.iterdir()] == ["b.png"]
