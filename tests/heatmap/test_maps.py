"""Places of words, numbers of maps, pictures of maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from ti_fix.errors import WrongUse
from ti_fix.heatmap import WordMaps, facts_of, grouped, iou, overlay, places_of, pointing, sheet
from ti_fix.heatmap.statistics import entropy


def maps(values, words=("a", "b")):
    tensor = torch.tensor(values, dtype=torch.float32)
    return WordMaps(
        picture=0, width=tensor.shape[2], height=tensor.shape[1], words=tuple(words), maps=tensor, layers=1, steps=1
    )


def test_places_count_start_tokens_chunks_and_all_vectors_of_an_embedding():
    rows = {"mycat": 3}
    assert places_of("a mycat, Red circle and red", ["mycat", "red", "Red Circle"], rows) == {
        "mycat": (2, 3, 4),
        "red": (6, 9),
        "Red Circle": (6, 7),
    }
    long = ", ".join(["nothing here"] * 40)
    (place,) = places_of(f"{long}, (red:1.3)", ["red"], {})["red"]
    assert 77 < place < 154
    assert places_of("one BREAK red", ["red"], {}) == {"red": (78,)}


def test_a_word_that_spells_a_trigger_is_the_trigger():
    assert places_of("a cat", ["cat"], {"cat": 2}) == {"cat": (2, 3)}


@pytest.mark.parametrize("word", ["blue", "", "<|endoftext|>"])
def test_a_word_that_is_not_there_is_refused(word):
    with pytest.raises(WrongUse, match="not in the prompt"):
        places_of("a red circle", [word], {})


def test_numbers_of_a_map():
    found = facts_of(
        maps([[[0, 0, 0, 0.8], [0, 0, 0, 0]], [[0.1] * 4, [0.1] * 4]]),
        {"a": torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]])},
    )
    first, second = found
    assert first.mass == pytest.approx(0.1) and first.among_words == pytest.approx(0.5)
    assert first.entropy == pytest.approx(0, abs=1e-6) and second.entropy == pytest.approx(1)
    assert (first.x, first.y) == (0.875, 0.25) and first.covers == 0.125
    assert first.iou == 1 and first.hit is True and second.iou is None
    assert entropy(torch.tensor([[0.5, 0.5], [0, 0]])) == pytest.approx(0.5)


def test_overlap_and_pointing_at_another_size():
    mask = torch.zeros(64, 64, dtype=torch.bool)
    mask[:32] = True
    upper = torch.zeros(16, 16)
    upper[:8] = 1
    assert iou(upper, mask) > 0.9 and pointing(upper, mask)
    below = torch.zeros(64, 64)
    below[36, 30] = 1
    assert not pointing(below, mask) and not pointing(below, mask, 4) and pointing(below, mask, 5)
    assert iou(1 - upper, mask) < 0.1 and not pointing(1 - upper, mask)


def test_groups_are_sums_of_their_words():
    found = grouped(maps([[[0.1, 0.2]], [[0.3, 0.1]]]), {"colour": ["a"], "all": ["a", "b", "missing"], "none": []})
    assert found.words == ("colour", "all") and torch.allclose(found.maps[1], torch.tensor([[0.4, 0.3]]))


def test_an_overlay_marks_the_place_and_keeps_the_size():
    picture = Image.new("RGB", (80, 40), (120, 120, 120))
    level = torch.zeros(5, 10)
    level[2, 7] = 1
    marked = np.asarray(overlay(picture, level), dtype=int)
    assert marked.shape == (40, 80, 3)
    assert np.ptp(marked[20, 60]) > 40 and np.ptp(marked[20, 10]) < 15 and marked[20, 10].mean() < 60
    flat = np.asarray(overlay(picture, torch.full((5, 10), 0.3)))
    assert np.ptp(flat.reshape(-1, 3), axis=0).max() == 0


def test_a_sheet_has_a_tile_for_each_word_whatever_it_is_called():
    found = maps(torch.rand(5, 4, 4).tolist(), ["a", "b", "c", "猫\x1b[2J", "e" * 200])
    board = sheet(Image.new("RGB", (64, 48)), found, columns=4)
    assert board.size == (256, 2 * (48 + 22))
