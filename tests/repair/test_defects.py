"""Each defect: found where it is, absent where it is not, mended to the value worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ti_fix.embedding import CLIP_G, CLIP_L, FAMILIES, SD15, SDXL, Embedding, Family, Vocabulary
from ti_fix.repair import repair, split
from ti_fix.repair.defects import DEFECTS, Specimen, Target, is_sound
from ti_fix.repair.fit import FITTING


def vectors(rows: int, width: int, seed: int = 0, length: float = 0.4) -> Tensor:
    block = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed + width))
    return torch.nn.functional.normalize(block, dim=1) * length


def embedding(left: Tensor | None, right: Tensor | None, name: str = "hero-xyz", **more: Tensor) -> Embedding:
    halves = {"clip_l": left, "clip_g": right, **more}
    return Embedding(name=name, vectors={k: v for k, v in halves.items() if v is not None})


def codes(found: Embedding, family: Family = SDXL, vocabulary: Vocabulary | None = None) -> list[str]:
    return [f.code for f in repair(found, family=family, vocabulary=vocabulary).findings]


def test_a_healthy_embedding_is_the_same_object() -> None:
    healthy = embedding(vectors(3, 768), vectors(3, 1280))
    result = repair(healthy)
    assert result.after is healthy
    assert (result.verdict, result.findings, result.changed) == ("load", (), False)


def test_uneven_rows_are_filled_with_the_last_row() -> None:
    left, right = vectors(4, 768), vectors(2, 1280)
    result = repair(embedding(left, right))
    assert result.after is not None and result.verdict == "repair"
    torch.testing.assert_close(result.after.vectors["clip_l"], left, rtol=0, atol=0)
    expected = torch.stack([right[0], right[1], right[1], right[1]])
    torch.testing.assert_close(result.after.vectors["clip_g"], expected, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_reject_and_name_the_row(bad: float) -> None:
    right = vectors(3, 1280)
    right[1, 700] = bad
    result = repair(embedding(vectors(3, 768), right))
    (finding,) = result.findings
    assert (result.verdict, finding.code, finding.encoder, finding.rows) == ("reject", "not-finite", "clip_g", (1,))
    assert "row 2" in finding.message


def test_a_row_whose_squares_overflow_is_finite() -> None:
    left = vectors(1, 768)
    left[0, 0] = 1e30
    assert codes(embedding(left, vectors(1, 1280))) == ["fp16-overflow"]


@pytest.mark.parametrize(("peak", "found"), [(65503.0, []), (65504.0, ["fp16-overflow"])])
def test_the_end_of_half_precision(peak: float, found: list[str]) -> None:
    left = vectors(1, 768)
    left[0, 5] = peak
    assert [c for c in codes(embedding(left, vectors(1, 1280))) if c != "length"] == found


def test_zeros_in_both_halves_one_half_one_row() -> None:
    zero, left, right = torch.zeros(2, 768), vectors(2, 768), vectors(2, 1280)
    assert "never trained" in repair(embedding(zero, torch.zeros(2, 1280))).findings[0].message
    assert "clip_l is all zero" in repair(embedding(zero, right)).findings[0].message
    half = left.clone()
    half[1] = 0
    assert "clip_l is zero in row 2" in repair(embedding(half, right)).findings[0].message


def test_a_tiny_row_is_not_zero() -> None:
    tiny = torch.full((1, 768), 1e-30)  # its squares vanish in float32
    assert codes(embedding(tiny, vectors(1, 1280))) == []


@pytest.mark.parametrize(("rows", "verdict"), [(75, "load"), (76, "reject")])
def test_75_vectors_fit_a_chunk(rows: int, verdict: str) -> None:
    assert repair(embedding(vectors(rows, 768), vectors(rows, 1280))).verdict == verdict


def test_split_keeps_order_and_every_row() -> None:
    long = embedding(vectors(160, 768), vectors(160, 1280))
    parts = split(long)
    assert [(p.name, p.num_vectors) for p in parts] == [("hero-xyz-1", 75), ("hero-xyz-2", 75), ("hero-xyz-3", 10)]
    for key in long.vectors:
        torch.testing.assert_close(torch.cat([p.vectors[key] for p in parts]), long.vectors[key], rtol=0, atol=0)


@pytest.mark.parametrize("length", [0.37, 1.0, 3.0, 15.0])
def test_length_alone_is_never_more_than_a_note(length: float) -> None:
    result = repair(embedding(vectors(2, 768, length=length), vectors(2, 1280, length=length)))
    assert {f.severity for f in result.findings} <= {"note"}
    assert result.verdict == "load"


def test_an_encoder_that_the_model_lacks_is_left_out_bit_for_bit() -> None:
    left, right = vectors(2, 768), vectors(2, 1280)
    result = repair(embedding(left, right, t5=vectors(2, 4096)))
    assert result.verdict == "repair" and result.after is not None
    assert list(result.after.vectors) == ["clip_l", "clip_g"]
    assert all(result.after.vectors[k] is v for k, v in (("clip_l", left), ("clip_g", right)))


FITS = {
    "sd15": {
        "sd15": "load",
        "sdxl": "convert",
        "sd2": "reject",
        "sdxl-refiner": "reject",
        "sd3": "warn",
        "flux": "warn",
    },
    "sdxl": {
        "sd15": "convert",
        "sdxl": "load",
        "sd2": "reject",
        "sdxl-refiner": "repair",
        "sd3": "load",
        "flux": "warn",
    },
    "sd2": {
        "sd15": "reject",
        "sdxl": "reject",
        "sd2": "load",
        "sdxl-refiner": "reject",
        "sd3": "reject",
        "flux": "reject",
    },
    "sdxl-refiner": {"sd15": "reject", "sdxl": "warn", "sdxl-refiner": "load", "sd3": "warn", "flux": "reject"},
    "sd3": {"sd15": "convert", "sdxl": "repair", "sd3": "load", "flux": "repair"},
    "flux": {"sd15": "repair", "sdxl": "convert", "sd3": "warn", "flux": "load"},
}


@pytest.mark.parametrize(("made_for", "wanted"), [(m, w) for m, row in FITS.items() for w in row])
def test_every_family_on_every_model(made_for: str, wanted: str) -> None:
    blocks = {e.key: vectors(2, e.width) for e in FAMILIES[made_for].encoders}
    found = Embedding(name="hero-xyz", vectors=blocks)
    assert repair(found, family=FAMILIES[wanted]).verdict == FITS[made_for][wanted]


def test_what_is_of_no_known_family_is_told_in_plain_words() -> None:
    (finding,) = repair(embedding(None, None, t5=vectors(2, 4096)), family=SDXL).findings
    assert finding.code == "wrong-family"
    assert "made for another kind of model (t5 4096 wide)" in finding.message
    assert finding.message.endswith("Load a model with these text encoders to use it.")


def small_vocabulary() -> Vocabulary:
    tables = {"clip_l": vectors(50, 768, seed=1), "clip_g": vectors(50, 1280, seed=2)}
    return Vocabulary(tables=tables, tokenize=lambda text: [7] if text == "," else [1])


def test_a_missing_half_is_filled_with_the_nearest_word_else_the_comma() -> None:
    vocabulary = small_vocabulary()
    table = vocabulary.tables["clip_l"]
    stranger = vectors(1, 768, seed=99)[0]
    left = torch.stack([table[20] * 3, stranger])
    result = repair(embedding(left, None), vocabulary=vocabulary)
    assert result.after is not None and result.verdict == "warn"
    assert list(result.after.vectors) == ["clip_l", "clip_g"]
    expected = vocabulary.tables["clip_g"][[20, 7]]
    torch.testing.assert_close(result.after.vectors["clip_g"], expected, rtol=0, atol=0)


def test_without_a_model_nothing_is_filled() -> None:
    result = repair(embedding(None, vectors(2, 1280)))
    assert result.after is not None and list(result.after.vectors) == ["clip_g"]
    assert result.verdict == "warn"


def test_vectors_that_are_vocabulary_rows_were_perhaps_never_trained() -> None:
    vocabulary = small_vocabulary()
    left, right = vocabulary.tables["clip_l"][[3, 4]].half().float(), vectors(2, 1280, seed=5)
    assert codes(embedding(left, right), vocabulary=vocabulary) == ["vocabulary-rows"]
    assert codes(embedding(left * 1.05, right), vocabulary=vocabulary) == []


@given(st.integers(1, 80), st.integers(1, 80), st.sampled_from(["hero-xyz", "cat", "a,b", " x\u200by ", "BREAK"]))
def test_repair_is_idempotent(left: int, right: int, name: str) -> None:
    once = repair(embedding(vectors(left, 768), vectors(right, 1280), name=name))
    assert once.after is not None
    twice = repair(once.after)
    assert twice.after is once.after
    assert twice.applied == ()


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.integers(0, 80), min_size=2, max_size=2),
    st.sampled_from([0.0, 1e-30, 0.4, 1.4, 3.0, 70000.0, math.nan, math.inf, 1e30]),
    st.booleans(),
)
def test_what_is_taken_for_sound_has_no_defect(wanted: str, rows: list[int], value: float, everywhere: bool) -> None:
    left, right = vectors(rows[0], 768), vectors(rows[1], 1280)
    if rows[0]:
        left[-1, slice(None) if everywhere else 3] = value
    specimen = Specimen(embedding(left, right), Target(family=FAMILIES[wanted]))
    if is_sound(specimen):
        assert not [f for defect in (*FITTING, *DEFECTS) for f in defect.find(specimen)]


def test_idempotent_for_sd15_under_sdxl_with_an_ordinary_name() -> None:
    once = repair(embedding(vectors(1, 768), None, name="cat"))
    assert once.after is not None and once.after.name == "cat-ti"
    assert repair(once.after).after is once.after


def test_the_input_is_never_changed() -> None:
    left, right = vectors(4, 768), vectors(2, 1280)
    kept = left.clone(), right.clone()
    repair(embedding(left, right))
    assert torch.equal(left, kept[0]) and torch.equal(right, kept[1])


def test_for_sd15_an_sdxl_file_is_a_conversion() -> None:
    assert codes(embedding(vectors(1, 768), vectors(1, 1280)), SD15) == ["needs-conversion"]


def test_keys_stay_in_the_models_order() -> None:
    result = repair(
        Embedding(name="hero-xyz", vectors={"clip_g": vectors(2, CLIP_G.width), "clip_l": vectors(1, CLIP_L.width)})
    )
    assert result.after is not None and set(result.after.vectors) == {"clip_l", "clip_g"}
