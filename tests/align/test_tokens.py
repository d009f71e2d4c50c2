"""What is shown of a prompt, and what is cleaned out of it before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ti_fix.align.rebind import published_model
from ti_fix.align.text import clean_text, what_was_cleaned
from ti_fix.align.tokens import view
from ti_fix.embedding import SD15, SDXL, Embedding

MODEL = published_model(SDXL)


def embedding(left, right):
    return Embedding(name="mytoy", vectors={"clip_l": torch.ones(left, 768), "clip_g": torch.ones(right, 1280)})


def test_ids_strings_and_padding_of_each_encoder():
    left, right = view(MODEL, "a cat!").encoders
    assert [t.id for t in left.chunks[0]] == [49406, 320, 2368, 256, 49407, *[49407] * 72]
    assert [t.id for t in right.chunks[0]] == [49406, 320, 2368, 256, 49407, *[0] * 72]
    assert [t.text for t in left.chunks[0][:5]] == ["<|startoftext|>", "a</w>", "cat</w>", "!</w>", "<|endoftext|>"]
    assert [t.kind for t in left.chunks[0][:6]] == ["start", "word", "word", "word", "end", "pad"]
    assert len(view(published_model(SD15), "a cat").encoders) == 1


def test_an_embedding_stands_at_the_same_place_in_both_and_a_short_half_is_shown():
    found = view(MODEL, "a photo of mytoy, (red:1.3)", {"mytoy": embedding(4, 2)})
    left, right = found.encoders
    assert left.places() == [{"name": "mytoy", "chunk": 0, "position": 4, "vectors": 4, "missing": 0}]
    assert right.places() == [{"name": "mytoy", "chunk": 0, "position": 4, "vectors": 2, "missing": 2}]
    assert [t.text for t in left.chunks[0][4:9]] == ["mytoy 1/4", "mytoy 2/4", "mytoy 3/4", "mytoy 4/4", ",</w>"]
    assert [t.weight for t in left.chunks[0] if t.text == "red</w>"] == [1.3]


def test_an_embedding_that_does_not_fit_goes_to_the_next_chunk():
    found = view(MODEL, "word " * 70 + "mytoy mytoy", {"mytoy": embedding(8, 8)}).encoders[0]
    assert [(p["chunk"], p["position"]) for p in found.places()] == [(1, 1), (1, 9)]
    assert all(len(chunk) == 77 for chunk in found.chunks)


def test_a_trigger_broken_by_a_zero_width_space_is_found_again():
    found = view(MODEL, "a my\u200btoy", {"mytoy": embedding(1, 1)})
    assert found.removed == ("U+200B zero width space",)
    assert found.encoders[0].places()[0]["position"] == 2


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\u200bb\ufeff", "ab"),
        ("\u202acat\u202c", "cat"),
        ("\uff08cat\uff1a1.2\uff09", "(cat:1.2)"),
        ("\uff1clora\uff1e", "<lora>"),
        ("12\uff1a30", "12\uff1a30"),
        ("cafe\u0301", "caf\u00e9"),
        ("my\u200dtoy", "mytoy"),
        ("\U0001f468\u200d\U0001f467", "\U0001f468\u200d\U0001f467"),  # a joined emoji
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),  # Persian
        ("plain, (text:1.1)", "plain, (text:1.1)"),
    ],
)
def test_what_nobody_sees_goes_and_what_is_meant_stays(text, clean):
    assert clean_text(text) == clean
    assert bool(what_was_cleaned(text)) == (text != clean)


@given(st.text(max_size=30))
def test_cleaning_twice_changes_nothing_more(text):
    assert clean_text(clean_text(text)) == clean_text(text)
