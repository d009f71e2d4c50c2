"""Chunk rules: emphasis, BREAK, commas, embeddings, padding."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ti_fix.errors import WrongUse
from ti_fix.prompt import Chunk, Span, Splice, parse_emphasis, split_prompt
from ti_fix.tokenizer import encode

BOS, EOS, COMMA = 49406, 49407, 267

# written down from what the WebUIs' own documentation and code say each text means
PARSED = {
    "": [],
    "plain text": [("plain text", 1.0)],
    "an (important) word": [("an ", 1.0), ("important", 1.1), (" word", 1.0)],
    "a [weak] word": [("a ", 1.0), ("weak", 1 / 1.1), (" word", 1.0)],
    "(a:1.3)": [("a", 1.3)],
    "(a : 0.5 )": [("a ", 0.5)],
    "((a))": [("a", 1.1 * 1.1)],
    "(a (b:2):0.5)": [("a ", 0.5), ("b", 1.0)],
    "(never closed": [("never closed", 1.1)],
    "[never closed": [("never closed", 1 / 1.1)],
    "never opened) here]": [("never opened) here]", 1.0)],
    r"\(plain\) \[brackets\] \\": [("(plain) [brackets] \\", 1.0)],
    "(one)(weight)": [("oneweight", 1.1)],
    "ratio 3:4": [("ratio 3:4", 1.0)],
    "no bracket :1.3)": [("no bracket :1.3)", 1.0)],
    "(not a number:1.2.3)": [("not a number:1.2.3", 1.1)],
    "a BREAK b": [("a", 1.0), (None, 1.0), ("b", 1.0)],
    "(a BREAK b:1.2)": [("a", 1.2), (None, 1.0), ("b", 1.2)],
    "BREAKFAST": [("BREAKFAST", 1.0)],
}


@pytest.mark.parametrize("prompt", PARSED)
def test_emphasis(prompt: str) -> None:
    spans = parse_emphasis(prompt)
    assert [s.text for s in spans] == [text for text, _ in PARSED[prompt]]
    assert [s.weight for s in spans] == pytest.approx([weight for _, weight in PARSED[prompt]])


def split(prompt: str, **rows: int) -> tuple[Chunk, ...]:
    return split_prompt(prompt, rows, encode)


def test_a_short_prompt_is_one_padded_chunk() -> None:
    (chunk,) = split("a cat")
    assert chunk.ids == (BOS, 320, 2368) + (EOS,) * 74
    assert chunk.weights == (1.0,) * 77
    assert chunk.end == 3
    assert chunk.padded(0) == (BOS, 320, 2368, EOS) + (0,) * 73


def test_an_empty_prompt_is_one_chunk() -> None:
    assert [c.ids for c in split("")] == [(BOS,) + (EOS,) * 76]


def test_75_tokens_fill_a_chunk_and_the_76th_begins_another() -> None:
    assert len(split("cat " * 75)) == 1
    first, second = split("cat " * 76)
    assert first.ids == (BOS,) + (2368,) * 75 + (EOS,)
    assert second.ids == (BOS, 2368) + (EOS,) * 75


def test_a_break_pads_the_chunk_it_ends() -> None:
    first, second = split("a BREAK cat")
    assert first.padded(0) == (BOS, 320, EOS) + (0,) * 74
    assert second.ids[:3] == (BOS, 2368, EOS)


def test_what_follows_a_near_comma_moves_on_with_its_weight() -> None:
    first, second = split("cat " * 60 + ", " + "(dog:1.2) " * 16)
    assert first.ids[60:63] == (2368, COMMA, EOS)
    assert second.ids[1:17] == (1929,) * 16 and second.weights[1:17] == (1.2,) * 16


def test_a_far_comma_moves_nothing() -> None:
    first, _ = split("cat " * 40 + ", " + "dog " * 36)
    assert first.ids[75] == 1929 and first.ids[76] == EOS


def test_vectors_take_places_and_weights() -> None:
    (chunk,) = split("a (zqx:1.5) cat", zqx=3)
    assert chunk.ids[:6] == (BOS, 320, 0, 0, 0, 2368)
    assert chunk.weights[:6] == (1.0, 1.0, 1.5, 1.5, 1.5, 1.0)
    assert chunk.splices == (Splice(2, 3, "zqx"),)


def test_vectors_that_do_not_fit_begin_the_next_chunk() -> None:
    first, second = split("cat " * 73 + "zqx", zqx=3)
    assert not first.splices and first.end == 74
    assert second.splices == (Splice(1, 3, "zqx"),)


def test_vectors_behind_a_comma_move_on_with_the_text() -> None:
    first, second = split("cat " * 60 + ", zqx " + "dog " * 16, zqx=2)
    assert not first.splices
    assert second.splices == (Splice(1, 2, "zqx"),) and second.ids[1:4] == (0, 0, 1929)


def test_75_vectors_fill_a_chunk_and_76_are_refused() -> None:
    chunks = split("a zqx", zqx=75)
    assert [c.splices for c in chunks] == [(), (Splice(1, 75, "zqx"),)]
    with pytest.raises(WrongUse, match="76 vectors"):
        split("a zqx", zqx=76)


WORDS = st.sampled_from(["cat", "a red tower,", "(", ")", "[", "]", ":1.3)", "BREAK", "\\(", "zqx", "zqxlong", ","])


@given(st.lists(WORDS, max_size=150).map(" ".join))
def test_every_chunk_is_whole(prompt: str) -> None:
    """77 ids from start to end token, every splice inside, over zeros, and none lost."""
    chunks = split(prompt, zqx=2, zqxlong=30)
    assert chunks
    for chunk in chunks:
        assert len(chunk.ids) == len(chunk.weights) == 77
        assert chunk.ids[0] == BOS and chunk.ids[-1] == EOS and chunk.weights[0] == chunk.weights[-1] == 1.0
        covered = [p for s in chunk.splices for p in range(s.start, s.start + s.rows)]
        assert covered == [i for i, token in enumerate(chunk.ids) if token == 0]
        assert all(0 < p < chunk.end for p in covered)
    asked = encode(" ".join(s.text for s in parse_emphasis(prompt) if s.text))
    zqx, zqxlong = encode("zqx"), encode("zqxlong")
    assert sum(len(c.splices) for c in chunks) == sum(
        asked[i : i + len(t)] == t for t in (zqx, zqxlong) for i in range(len(asked))
    )


@given(st.text(alphabet="ab ():[]\\,.1BREAK", max_size=60))
def test_no_text_breaks_the_parser(prompt: str) -> None:
    spans = parse_emphasis(prompt)
    assert all(isinstance(s, Span) for s in spans)
    assert all(a.text is None or b.text is None or a.weight != b.weight for a, b in itertools.pairwise(spans))


def test_an_embedding_that_is_too_long_is_refused_only_where_it_is_named() -> None:
    rows = {"toomany": 80, "mine": 1}
    assert split_prompt("a photo of mine", rows, encode)
    with pytest.raises(WrongUse, match="80 vectors"):
        split_prompt("a photo of toomany", rows, encode)
