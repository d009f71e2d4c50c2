"""Whole embeddings: names, metadata, bit-exact halves, refusals, the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.convert.test_ladder import pair
from ti_fix.convert import MATCH, ConvertConfig, Converter, FastHalf, tables, to_sd15
from ti_fix.convert.config import METHODS
from ti_fix.convert.down import drift
from ti_fix.embedding import Embedding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.options import validate


def narrow() -> Vocabulary:
    """Small tables, for what does not depend on their size."""
    words = pair()
    return Vocabulary(
        tables={"clip_l": words.source[:600, :64].contiguous(), "clip_g": words.target[:600, :96].contiguous()},
        tokenize=lambda _: [0],
    )


LEFT, RIGHT = narrow().tables.values()


@pytest.fixture(scope="module")
def converter() -> Converter:
    return Converter(narrow())


def sd15(rows: torch.Tensor, **metadata: str) -> Embedding:
    return Embedding(name="hero-xyz", vectors={"clip_l": rows}, metadata=metadata, aliases=("hero",))


def test_words_sums_and_strangers_each_go_their_way(converter: Converter) -> None:
    noise = torch.randn(64, generator=torch.Generator().manual_seed(2)) * 0.0134
    rows = torch.stack([LEFT[4] * 3, LEFT[[1, 2]].sum(0), LEFT[9] + noise])
    found = converter.to_sdxl(sd15(rows))
    assert [r.method for r in found.rows] == ["vocabulary", "sparse", "local"]
    assert [r.confidence.expected == 1 for r in found.rows] == [True, True, False]
    assert found.embedding.vectors["clip_l"] is rows
    torch.testing.assert_close(found.embedding.vectors["clip_g"][0], RIGHT[4] * 3)
    assert "1 by the map" in found.message
    (told,) = found.findings
    mapping = converter.maps.mapping
    assert told.code == "map" and f"{max(0.0, mapping.r_squared):.0%}" in told.message
    assert f"{mapping.cosine:.2f}" in told.message
    assert not converter.to_sdxl(sd15(LEFT[:2])).findings  # words need no map


def test_name_aliases_and_metadata_travel(converter: Converter) -> None:
    found = converter.to_sdxl(sd15(LEFT[:1], author="somebody")).embedding
    assert (found.name, found.aliases) == ("hero-xyz", ("hero",))
    assert found.metadata == {"author": "somebody", "ti_fix.converted_from": "SD1.5, auto"}


def test_left_only_changes_nothing(converter: Converter) -> None:
    before = sd15(LEFT[:2])
    assert converter.to_sdxl(before, ConvertConfig(method="l_only")).embedding is before


@pytest.mark.parametrize("keys", [("clip_l", "clip_g"), ("clip_h",), ("clip_g",)])
def test_other_families_are_refused_by_name(keys: tuple[str, ...], converter: Converter) -> None:
    widths = {"clip_l": 768, "clip_g": 1280, "clip_h": 1024}
    with pytest.raises(WrongUse, match="hero-xyz"):
        converter.to_sdxl(Embedding(name="hero-xyz", vectors={k: torch.ones(1, widths[k]) for k in keys}))


def test_numbers_that_are_not_finite_are_refused(converter: Converter) -> None:
    with pytest.raises(WrongUse, match="NaN"):
        converter.to_sdxl(sd15(torch.full((1, 64), float("nan"))))


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
    before = sd15(LEFT[:3] * 2)
    after = to_sd15(converter.to_sdxl(before).embedding).embedding
    assert torch.equal(after.vectors["clip_l"], before.vectors["clip_l"])


def test_the_cache_gives_the_same_conversion_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    rows = sd15(torch.randn(2, 64, generator=torch.Generator().manual_seed(1)) * 0.0134)
    first = Converter(narrow(), cache=tmp_path).to_sdxl(rows)
    kept = sorted(tmp_path.iterdir())
    assert [path.name.partition("-")[0] for path in kept] == ["map", "worth"]
    again = Converter(narrow(), cache=tmp_path).to_sdxl(rows)
    assert torch.equal(first.embedding.vectors["clip_g"], again.embedding.vectors["clip_g"])
    assert first.rows == again.rows
    for path in kept:
        path.write_bytes(b"nonsense")
    assert Converter(narrow(), cache=tmp_path).to_sdxl(rows).rows == first.rows


def test_what_an_earlier_release_kept_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sd15(torch.randn(2, 64, generator=torch.Generator().manual_seed(1)) * 0.0134)
    monkeypatch.setattr(tables, "FORM", 1)
    Converter(narrow(), cache=tmp_path).to_sdxl(rows)
    earlier = next(tmp_path.glob("worth-*"))
    kept = safetensors.torch.load_file(earlier)
    safetensors.torch.save_file(kept | {"worth": kept["worth"][0].contiguous()}, earlier)  # it had one figure a word
    monkeypatch.setattr(tables, "FORM", 2)
    assert len(Converter(narrow(), cache=tmp_path).to_sdxl(rows).rows) == 2


@pytest.mark.parametrize("method", [*METHODS, MATCH, "l_only"])
def test_every_method_is_offered(method: str) -> None:
    validate(ConvertConfig(method=method))


def test_a_method_that_is_not_offered_is_named() -> None:
    with pytest.raises(WrongUse, match="magic"):
        validate(ConvertConfig(method="magic"))


def test_a_t5_part_is_dropped_and_named(converter: Converter) -> None:
    flux = Embedding(name="x", vectors={"clip_l": LEFT[:2], "t5": torch.ones(2, 4096)})
    found = converter.to_sdxl(flux)
    assert list(found.embedding.vectors) == ["clip_l", "clip_g"]
    assert [finding.code for finding in found.findings] == ["dropped-t5"]


def test_matching_without_the_model_is_refused(converter: Converter) -> None:
    with pytest.raises(WrongUse, match="whole model"):
        converter.to_sdxl(sd15(LEFT[:1] + 0.1), ConvertConfig(method=MATCH))


def test_drift_is_told_in_lengths_of_a_word() -> None:
    table = LEFT
    assert drift(table, table.clone()).code == "same-vocabulary"
    found = drift(table, table * 1.5)
    assert (found.code, "50%" in found.message) == ("drifted-vocabulary", True)
    with pytest.raises(WrongUse, match="wide"):
        drift(table, RIGHT)


def test_down_tells_the_drift_where_both_tables_are_known() -> None:
    whole = Embedding(name="x", vectors={"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)})
    assert not to_sd15(whole).findings
    assert [f.code for f in to_sd15(whole, LEFT, LEFT * 2).findings] == ["drifted-vocabulary"]


# at load


def halves(cache: Path | None) -> FastHalf:
    return FastHalf(cache, lambda embedding, _: embedding.with_vectors({"otherwise": torch.ones(1, 1)}))


def test_at_load_words_are_words_and_the_rest_goes_by_the_map(converter: Converter, tmp_path: Path) -> None:
    noise = torch.randn(64, generator=torch.Generator().manual_seed(3))
    rows = torch.stack([LEFT[4] * 3, LEFT[9] + 0.01 * noise])
    before = sd15(rows)
    found = halves(tmp_path)(before, narrow())
    assert found.vectors["clip_l"] is rows
    torch.testing.assert_close(found.vectors["clip_g"][0], RIGHT[4] * 3)
    expected = converter.to_sdxl(before, ConvertConfig(method="local")).embedding.vectors["clip_g"]
    torch.testing.assert_close(found.vectors["clip_g"][1], expected[1], rtol=1e-3, atol=1e-3)


def test_at_load_a_map_is_learned_once_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ti_fix")
    rows = sd15(LEFT[:1] + 0.02)
    for half in (first := halves(tmp_path), first, halves(tmp_path)):
        half(rows, narrow())
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["Learning"]


def test_at_load_other_weights_in_the_same_tables_are_noticed(tmp_path: Path) -> None:
    words, half = narrow(), halves(tmp_path)
    tables = {key: table.clone() for key, table in words.tables.items()}
    mine = Vocabulary(tables=tables, tokenize=words.tokenize)
    rows = sd15(LEFT[3:4].clone())
    half(rows, mine)
    tables["clip_g"].mul_(2)
    torch.testing.assert_close(half(rows, mine).vectors["clip_g"], RIGHT[3:4] * 2)


def test_at_load_half_precision_and_broken_rows_do_no_harm() -> None:
    words = narrow()
    halved = Vocabulary(tables={k: t.half() for k, t in words.tables.items()}, tokenize=words.tokenize)
    rows = torch.stack([LEFT[4], torch.full((64,), float("nan"))])
    found = halves(None)(sd15(rows), halved).vectors["clip_g"]
    assert found.dtype == torch.float32 and bool(torch.isfinite(found).all())
    torch.testing.assert_close(found[0], RIGHT[4], rtol=1e-2, atol=1e-3)
    assert not found[1].any()


@pytest.mark.parametrize("keys", [("clip_g",), ("clip_l", "clip_g"), ("clip_h",)])
def test_at_load_what_is_no_sd15_embedding_goes_the_other_way(keys: tuple[str, ...]) -> None:
    other = Embedding(name="x", vectors={key: torch.ones(1, 4) for key in keys})
    assert list(halves(None)(other, narrow()).vectors) == ["otherwise"]


def test_a_cache_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = halves(tmp_path / "file" / "cache")(sd15(LEFT[:1]), narrow())
    torch.testing.assert_close(found.vectors["clip_g"], RIGHT[:1])


def test_at_load_tables_without_words_go_the_other_way(caplog: pytest.LogCaptureFixture) -> None:
    nothing = Vocabulary(tables={"clip_l": torch.zeros(4, 64), "clip_g": torch.zeros(4, 96)}, tokenize=lambda _: [0])
    found = halves(None)(sd15(torch.ones(1, 64)), nothing)
    assert "otherwise" in found.vectors
    assert "nearest words" in caplog.text
