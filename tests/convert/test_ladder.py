"""The ladder on tables whose truth is known: two noisy views of the same hidden meanings."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ti_fix.convert.confidence import CERTAIN, WORTHLESS, Calibration, calibrate, isotonic, rising
from ti_fix.convert.config import METHODS
from ti_fix.convert.evidence import Around
from ti_fix.convert.ladder import climb
from ti_fix.convert.linear import LeftOut, LinearMap, Moments, fit
from ti_fix.convert.local import SHARES, LocalMap
from ti_fix.convert.sparse import decompose
from ti_fix.convert.tables import Index, TablePair
from ti_fix.embedding import Vocabulary
from ti_fix.errors import TiFixError, WrongUse

WORDS = 2400


@functools.cache
def pair() -> TablePair:
    """Full-rank tables of the real widths and lengths; the meanings they share span 100 directions."""
    random = torch.Generator().manual_seed(3)
    meaning = torch.randn(WORDS, 100, generator=random)

    def view(width: int, length: float) -> Tensor:
        table = meaning @ torch.randn(100, width, generator=random) / 10 + 0.6 * torch.randn(
            WORDS, width, generator=random
        )
        table += torch.randn(width, generator=random)
        return table * length / torch.linalg.vector_norm(table, dim=1).mean()

    tables = {"clip_l": view(768, 0.37), "clip_g": view(1280, 0.58)}
    return TablePair.of(Vocabulary(tables=tables, tokenize=lambda _: [0]), "clip_l", "clip_g")


@functools.cache
def mapping() -> LinearMap:
    return fit(pair(), held_out=300)


@functools.cache
def calibration() -> Calibration:
    return calibrate(pair(), left_out(), maps(), asked=600)


def left_out() -> LeftOut:
    return LeftOut.of(mapping(), Moments.of(pair()))


@functools.cache
def maps() -> LocalMap:
    return LocalMap.of(pair(), left_out())


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=-1).mean())


def test_the_map_is_ridge_regression_on_centred_words() -> None:
    words = pair().take(torch.arange(900))
    fitted = fit(words, held_out=100)
    source, target = words.source - words.source.mean(0), words.target - words.target.mean(0)
    covariance = source.T @ source
    penalty = fitted.penalty * covariance.diagonal().mean()
    expected = torch.linalg.solve(covariance.double() + penalty * torch.eye(768).double(), (source.T @ target).double())
    torch.testing.assert_close(fitted.weight.double(), expected, rtol=2e-3, atol=1e-4)


def test_held_out_figures_are_those_of_unseen_words() -> None:
    fitted, judged = pair().split(300, 0)
    truth, guess = judged.target, fit(fitted, held_out=300)(judged.source)
    centre = fitted.target.mean(0)
    assert mapping().cosine == pytest.approx(cosine(truth - centre, guess - centre), abs=0.02)
    assert 0 < mapping().r_squared < 1


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_sums_of_words_come_back_exactly(count: int) -> None:
    random = torch.Generator().manual_seed(count)
    words = torch.randperm(WORDS - 2, generator=random)[:count]
    weights = torch.randn(count, generator=random)
    (found,) = decompose((weights @ pair().source[words])[None], pair())
    assert sorted(found.words.tolist()) == sorted(words.tolist())
    assert cosine(found.of(pair().target[found.words]), weights @ pair().target[words]) >= 0.999


def test_noise_is_given_up_early_and_a_sum_is_not() -> None:
    random = torch.Generator().manual_seed(4)
    words = torch.randperm(WORDS - 2, generator=random)[:12]
    vectors = torch.stack([pair().source[words].sum(0), torch.randn(768, generator=random)])
    found, given_up = decompose(vectors, pair(), only_exact=True)
    assert found.exact and sorted(found.words.tolist()) == sorted(words.tolist())
    assert not given_up.exact and len(given_up.words) < 8


@pytest.mark.parametrize("multiple", [0.5, 1.0, 10.0, 40.0])
def test_a_word_of_any_length_is_the_word(multiple: float) -> None:
    (rung,) = climb(pair().source[7:8] * multiple, pair(), maps())
    torch.testing.assert_close(rung.vector, pair().target[7] * multiple)
    assert (rung.method, rung.words, rung.certain) == ("vocabulary", (int(pair().ids[7]),), True)


def test_half_precision_does_not_hide_a_word_or_a_sum() -> None:
    vectors = torch.stack([pair().source[7], pair().source[[1, 2, 3]].sum(0)]).half().float()
    first, second = climb(vectors, pair(), maps())
    assert first.method == "vocabulary"
    assert second.method == "sparse"
    assert cosine(second.vector, pair().target[[1, 2, 3]].sum(0)) >= 0.999


def test_a_vector_between_words_goes_by_the_map_and_keeps_its_multiple_of_their_length() -> None:
    noise = torch.randn(1, 768, generator=torch.Generator().manual_seed(5))
    vector = pair().source[7:8] + 0.37 * noise / torch.linalg.vector_norm(noise)
    (short,), (long,) = climb(vector, pair(), maps()), climb(vector * 20, pair(), maps())
    assert short.method == "local"
    torch.testing.assert_close(long.vector, short.vector * 20, rtol=1e-4, atol=1e-5)
    assert 0.4 < float(torch.linalg.vector_norm(short.vector)) < 1.2


def test_on_held_out_words_the_map_beats_the_nearest_word_and_zero() -> None:
    fitted, judged = pair().split(200, 1)
    learned = LocalMap.of(fitted, LeftOut.of(fit(fitted), Moments.of(fitted)))
    centre = fitted.target.mean(0)
    score = {
        method: cosine(
            torch.stack([r.vector for r in climb(judged.source, fitted, learned, method)]) - centre,
            judged.target - centre,
        )
        for method in ("linear", "vocabulary", "auto")
    }
    assert score["linear"] > score["vocabulary"] + 0.1
    assert score["auto"] >= score["linear"] - 0.01  # there is nothing around here that the map could learn from


def test_zero_rows_stay_zero() -> None:
    (rung,) = climb(torch.zeros(1, 768), pair(), maps())
    assert not rung.vector.any()
    assert calibration().of(rung) == WORTHLESS


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(WrongUse, match="magic"):
        climb(torch.ones(1, 768), pair(), maps(), "magic")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_finite_rows_of_the_target_width(method: str) -> None:
    vectors = torch.randn(3, 768, generator=torch.Generator().manual_seed(6))
    rungs = climb(vectors, pair(), maps(), method)
    assert all(r.vector.shape == (1280,) and bool(torch.isfinite(r.vector).all()) for r in rungs)


def test_the_words_of_a_real_checkpoint_are_not_copied() -> None:
    table = torch.randn(49408, 4)
    words = TablePair.of(
        Vocabulary(tables={"clip_l": table, "clip_g": table}, tokenize=lambda _: [0]), "clip_l", "clip_g"
    )
    assert words.source.data_ptr() == table.data_ptr()
    assert len(words.ids) == 49406


def test_the_index_finds_the_nearest_words_that_a_full_search_finds() -> None:
    words = pair()
    axes = torch.linalg.eigh(Moments.of(words).covariance)[1][:, -64:].float()
    indexed = replace(words, index=Index(axes=axes, short=words.meanings(words.source) @ axes))
    vectors = words.source[100:140] * 3 + 0.05 * torch.randn(40, 768, generator=torch.Generator().manual_seed(2))
    likeness, found = indexed.near(vectors, 1)
    expected, truth = words.near(vectors, 1)
    assert torch.equal(found, truth) and found[:, 0].tolist() == list(range(100, 140))
    torch.testing.assert_close(likeness, expected)


def test_fillers_and_special_tokens_are_no_words() -> None:
    tables = {"clip_l": torch.randn(49408, 4), "clip_g": torch.randn(49408, 6)}
    trained = torch.zeros(49408, dtype=torch.bool)
    trained[[5, 9, 49406, 49407]] = True
    tables["clip_g"][9] = float("nan")
    trained[12] = True
    words = TablePair.of(Vocabulary(tables=tables, tokenize=lambda _: [0], trained=trained), "clip_l", "clip_g")
    assert words.ids.tolist() == [5, 12]


def test_a_model_without_the_second_encoder_is_named() -> None:
    with pytest.raises(TiFixError, match="SDXL"):
        TablePair.of(Vocabulary(tables={"clip_l": torch.ones(9, 4)}, tokenize=lambda _: [0]), "clip_l", "clip_g")


def test_isotonic_against_a_hand_calculation() -> None:
    assert isotonic(torch.tensor([1.0, 3.0, 2.0, 2.0, 5.0, 4.0])).tolist() == pytest.approx(
        [1, 7 / 3, 7 / 3, 7 / 3, 4.5, 4.5]
    )


def test_between_the_middles_of_steps_the_expectation_rises() -> None:
    scores, steps = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([0.1, 0.1, 0.1, 0.5, 0.5, 0.9])
    assert rising(scores, steps).tolist() == pytest.approx([0.1, 0.1, 0.26, 0.42, 0.6333333, 0.9])


def test_what_is_near_a_word_goes_as_the_word_and_is_not_certain_to_be_it() -> None:
    noise = torch.randn(1, 768, generator=torch.Generator().manual_seed(6))
    vector = pair().source[7:8] + 0.08 * pair().source_norms[7] * torch.nn.functional.normalize(noise, dim=1)
    (rung,) = climb(vector, pair(), maps(), worth=calibration().worth)
    assert (rung.method, rung.words, rung.certain) == ("vocabulary", (int(pair().ids[7]),), False)
    assert calibration().of(rung).expected < 1


@functools.cache
def bent() -> TablePair:
    """Words in groups, and in each group all are moved by something that no linear map can tell."""
    random = torch.Generator().manual_seed(5)
    groups = torch.arange(1500) // 15
    source = torch.randn(100, 24, generator=random)[groups] + 0.4 * torch.randn(1500, 24, generator=random)
    target = source @ torch.randn(24, 32, generator=random) / 5 + torch.randn(100, 32, generator=random)[groups]
    words = Vocabulary(tables={"clip_l": source, "clip_g": target}, tokenize=lambda _: [0])
    return TablePair.of(words, "clip_l", "clip_g")


def test_what_the_map_misses_around_is_the_mean_of_what_it_missed_for_the_words_there() -> None:
    words = bent()
    left_out = LeftOut.of(fit(words), Moments.of(words))
    chosen = replace(LocalMap.of(words, left_out), share=1.0, sharpness=8.0)
    vectors = words.source[40:43] + 0.1
    around = Around.of(vectors, words)
    source, target = words.source_rows(around.words), words.target_rows(around.words)
    missed = target - torch.stack([left_out.map(s, s, t) for s, t in zip(source, target, strict=True)])
    expected = (torch.softmax(8 * around.likeness, dim=1)[..., None] * missed).sum(1)
    torch.testing.assert_close(chosen(vectors, around) - chosen.mapping(vectors), expected, rtol=1e-3, atol=1e-3)


def test_where_a_map_is_not_enough_the_words_around_help() -> None:
    fitted, judged = bent().split(300, 1)
    learned = LocalMap.of(fitted, LeftOut.of(fit(fitted), Moments.of(fitted)))
    assert learned.share == max(SHARES)
    score = {
        method: cosine(
            torch.stack([r.vector for r in climb(judged.source, fitted, learned, method)])
            - learned.mapping.target_mean,
            judged.target - learned.mapping.target_mean,
        )
        for method in ("linear", "local", "auto")
    }
    assert score["local"] > score["linear"] + 0.1
    assert score["auto"] > score["linear"] + 0.1
    (rung,) = climb(torch.ones(1, 24), fitted, replace(learned, share=0.0), "local")
    assert rung.method == "linear"


def test_a_vector_that_moved_away_from_a_word_keeps_what_the_map_misses_for_the_word() -> None:
    words = bent()
    learned = LocalMap.of(words, LeftOut.of(fit(words), Moments.of(words)))
    noise = torch.randn(60, 24, generator=torch.Generator().manual_seed(7))
    vectors = words.source[:60] + 0.3 * words.source_norms[:60, None] * torch.nn.functional.normalize(noise, dim=1)
    score = [
        cosine(torch.stack([r.vector for r in climb(vectors, words, learned, method)]), words.target[:60])
        for method in ("local", "linear")
    ]
    assert score[0] > score[1] + 0.1


def test_what_the_map_does_without_a_word_is_what_a_map_fitted_without_it_does() -> None:
    words = pair().take(torch.arange(900))
    whole = fit(words, held_out=100)
    moments = Moments.of(words)
    guess = LeftOut.of(whole, moments).map(words.source[:3], words.source[:3], words.target[:3])
    for i in range(3):
        rest = words.take(torch.tensor([j for j in range(900) if j != i]))
        source, target = rest.source - whole.source_mean, rest.target - whole.target_mean
        damping = whole.penalty * moments.covariance.diagonal().mean() * torch.eye(768).double()
        weight = torch.linalg.solve((source.T @ source).double() + damping, (source.T @ target).double()).float()
        expected = (words.source[i] - whole.source_mean) @ weight + whole.target_mean
        torch.testing.assert_close(guess[i], expected, rtol=5e-3, atol=2e-3)


def judged_words(noise: float) -> tuple[Tensor, Tensor]:
    """Expected and true cosines of words that neither map nor calibration have seen, with noise of up to so much."""
    fitted, judged = pair().split(300, 9)
    learned = fit(fitted)
    left_out = LeftOut.of(learned, Moments.of(fitted))
    learned_around = LocalMap.of(fitted, left_out)
    calibrated = calibrate(fitted, left_out, learned_around, asked=600)
    added = torch.randn(300, 768, generator=torch.Generator().manual_seed(8))
    level = torch.linspace(0, noise, 300)[:, None] * 0.37
    vectors = judged.source + level * added / torch.linalg.vector_norm(added, dim=1, keepdim=True)
    rungs = climb(vectors, fitted, learned_around, "auto", worth=calibrated.worth)
    truth = torch.cosine_similarity(
        torch.stack([r.vector for r in rungs]) - learned.target_mean, judged.target - learned.target_mean, dim=1
    )
    told = [calibrated.of(rung) for rung in rungs]
    if not noise:
        inside = sum(c.low <= t <= c.high for c, t in zip(told, truth.tolist(), strict=True))
        assert 0.65 <= inside / 300 <= 0.95
    return torch.tensor([c.expected for c in told]), truth


def test_confidence_tells_good_conversions_from_bad() -> None:
    assert calibration().of(climb(pair().source[:1], pair(), maps())[0]) == CERTAIN
    assert rank_correlation(*judged_words(noise=2.0)) > 0.7


def test_four_of_five_unseen_words_fall_into_the_interval() -> None:
    expected, truth = judged_words(noise=0.0)
    assert float(expected.mean()) == pytest.approx(float(truth.mean()), abs=0.03)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's, with ties given their order."""
    ranks = [x.argsort().argsort().float() for x in (one, other)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
