"""Words read in the context that the picture shows: against a judge whose confusions are known."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ti_fix.evaluate import adherence, metrics
from ti_fix.phrases import phrases

PROMPT = "a red circle on a white background"
FOUND = phrases(PROMPT)
WORDS = [(phrase.text, *phrase.alternatives) for phrase in FOUND]
WIDTHS = [len(each) for each in WORDS]
LEAK = 0.7
"""How much of a colour that stands anywhere in the text counts for the other colour's place, as in CLIP."""


def feature(words):
    """One direction a word and place; a colour leaks into the background's place and back."""
    rows = [torch.zeros(width) for width in WIDTHS]
    for place, word in enumerate(words):
        rows[place][WORDS[place].index(word)] += 1
        other = {0: 2, 2: 0}.get(place)
        if other is not None and word in WORDS[other]:
            rows[other][WORDS[other].index(word)] += LEAK
    return torch.nn.functional.normalize(torch.cat(rows), dim=0)


TEXTS = {
    f"a {colour} {shape} on a {ground} background": feature((colour, shape, ground))
    for colour, shape, ground in product(*WORDS)
}


def encode(texts):
    return torch.stack([TEXTS[text] for text in texts])


def scores(*shown):
    found = adherence.of_phrases(feature(shown), PROMPT, FOUND, encode, 30.0)
    return {phrase.group: float(score) for phrase, score in zip(FOUND, found, strict=True)}


@pytest.mark.parametrize(
    "shown",
    [("red", "circle", "white"), ("blue", "circle", "white"), ("blue", "star", "black"), ("red", "heart", "blue")],
)
def test_a_picture_is_read_word_by_word(shown):
    assert adherence.reading(feature(shown), PROMPT, FOUND, encode) == shown


@pytest.mark.parametrize(
    ("shown", "group"),
    [
        (("blue", "circle", "white"), "colour"),
        (("red", "star", "white"), "object"),
        (("red", "circle", "black"), "scene"),
    ],
)
def test_a_wrong_word_costs_its_own_group_only(shown, group):
    assert min(scores("red", "circle", "white").values()) > 0.95
    found = scores(*shown)
    assert found.pop(group) < 0.05
    assert min(found.values()) > 0.95


def test_inside_the_prompt_as_written_a_wrong_colour_would_cost_the_scene():
    """Why words are read first: the plain softmax over single swaps mixes the groups up."""
    picture = feature(("blue", "circle", "white"))
    swaps = [f"a red circle on a {ground} background" for ground in WORDS[2]]
    said, *others = encode(swaps)
    assert float(metrics.adherence(picture, said, torch.stack(others), 30.0)) < 0.8


def test_words_that_fit_equally_well_leave_the_prompts_own():
    same = torch.ones(1, 3)
    assert adherence.reading(same[0], PROMPT, FOUND, lambda texts: same.expand(len(texts), -1)) == (
        "red",
        "circle",
        "white",
    )
    found = adherence.of_phrases(same[0], PROMPT, FOUND, lambda texts: same.expand(len(texts), -1), 30.0)
    assert [float(each) for each in found] == pytest.approx([1 / width for width in WIDTHS])
