"""Case CV1: a dictionary of two small tables, and vectors whose conversion is known."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.cases import folder
from ti_fix.convert import Conversion, Converter
from ti_fix.embedding import Embedding, Vocabulary

CASE = folder() / "handover" / "CV1"


def tensor(name: str) -> Tensor:
    (block,) = load_file(CASE / f"{name}.safetensors").values()
    return block.float()


def converted() -> tuple[Conversion, Tensor, Tensor]:
    left, right = tensor("vocab_l"), tensor("vocab_g")
    words = Vocabulary(tables={"clip_l": left, "clip_g": right}, tokenize=lambda _: [0])
    done = Converter(words).to_sdxl(Embedding(name="cv1-xq", vectors={"clip_l": tensor("to_convert")}))
    return done, right, tensor("to_convert")


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=0))


def test_each_vector_comes_to_what_the_case_says() -> None:
    must = json.loads((CASE / "expect.json").read_text("utf-8"))["must"]
    assert set(must) == {"0", "1", "2", "5", "6", "7"}
    done, right, _ = converted()
    found = done.embedding.vectors["clip_g"]
    torch.testing.assert_close(found[0], right[3], rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(found[1], right[17], rtol=2e-3, atol=2e-4)
    assert cosine(found[2], right[5]) >= 0.8
    assert cosine(found[6], right[9]) > 0.999
    assert float(found[6].norm() / right[9].norm()) > 2.9
    assert cosine(found[7], right[[1, 2]].mean(0)) >= 0.9


def test_a_vector_without_a_counterpart_is_flagged() -> None:
    done, _, _ = converted()
    assert len(done.rows) == 8
    assert done.rows[5].confidence.expected < 0.4
    assert "no counterpart" in done.message
