"""Exports, read by the programs' own loaders where they can be installed, and against their lists where not."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import safetensors.torch
import torch

from ti_fix.embedding import FAMILIES, Embedding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats import read, read_many
from ti_fix.formats.export import FORMS, export, placeholder, torch_bytes, usage

XL = {"clip_l": 768, "clip_g": 1280}
SD1 = {"clip_l": 768}
SD2 = {"clip_h": 1024}

A1111_1_9_RECORDS = re.compile(r"[^/]+/(data/\d+|version|data\.pkl)")
"""Zip records that every A1111 with the safe unpickler takes (modules/safe.py of 1.9.4; 1.10 takes two more)."""

A1111_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch HalfStorage",
    "torch BFloat16Storage",
}
"""Of the globals that its unpickler takes, those that tensors need."""


def embedding(widths: dict[str, int], rows: int = 2, **more: Any) -> Embedding:
    generator = torch.Generator().manual_seed(5)
    blocks = {key: torch.randn(rows, width, generator=generator) * 0.0135 for key, width in widths.items()}
    return Embedding(**{"name": "hero", "vectors": blocks, **more})


def same(found: Any, expected: torch.Tensor) -> bool:
    return torch.equal(found, expected) and found.dtype == torch.float32


@pytest.mark.parametrize("widths", [XL, SD1, SD2])
def test_a1111_takes_every_record_and_global(tmp_path: Path, widths: dict[str, int]) -> None:
    (path,) = export(embedding(widths), tmp_path, "a1111")
    with zipfile.ZipFile(path) as archive:
        assert all(A1111_1_9_RECORDS.fullmatch(name) for name in archive.namelist())
        pickled = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    used = {argument for opcode, argument, _ in pickletools.genops(pickled) if opcode.name == "GLOBAL"}
    assert used
    assert used <= A1111_GLOBALS
    assert not {o.name for o, _, _ in pickletools.genops(pickled)} & {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ"}


def test_a1111_sdxl_is_two_tensors_and_nothing_else(tmp_path: Path) -> None:
    whole = embedding(XL, metadata={"step": "500", "modelspec.author": "Ada"})
    (path,) = export(whole, tmp_path, "a1111")
    assert path == tmp_path / "hero.pt"
    tree = torch.load(path, weights_only=True)
    assert tree.keys() == {"clip_l", "clip_g"}
    assert all(same(tree[key], block) for key, block in whole.vectors.items())


@pytest.mark.parametrize("widths", [SD1, SD2])
def test_a1111_single_encoder_is_what_its_train_tab_writes(tmp_path: Path, widths: dict[str, int]) -> None:
    about = {"step": "500", "sd_checkpoint": "6ce0161689", "sd_checkpoint_name": "/home/ann/v1-5.ckpt"}
    whole = embedding(widths, metadata=about)
    (path,) = export(whole, tmp_path, "a1111")
    tree = torch.load(path, weights_only=True)
    (block,) = whole.vectors.values()
    assert same(tree.pop("string_to_param")["*"], block)
    assert tree == {
        "string_to_token": {"*": 265},
        "name": "hero",
        "step": 500,
        "sd_checkpoint": "6ce0161689",
        "sd_checkpoint_name": None,
    }


def test_torch_bytes_are_the_same_each_time_and_hold_no_more_than_shown() -> None:
    table = torch.randn(1000, 768)
    first = torch_bytes({"clip_l": table[:2].clone()})
    assert first == torch_bytes({"clip_l": table[:2].clone()})
    assert len(first) < 10_000
    part = embedding(SD1).with_vectors({"clip_l": table[:2]})
    assert len(FORMS["a1111"].files(part, FAMILIES["sd15"], "x")["x.pt"]) < 10_000


@pytest.mark.parametrize(
    ("form", "widths", "names"),
    [
        ("a1111", XL, {"my hero.pt"}),
        ("diffusers", XL, {"my hero/learned_embeds.safetensors", "my hero/learned_embeds_2.safetensors"}),
        ("diffusers", SD2, {"my hero/learned_embeds.safetensors"}),
        ("comfyui", XL, {"my_hero.safetensors"}),
        ("comfyui", {"clip_l": 768, "t5": 4096}, {"my_hero.safetensors"}),
        ("invokeai", SD1, {"my_hero.safetensors"}),
    ],
)
def test_files_of_each_form(tmp_path: Path, form: str, widths: dict[str, int], names: set[str]) -> None:
    written = export(embedding(widths, name="my hero"), tmp_path, form)
    assert {p.relative_to(tmp_path).as_posix() for p in written} == names
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == names


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("widths", [XL, SD1, SD2])
def test_every_form_reads_back(tmp_path: Path, form: str, widths: dict[str, int]) -> None:
    whole = embedding(widths, rows=3)
    (parsed,) = read_many(export(whole, tmp_path, form))
    assert parsed.embedding is not None
    assert parsed.trigger == "hero"
    assert parsed.embedding.vectors.keys() == whole.vectors.keys()
    assert all(same(parsed.embedding.vectors[key], block) for key, block in whole.vectors.items())


@pytest.mark.parametrize("rows", [1, 3])
def test_diffusers_loads_the_pair(tmp_path: Path, rows: int) -> None:
    loaders = pytest.importorskip("diffusers.loaders", reason="diffusers is not installed")
    whole = embedding(XL, rows=rows)
    paths = export(whole, tmp_path, "diffusers")
    pipe = _pipeline(loaders.TextualInversionLoaderMixin)
    for path, key, number in zip(paths, ("clip_l", "clip_g"), ("", "_2"), strict=True):
        tokenizer, encoder = getattr(pipe, f"tokenizer{number}"), getattr(pipe, f"text_encoder{number}")
        pipe.load_textual_inversion(
            str(path.parent), weight_name=path.name, tokenizer=tokenizer, text_encoder=encoder, local_files_only=True
        )
        prompt = pipe.maybe_convert_prompt("a <hero> b", tokenizer)
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        rows_found = encoder.get_input_embeddings().weight.data[ids[1:-1]]
        assert same(rows_found, whole.vectors[key])


def _pipeline(mixin: type) -> Any:
    """As much of an SDXL pipeline as diffusers' loader uses: both tokenizers and both text encoders, one layer each."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    letters = [*"ab", "a</w>", "b</w>", "<|startoftext|>", "<|endoftext|>"]

    class Pipeline(mixin):  # type: ignore[misc]
        hf_device_map = None
        components = MappingProxyType({})

    pipe = Pipeline()
    for number, width in (("", 768), ("_2", 1280)):
        tokenizer = transformers.CLIPTokenizer(vocab={t: i for i, t in enumerate(letters)}, merges=[])
        config = transformers.CLIPTextConfig(
            hidden_size=width, intermediate_size=8, num_attention_heads=1, num_hidden_layers=1, vocab_size=len(letters)
        )
        setattr(pipe, f"tokenizer{number}", tokenizer)
        setattr(pipe, f"text_encoder{number}", transformers.CLIPTextModel(config))
    return pipe


