"""Whole embeddings: names, metadata, bit-exact halves, refusals, the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.convert.test_ladder import pair
from ti_fix.convert import ConvertConfig, Converter, to_sd15
from ti_fix.convert.ladder import METHODS
from ti_fix.embedding import Embedding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.options import validate


def vocabulary() -> Vocabulary:
    words = pair()
    return Vocabulary(tables={"clip_l": words.source, "clip_g": words.target}, tokenize=lambda _: [0])


@pytest.fixture(scope="module")
def converter() -> Converter:
    return Converter(vocabulary())


def sd15(rows: torch.Tensor, **metadata: str) -> Embedding:
    return Embedding(name="hero-xyz", vectors={"clip_l": rows}, metadata=metadata, aliases=("hero",))


def test_words_sums_and_strangers_each_go_their_way(converter: Converter) -> None:
    words = pair()
    noise = torch.randn(768, generator=torch.Generator().manual_seed(2)) * 0.0134
    rows = torch.stack([words.source[4] * 3, words.source[[1, 2]].sum(0), words.source[9] + noise])
    found = converter.to_sdxl(sd15(rows))
    assert [r.method for r in found.rows] == ["vocabulary", "sparse", "linear"]
    assert [r.confidence.expected == 1 for r in found.rows] == [True, True, False]
    assert found.embedding.vectors["clip_l"] is rows
    torch.testing.assert_close(found.embedding.vectors["clip_g"][0], words.target[4] * 3)
    assert "1 by the map" in found.message


def test_name_aliases_and_metadata_travel(converter: Converter) -> None:
    found = converter.to_sdxl(sd15(pair().source[:1], author="somebody")).embedding
    assert (found.name, found.aliases) == ("hero-xyz", ("hero",))
    assert found.metadata == {"author": "somebody", "ti_fix.converted_from": "SD1.5, auto"}


def test_left_only_changes_nothing(converter: Converter) -> None:
    before = sd15(pair().source[:2])
    assert converter.to_sdxl(before, ConvertConfig(method="l_only")).embedding is before


@pytest.mark.parametrize("keys", [("clip_l", "clip_g"), ("clip_h",), ("clip_g",)])
def test_other_families_are_refused_by_name(keys: tuple[str, ...], converter: Converter) -> None:
    widths = {"clip_l": 768, "clip_g": 1280, "clip_h": 1024}
    with pytest.raises(WrongUse, match="hero-xyz"):
        converter.to_sdxl(Embedding(name="hero-xyz", vectors={k: torch.ones(1, widths[k]) for k in keys}))


def test_numbers_that_are_not_finite_are_refused(converter: Converter) -> None:
    with pytest.raises(WrongUse, match="NaN"):
        converter.to_sdxl(sd15(torch.full((1, 768), float("nan"))))


def test_down_keeps_the_left_half_bit_for_bit() -> None:
    left = torch.randn(2, 768)
    whole = Embedding(name="x", vectors={"clip_l": left, "clip_g": torch.ones(2, 1280), "t5": torch.ones(2, 4096)})
    found = to_sd15(whole)
    assert list(found.embedding.vectors) == ["clip_l"]
    assert found.embedding.vectors["clip_l"] is left
    assert "clip_g and t5" in found.message


def test_down_without_a_left_half_is_refused() -> None:
    with pytest.raises(WrongUse, match="CLIP-L"):
        to_sd15(Embedding(name="x", vectors={"clip_g": torch.ones(2, 1280)}))


def test_up_and_down_again_is_the_same(converter: Converter) -> None:
    before = sd15(pair().source[:3] * 2)
    after = to_sd15(converter.to_sdxl(before).embedding).embedding
    assert torch.equal(after.vectors["clip_l"], before.vectors["clip_l"])


def test_the_cache_gives_the_same_conversion_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    rows = sd15(torch.randn(2, 768, generator=torch.Generator().manual_seed(1)) * 0.0134)
    first = Converter(vocabulary(), cache=tmp_path).to_sdxl(rows)
    (kept,) = tmp_path.iterdir()
    again = Converter(vocabulary(), cache=tmp_path).to_sdxl(rows)
    assert torch.equal(first.embedding.vectors["clip_g"], again.embedding.vectors["clip_g"])
    assert first.rows == again.rows
    kept.write_bytes(b"nonsense")
    assert Converter(vocabulary(), cache=tmp_path).to_sdxl(rows).rows == first.rows


@pytest.mark.parametrize("method", [*METHODS, "l_only"])
def test_every_method_is_offered(method: str) -> None:
    validate(ConvertConfig(method=method))


def test_a_method_that_is_not_offered_is_named() -> None:
    with pytest.raises(WrongUse, match="magic"):
        validate(ConvertConfig(method="magic"))
