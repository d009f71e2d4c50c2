"""Output matching and the move between checkpoints, on tiny random models: what they promise holds for any encoder."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from tests.hosts.tiny_models import tiny_sdxl
from ti_fix.convert import MATCH, ConvertConfig, Converter, moved
from ti_fix.convert.matching import NAME, SENTENCES, Matched, MatchEvent, encode, read_outputs, sentences, spot
from ti_fix.convert.outputs import OutputMatcher, plain_words
from ti_fix.convert.result import Conversion
from ti_fix.embedding import Embedding, Vocabulary
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.hosts.standalone import StandaloneModel
from ti_fix.hosts.standalone.load import Parts
from ti_fix.train.monitor import order_probe

WORDS = torch.arange(1000, 3000)


@cache
def model() -> StandaloneModel:
    return StandaloneModel(tiny_sdxl())


def other(strength: float) -> StandaloneModel:
    """The same model with each weight of its text encoders moved at random."""
    parts = tiny_sdxl()
    encoders: dict[str, Any] = {}
    torch.manual_seed(4)
    for key, encoder in parts.text_encoders.items():
        encoders[key] = copy.deepcopy(encoder)
        with torch.no_grad():
            for weight in encoders[key].parameters():
                weight.add_(strength * weight.std() * torch.randn_like(weight) if weight.ndim > 1 else 0)
    return StandaloneModel(
        Parts(
            family=parts.family,
            unet=parts.unet,
            vae=parts.vae,
            text_encoders=encoders,
            scheduler_config=parts.scheduler_config,
        )
    )


def embedding(rows: int = 2) -> Embedding:
    torch.manual_seed(1)
    tables = model().vocabulary().tables
    return Embedding(
        name="x", vectors={k: t[1500 : 1500 + rows] + 0.05 * torch.randn(rows, 64) for k, t in tables.items()}
    )


def never() -> bool:
    return False


def test_places_of_vectors_and_end() -> None:
    assert spot(f"a photo of {NAME}", 2) == (4, 6)
    found = read_outputs(model(), [NAME, f"{NAME} and a tree"], embedding().vectors, whole=False)
    assert {key: tuple(block.shape) for key, block in found.items() if key != "pooled"} == {
        "clip_l": (6, 64),
        "clip_g": (6, 64),
    }
    whole = encode(model(), [NAME, f"{NAME} and a tree"], {NAME: embedding().vectors})
    assert torch.equal(found["clip_g"][3], whole["clip_g"][1, 1])
    assert torch.equal(found["clip_g"][5], whole["clip_g"][1, 6])


def test_sentences_that_judge_are_not_trained_on() -> None:
    assert not set(sentences(judge=True)) & set(sentences(judge=False))
    assert len(sentences(judge=True)) + len(sentences(judge=False)) == len(SENTENCES)


def test_the_same_checkpoint_gives_the_same_vectors() -> None:
    before = embedding()
    (last,) = moved(before, model(), other(0.0), ConvertConfig(), never)
    assert isinstance(last, Conversion)
    assert last.embedding is before


def test_a_move_lowers_the_gap_in_unseen_sentences() -> None:
    config = ConvertConfig(steps=40, keep="outputs")
    events = list(moved(embedding(), model(), changed := other(0.05), config, never))
    last = events[-1]
    assert isinstance(last, Conversion) and last.findings[0].code == "realigned"
    asked = sentences(judge=True)
    wanted = read_outputs(model(), asked, embedding().vectors, whole=True)
    with torch.no_grad():
        before, after = (
            read_outputs(changed, asked, vectors, whole=True)
            for vectors in (embedding().vectors, last.embedding.vectors)
        )
        gaps = [sum(float((got[k] - wanted[k]).norm()) for k in wanted) for got in (before, after)]
    assert gaps[1] < 0.97 * gaps[0]
    assert all(isinstance(event, MatchEvent) for event in events[:-1])


def test_words_of_the_old_model_become_words_of_the_new_one() -> None:
    changed = other(0.05)
    words = {key: table[[1500]] for key, table in model().vocabulary().tables.items()}
    word = Embedding(name="x", vectors={key: row.clone() for key, row in words.items()})
    *_, last = moved(word, model(), changed, ConvertConfig(steps=80), never)
    assert isinstance(last, Conversion)
    for key, table in changed.vocabulary().tables.items():
        before, after = ((block[key] - table[1500]).norm() for block in (words, last.embedding.vectors))
        assert after < before


def test_weights_are_given_back() -> None:
    flags = [p.requires_grad for p in model().unet.parameters()]
    list(moved(embedding(), model(), other(0.05), ConvertConfig(steps=2), never))
    assert [p.requires_grad for p in model().unet.parameters()] == flags


def test_stop_keeps_the_best_so_far() -> None:
    asked = iter(range(100))
    events = list(moved(embedding(), model(), other(0.05), ConvertConfig(steps=50), lambda: next(asked) >= 7))
    assert len(events) == 8 and isinstance(events[-1], Conversion)


def test_an_embedding_of_another_kind_is_refused() -> None:
    with pytest.raises(WrongUse, match="one family"):
        list(moved(embedding().half(("clip_l",)), model(), other(0.1), ConvertConfig(), never))


def test_words_to_learn_from_are_single_tokens() -> None:
    words = plain_words(WORDS, 40)
    assert len(words) == 40 == len(set(words))
    assert all(word.isalpha() for word in words)


def test_matching_moves_the_right_half_only_and_never_makes_it_worse() -> None:
    matcher = OutputMatcher(model(), WORDS, 40)
    with pytest.raises(TiFixError, match="stopped"):
        list(matcher.match(embedding().vectors, 5, never))
    assert len(list(matcher.prepare(never))) == len(SENTENCES)
    *_, last = matcher.match(embedding().vectors, 15, never)
    assert isinstance(last, Matched)
    assert list(last.vectors) == ["clip_g"]
    assert last.gap < 1


def test_a_conversion_by_matching_is_tried_in_the_encoders() -> None:
    trained = torch.zeros(49408, dtype=torch.bool)
    trained[1000:1600] = True
    words = Vocabulary(tables=model().vocabulary().tables, tokenize=lambda _: [0], trained=trained)
    converter = Converter(words, model=model(), probe=order_probe)
    left = embedding().half(("clip_l",))
    *_, last = converter.events(left, ConvertConfig(method=MATCH, steps=5, words=40), never)
    assert isinstance(last, Conversion)
    assert {row.method for row in last.rows} <= {MATCH, "local", "linear"}
    assert "matched" in [finding.code for finding in last.findings]
