from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.evaluate.standin import COLOURS, Judge, flat
from ti_fix.errors import WrongUse
from ti_fix.evaluate.dataset import DatasetEvent, LookEvent, copies, look, robust_z


def run(words, captions):
    pictures = [flat(COLOURS[w], i) for i, w in enumerate(words)]
    names = [f"{i}.png" for i in range(len(words))]
    events = list(look(names, pictures, captions, Judge()))
    assert sum(isinstance(e, LookEvent) for e in events) == len(words)
    (report,) = [e.report for e in events if isinstance(e, DatasetEvent)]
    return report


def test_the_picture_that_does_not_belong_and_the_caption_that_does_not_fit_are_flagged():
    report = run(["red"] * 8 + ["blue"], ["a red thing"] * 7 + ["a blue thing", "a blue thing"])
    flags = {item.name: item.flags for item in report.items}
    assert "caption" in flags["7.png"][0] and "less like the set" in flags["8.png"][0]
    assert not any(flags[f"{i}.png"] for i in range(7))
    assert report.before["consistency"].mean < report.after["consistency"].mean
    assert report.before["caption similarity"].mean < report.after["caption similarity"].mean


def test_copies_are_one_group():
    features = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [0, 1], [1, 0.01], [1, 0.02]]), dim=-1)
    layouts = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0], [1, 0.1], [0, 1]]), dim=-1)
    assert copies(features, layouts) == [[0, 2]]
    photo = Image.fromarray(
        np.kron(np.random.RandomState(0).randint(0, 255, (8, 8, 3)), np.ones((8, 8, 1))).astype("u1")
    )
    again = photo.resize((48, 48))
    other = Image.fromarray(np.asarray(photo)[::-1].copy())
    events = list(look(["a", "b", "c"], [photo, again, other], ["", "", ""], Judge()))
    report = events[-1].report
    assert report.duplicates == (("a", "b"),) and report.kept == ["a", "c"]
    assert report.as_dict()["kept"] == ["a", "c"] and report.before["share of spare copies"].mean == pytest.approx(
        1 / 3
    )


def test_pictures_without_captions_are_not_flagged_for_it():
    report = run(["red", "green", "blue", "yellow"], ["", "a green thing", "", ""])
    assert [item.similarity is None for item in report.items] == [True, False, True, True]
    assert report.before["caption similarity"].n == 1


def test_robust_deviations():
    values = torch.tensor([1.0, 2, 3, 4, 5, float("nan")])
    assert robust_z(values)[:5].tolist() == pytest.approx([-1.349, -0.6745, 0, 0.6745, 1.349], abs=1e-3)
    assert robust_z(values)[5].isnan() and robust_z(torch.tensor([float("nan")])).isnan().all()


def test_pictures_are_taken_one_at_a_time():
    taken = []

    def pictures():
        for i in range(3):
            taken.append(i)
            yield flat(COLOURS["red"], i)

    events = look(["a", "b", "c"], pictures(), ["", "", ""], Judge())
    seen = [(next(events).done, len(taken)) for _ in range(3)]
    assert seen == [(0, 1), (1, 2), (2, 3)]


def test_a_set_has_two_pictures():
    with pytest.raises(WrongUse, match="at least two"):
        list(look(["a"], [flat(COLOURS["red"])], [""], Judge()))
