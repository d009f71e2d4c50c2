"""The half that is made at its first use."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from ti_fix.embedding import Embedding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.hosts.lazy import CompletedAtUse

ONLY_L = Embedding(name="old", vectors={"clip_l": torch.ones(2, 768)})
TABLES = Vocabulary(tables={}, tokenize=lambda text: [])


def completed(made, loaded):
    def complete(embedding, vocabulary):
        made.append(vocabulary)
        return embedding.with_vectors({**embedding.vectors, "clip_g": torch.full((2, 1280), float(len(made)))})

    return CompletedAtUse(ONLY_L, "clip_g", complete, lambda: loaded[-1])


def test_it_is_made_once_for_each_set_of_weights():
    made, loaded = [], [("first", TABLES)]
    vec = completed(made, loaded)
    assert isinstance(vec, dict)
    assert set(vec) == {"clip_l", "clip_g"}
    assert made == []
    assert vec["clip_l"].sum() == 2 * 768
    assert made == []
    assert vec["clip_g"].unique().tolist() == [1]
    assert vec.get("clip_g").unique().tolist() == [1]
    loaded.append(("second", TABLES))
    assert dict(vec.items())["clip_g"].unique().tolist() == [2]
    assert [v.unique().tolist() for v in vec.values()] == [[1], [2]]
    assert vec.get("clip_h") is None


@pytest.mark.parametrize(
    "read",
    [
        dict,
        lambda vec: {**vec},
        lambda vec: vec.copy(),
        copy.copy,
        copy.deepcopy,
        lambda vec: pickle.loads(pickle.dumps(vec)),
        lambda vec: vec | {},
        lambda vec: {} | vec,
        lambda vec: dict(vec.items()),
        lambda vec: dict(zip(vec, vec.values(), strict=True)),
        lambda vec: {key: vec.get(key) for key in vec},
        lambda vec: dict.fromkeys(()) or [d := {}, d.update(vec)][0],
    ],
)
def test_however_it_is_read_the_half_is_there(read):
    made = read(completed([], [("model", TABLES)]))
    assert {key: block.unique().tolist() for key, block in made.items()} == {"clip_l": [1], "clip_g": [1]}


def test_torch_saves_what_was_made(tmp_path):
    torch.save(completed([], [("model", TABLES)]), tmp_path / "vec.pt")
    saved = torch.load(tmp_path / "vec.pt", weights_only=True)
    assert saved["clip_g"].unique().tolist() == [1]


def test_without_a_model_it_waits():
    made, loaded = [], [("none", None)]
    vec = completed(made, loaded)
    assert not vec["clip_g"].any()
    loaded.append(("model", TABLES))
    assert vec["clip_g"].any()


def test_what_is_made_in_inference_mode_is_an_ordinary_tensor():
    with torch.inference_mode():
        assert not completed([], [("model", TABLES)])["clip_g"].is_inference()


def test_a_failure_is_said_and_gives_zeros(caplog):
    def fail(embedding, vocabulary):
        raise WrongUse("no table.")

    vec = CompletedAtUse(ONLY_L, "clip_g", fail, lambda: ("model", TABLES))
    assert vec["clip_g"].shape == (2, 1280)
    assert "could not be made" in caplog.text