def test_refuses_what_the_program_would_misread(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="a1111, diffusers, comfyui, invokeai"):
        export(embedding(XL), tmp_path, "forge")
    with pytest.raises(WrongUse, match=r"for Flux: convert"):
        export(embedding({"clip_l": 768, "t5": 4096}), tmp_path, "a1111")
    with pytest.raises(WrongUse, match="clip_l and clip_h"):
        export(embedding({"clip_l": 768, "clip_h": 1024}), tmp_path, "comfyui")
    uneven = embedding(XL).with_vectors({"clip_l": torch.zeros(2, 768), "clip_g": torch.zeros(1, 1280)})
    with pytest.raises(WrongUse, match="repair it first"):
        export(uneven, tmp_path, "a1111")
    assert list(tmp_path.iterdir()) == []


def test_a_pair_is_not_half_overwritten(tmp_path: Path) -> None:
    _, second = export(embedding(XL), tmp_path, "diffusers")
    second.with_name("learned_embeds.safetensors").unlink()
    with pytest.raises(TiFixError, match=r"learned_embeds_2\.safetensors exists already"):
        export(embedding(XL), tmp_path, "diffusers")
    assert not second.with_name("learned_embeds.safetensors").exists()
    assert len(export(embedding(XL, rows=5), tmp_path, "diffusers", overwrite=True)) == 2
    assert safetensors.torch.load(second.read_bytes())["<hero>"].shape == (5, 1280)


@pytest.mark.parametrize(("name", "token"), [("cat", "<cat>"), ("<cat-toy>", "<cat-toy>"), ("<>", "<embedding>")])
def test_placeholders(name: str, token: str) -> None:
    assert placeholder(name) == token


def test_usage_names_the_file_and_the_token() -> None:
    whole = embedding(XL, name="my (hero)")
    assert "embedding:my_hero_ " in usage(whole, "comfyui")
    assert "write my (hero) in" in usage(whole, "a1111")
    assert "<my (hero)>" in usage(whole, "diffusers")


def test_exports_are_readable_by_torch_without_our_reader() -> None:
    for widths in (XL, SD1):
        data = FORMS["a1111"].files(embedding(widths), FAMILIES["sdxl" if widths is XL else "sd15"], "x")["x.pt"]
        assert torch.load(io.BytesIO(data), weights_only=True)


def test_reader_and_a1111_export_agree_on_the_name(tmp_path: Path) -> None:
    (path,) = export(embedding(SD1, name="old one"), tmp_path, "a1111")
    assert read(path).trigger == "old one"
