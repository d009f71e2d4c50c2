"""Files that are a whole token table with rows added, and the copy of a large file with a few other tensors."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save, save_file

from ti_fix.formats import read
from ti_fix.formats.safetensors_copy import copy_with
from ti_fix.repair import repair

ROWS = 49408


def table(rows: int, width: int) -> torch.Tensor:
    whole = torch.zeros(rows, width, dtype=torch.float16)
    whole[ROWS:] = torch.arange(1, rows - ROWS + 1)[:, None]
    return whole


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"emb_params": (ROWS + 2, 768)}, {"clip_l": 2}),
        ({"<toy>": (ROWS + 1, 768)}, {"clip_l": 1}),
        ({"clip_l": (ROWS + 3, 768), "clip_g": (ROWS + 3, 1280)}, {"clip_l": 3, "clip_g": 3}),
        ({"clip_l": (ROWS + 1, 768), "clip_g": (ROWS, 1280)}, {"clip_l": 1}),
    ],
)
def test_a_resized_table_gives_its_added_rows(shapes, expected, tmp_path):
    save_file({key: table(*shape) for key, shape in shapes.items()}, tmp_path / "toy.safetensors")
    parsed = read(tmp_path / "toy.safetensors")
    assert parsed.embedding is not None
    assert {k: len(v) for k, v in parsed.embedding.vectors.items()} == expected
    for block in parsed.embedding.vectors.values():
        assert torch.equal(block[:, 0], torch.arange(1, len(block) + 1).float())
    assert "resized-table" in {f.code for f in parsed.findings}
    result = repair(parsed)
    assert result.usable
    assert any("added row" in sentence for sentence in result.applied)


@pytest.mark.parametrize("rows", [ROWS, ROWS + 5000, 6000])
def test_a_table_without_added_rows_or_with_too_many_is_refused_as_before(rows, tmp_path):
    whole = torch.zeros(rows, 768, dtype=torch.float16)
    save_file({"emb_params": whole}, tmp_path / "table.safetensors")
    parsed = read(tmp_path / "table.safetensors")
    assert parsed.embedding is None
    assert "token-table" in {f.code for f in parsed.findings}


def test_the_copy_has_the_new_tensors_and_all_else_bit_for_bit(tmp_path):
    tensors = {
        "a": torch.randn(3, 5).half(),
        "b": torch.arange(7, dtype=torch.float16),
        "empty": torch.zeros(0, 4),
        "z": torch.randint(0, 9, (2, 2), dtype=torch.int8),
    }
    path = tmp_path / "large.safetensors"
    path.write_bytes(save(tensors, metadata={"format": "pt", "说明": "text"}))
    data = b"".join(copy_with(path, {"b": torch.arange(7)[None], "a": torch.ones(2, 2, dtype=torch.bfloat16)}))
    found = load(data)
    assert torch.equal(found["b"], torch.arange(7)[None])
    assert torch.equal(found["a"], torch.ones(2, 2, dtype=torch.bfloat16))
    assert torch.equal(found["z"], tensors["z"])
    assert found["empty"].shape == (0, 4)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", "说明": "text"}
    with pytest.raises(KeyError):
        list(copy_with(path, {"c": torch.ones(1)}))


def test_the_copy_of_an_unchanged_file_is_the_file(tmp_path):
    path = tmp_path / "large.safetensors"
    path.write_bytes(save({"a": torch.randn(3, 5), "b": torch.ones(4, dtype=torch.int64)}))
    assert load(b"".join(copy_with(path, {}))).keys() == {"a", "b"}
    assert b"".join(copy_with(path, {})) == path.read_bytes()
