"""Every way in which tools store vectors leads to the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from ti_fix.formats import Parsed, extract, read, read_many

LEFT = torch.randn(3, 768, generator=torch.Generator().manual_seed(1)) * 0.0134
RIGHT = torch.randn(3, 1280, generator=torch.Generator().manual_seed(2)) * 0.0163
BOTH = {"clip_l": LEFT, "clip_g": RIGHT}
ONLY_LEFT = {"clip_l": LEFT}

Saver = Callable[[Path, dict[str, Any]], Path]


def as_safetensors(path: Path, content: dict[str, Any]) -> Path:
    safetensors.torch.save_file({k: v.clone(memory_format=torch.contiguous_format) for k, v in content.items()}, path)
    return path


def as_torch(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def equal(parsed: Parsed, expected: dict[str, Tensor]) -> None:
    assert parsed.embedding is not None, parsed.findings
    assert list(parsed.embedding.vectors) == list(expected)
    for key, block in expected.items():
        torch.testing.assert_close(parsed.embedding.vectors[key], block, rtol=0, atol=0)


FLAT: dict[str, tuple[dict[str, Tensor], dict[str, Tensor], set[str]]] = {
    "native": (BOTH, BOTH, set()),
    "text_encoders_0/1": ({"text_encoders_0": LEFT, "text_encoders_1": RIGHT}, BOTH, {"renamed-keys"}),
    "te1/te2": ({"te1": LEFT, "te2": RIGHT}, BOTH, {"renamed-keys"}),
    "text_encoder/_2": ({"text_encoder": LEFT, "text_encoder_2": RIGHT}, BOTH, {"renamed-keys"}),
    "l/g": ({"l": LEFT, "g": RIGHT}, BOTH, {"renamed-keys"}),
    "upper case": ({"CLIP_L": LEFT, "CLIP-G": RIGHT}, BOTH, {"renamed-keys"}),
    "no names": ({"first": LEFT, "second": RIGHT}, BOTH, {"unlabelled"}),
    "swapped": ({"clip_l": RIGHT, "clip_g": LEFT}, BOTH, {"swapped-halves"}),
    "swapped foreign labels": ({"text_encoders_0": RIGHT, "text_encoders_1": LEFT}, BOTH, {"swapped-halves"}),
    "one wrong label": ({"clip_g": LEFT}, ONLY_LEFT, {"wrong-label"}),
    "side by side": ({"emb_params": torch.cat([LEFT, RIGHT], 1)}, BOTH, {"concatenated"}),
    "transposed": ({"clip_l": LEFT.T, "clip_g": RIGHT.T}, BOTH, {"transposed"}),
    "3-D": ({"clip_l": LEFT[None], "clip_g": RIGHT[:, None]}, BOTH, {"3-d"}),
    "flattened": ({"clip_l": LEFT.flatten(), "clip_g": RIGHT.flatten()}, BOTH, {"flattened"}),
    "emb_params": ({"emb_params": LEFT}, ONLY_LEFT, set()),
    "star": ({"*": LEFT}, ONLY_LEFT, set()),
    "token": ({"<cat>": LEFT}, ONLY_LEFT, set()),
    "numbered": ({"<cat>_2": LEFT[2], "<cat>": LEFT[0], "<cat>_1": LEFT[1]}, ONLY_LEFT, {"stacked"}),
    "numbered inside": ({"<s0>": LEFT[0], "<s1>": LEFT[1], "<s2>": LEFT[2]}, ONLY_LEFT, {"stacked"}),
    "numbered halves": (
        {f"clip_l_{i}": LEFT[i] for i in range(3)} | {f"clip_g_{i}": RIGHT[i] for i in range(3)},
        BOTH,
        {"stacked", "renamed-keys", "1-d"},
    ),
    "one dotted prefix": ({"hero.clip_l": LEFT, "hero.clip_g": RIGHT}, BOTH, {"nested"}),
    "with an extra tensor": ({**BOTH, "step": torch.tensor([5.0])}, BOTH, {"extra-keys"}),
    "with output vectors": ({**BOTH, "clip_l_out": LEFT, "clip_g_out": RIGHT}, BOTH, {"output-embedding"}),
    "with t5": ({**BOTH, "t5": torch.ones(3, 4096)}, {**BOTH, "t5": torch.ones(3, 4096)}, set()),
}


@pytest.mark.parametrize("how", FLAT)
@pytest.mark.parametrize("save", [as_safetensors, as_torch])
def test_flat_layouts(how: str, save: Saver, tmp_path: Path) -> None:
    content, expected, codes = FLAT[how]
    parsed = read(save(tmp_path / ("hero" + (".safetensors" if save is as_safetensors else ".pt")), content))
    equal(parsed, expected)
    assert {f.code for f in parsed.findings} == codes


NESTED: dict[str, tuple[Any, dict[str, Tensor]]] = {
    "webui": ({"string_to_token": {"*": 265}, "string_to_param": {"*": LEFT}, "name": "x", "step": 3}, ONLY_LEFT),
    "webui, its broken SDXL form": ({"string_to_param": {"*": torch.cat([LEFT, RIGHT], 1)}, "name": "x"}, BOTH),
    "webui, several params": ({"string_to_param": {"*": LEFT[:1], "*_1": LEFT[1:2], "*_2": LEFT[2:]}}, ONLY_LEFT),
    "list of dicts": ([{"a": LEFT}, {"b": RIGHT}], BOTH),
    "list of tensors": ([LEFT, RIGHT], BOTH),
    "nested twice": ({"state_dict": {"embedding": BOTH}, "epoch": 3}, BOTH),
    "per encoder": ({"clip_l": {"string_to_param": {"*": LEFT}}, "clip_g": {"string_to_param": {"*": RIGHT}}}, BOTH),
    "bare": (LEFT, ONLY_LEFT),
    "bare pair": (torch.cat([LEFT, RIGHT], 1), BOTH),
    "parameter": (torch.nn.Parameter(LEFT), ONLY_LEFT),
    "with texts": ({**BOTH, "name": "hero", "notes": "x" * 9999}, BOTH),
    "with optimiser": ({**BOTH, "optimizer_state_dict": {"state": {0: {"exp_avg": LEFT}}}}, BOTH),
}


@pytest.mark.parametrize("how", NESTED)
def test_nested_layouts(how: str, tmp_path: Path) -> None:
    content, expected = NESTED[how]
    equal(read(as_torch(tmp_path / "hero.pt", content)), expected)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("save", [as_safetensors, as_torch])
def test_number_types(dtype: torch.dtype, save: Saver, tmp_path: Path) -> None:
    stored = {key: block.to(dtype) for key, block in BOTH.items()}
    parsed = read(save(tmp_path / "hero.bin", stored))
    equal(parsed, {key: block.float() for key, block in stored.items()})
    assert ("low-precision" in {f.code for f in parsed.findings}) == (dtype.itemsize == 1)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "lora": ({"lora_unet_x.lora_down.weight": LEFT}, "lora", "models/Lora"),
    "diffusers lora": ({"unet.up.lora_A.weight": LEFT, "unet.up.lora_B.weight": LEFT}, "lora", "LoRA"),
    "checkpoint": ({"model.diffusion_model.input_blocks.0.0.weight": LEFT}, "foreign-file", "checkpoint"),
    "text encoder": ({"text_model.encoder.layers.0.mlp.fc1.weight": LEFT}, "foreign-file", "text-encoder weights"),
    "vae": ({"decoder.conv_in.weight": LEFT}, "foreign-file", "VAE"),
    "hypernetwork": ({768: [{"linear.0.weight": LEFT}, {"linear.0.weight": LEFT}]}, "foreign-file", "hypernetwork"),
    "two concepts": ({"<cat>": LEFT, "<dog>": LEFT}, "several-embeddings", "<dog>"),
    "only output vectors": ({"clip_l_out": LEFT}, "output-embedding", "output embedding"),
    "whole numbers": ({"clip_l": torch.ones(2, 768, dtype=torch.int64)}, "unknown-layout", "clip_l [2, 768]"),
    "a strange width": ({"emb_params": torch.ones(2, 640)}, "unknown-layout", "640"),
    "a token table": ({"emb_params": torch.ones(1, 768).expand(5000, 768)}, "token-table", "5,000"),
    "nothing": ({}, "no-vectors", "no vectors"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_no_embedding_is_named(how: str, tmp_path: Path) -> None:
    content, code, words = REFUSED[how]
    parsed = read(as_torch(tmp_path / "hero.pt", content))
    assert parsed.embedding is None
    (finding,) = parsed.findings
    assert (finding.code, finding.severity) == (code, "error")
    assert words in finding.message and finding.message.startswith("hero.pt: ")


def test_extract_takes_bundled_embeddings_out(tmp_path: Path) -> None:
    bundled = {
        "bundle_emb.hero.clip_l": LEFT,
        "bundle_emb.hero.clip_g": RIGHT,
        "bundle_emb.my.style.string_to_param.*": LEFT,
        "lora_unet_x.lora_down.weight": LEFT,
    }
    found = {e.name: e for e in extract(as_safetensors(tmp_path / "lora.safetensors", bundled))}
    assert set(found) == {"hero", "my.style"}
    assert torch.equal(found["hero"].vectors["clip_g"], RIGHT)
    assert list(found["my.style"].vectors) == ["clip_l"]


def test_extract_finds_nothing_in_a_lora_without_embeddings(tmp_path: Path) -> None:
    lora = {"lora_te1_x.lora_down.weight": LEFT, "lora_te2_x.lora_down.weight": RIGHT}
    assert extract(as_safetensors(tmp_path / "lora.safetensors", lora)) == []


def test_extract_takes_several_placeholders_apart(tmp_path: Path) -> None:
    found = extract(as_torch(tmp_path / "both.bin", {"<cat>": LEFT, "<dog>": LEFT[:1]}))
    assert [(e.name, e.num_vectors) for e in found] == [("cat", 3), ("dog", 1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("learned_embeds.safetensors", "learned_embeds_2.safetensors"),
        ("learned_embeds-steps-500.safetensors", "learned_embeds_2-steps-500.safetensors"),
        ("hero_clip_l.safetensors", "hero_clip_g.safetensors"),
        ("hero-te1.safetensors", "hero-te2.safetensors"),
        ("hero_text_encoder.safetensors", "hero_text_encoder_2.safetensors"),
        ("hero_l.safetensors", "hero_g.safetensors"),
    ],
)
def test_halves_in_two_files_are_one(one: str, other: str, tmp_path: Path) -> None:
    paths = [as_safetensors(tmp_path / one, {"<toy>": LEFT}), as_safetensors(tmp_path / other, {"<toy>": RIGHT})]
    (pair,) = read_many(paths)
    equal(pair, BOTH)
    assert pair.paths == tuple(paths)


def test_steps_of_one_training_are_not_mixed(tmp_path: Path) -> None:
    paths = [
        as_safetensors(tmp_path / "learned_embeds-steps-500.safetensors", {"<toy>": LEFT}),
        as_safetensors(tmp_path / "learned_embeds_2-steps-1000.safetensors", {"<toy>": RIGHT}),
    ]
    assert len(list(read_many(paths))) == 2


def test_sd15_files_with_numbers_are_not_pairs(tmp_path: Path) -> None:
    paths = [as_safetensors(tmp_path / f"hero_{i}.safetensors", {"emb_params": LEFT}) for i in (1, 2)]
    assert len(list(read_many(paths))) == 2
