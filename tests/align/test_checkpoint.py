"""Models on disk: diffusers folders written by transformers, single files, damaged ones, mended copies."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from tests.align import models
from ti_fix.align import align, extra_embeddings
from ti_fix.align.check import examine
from ti_fix.align.checkpoint import read_checkpoint
from ti_fix.align.rewrite import write_repaired
from ti_fix.align.selftest import complaints
from ti_fix.align.table_checks import TABLE_CHECKS
from ti_fix.align.tokenizer_files import read_tokenizer
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, VOCABULARY_SIZE
from ti_fix.errors import TiFixError, WrongUse

LEFT = "conditioner.embedders.0.transformer.text_model.embeddings."
RIGHT = "conditioner.embedders.1.model."


def errors_of(report):
    return {o.code for o in report.outcomes if o.severity in ("warning", "error")}


def change_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_sound_folder_is_green_and_has_only_the_note_on_the_configs(sound_folder):
    model = read_checkpoint(sound_folder)
    report = align(model)
    assert (model.family, report.light) == (SDXL, "green")
    assert {o.code for o in report.outcomes if o.severity} == {"config-ids"}
    assert json.loads(json.dumps(report.as_dict()))["light"] == "green"


@pytest.mark.parametrize("spec", [CLIP_L, CLIP_G])
def test_tokenizer_files_encode_as_transformers_does(spec, sound_folder):
    place = "tokenizer" if spec is CLIP_L else "tokenizer_2"
    own, theirs = read_tokenizer(sound_folder / place), CLIPTokenizer.from_pretrained(sound_folder / place)
    for text in ("a photo of a cat", "Très joli, 100%?", "word " * 90, ""):
        assert own.pack(text) == theirs(text, padding="max_length", truncation=True)["input_ids"]
    assert (own.bos_id, own.eos_id, own.pad_id, own.max_length) == (49406, 49407, spec.pad_id, 77)


def test_slow_files_are_read_as_well(sound_folder, tmp_path):
    fast = read_tokenizer(sound_folder / "tokenizer")
    (tmp_path / "vocab.json").write_text(json.dumps(fast.tokens))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, fast.merges)) + "\n")
    settings = {"bos_token": {"content": "<|startoftext|>"}, "eos_token": "<|endoftext|>", "pad_token": "!"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 77}))
    slow = read_tokenizer(tmp_path)
    assert (slow.merges, slow.tokens, slow.pad_id) == (fast.merges, fast.tokens, 0)
    assert read_tokenizer(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"pad_token": "!"}, "special-ids"),
        ({"pad_token": None}, "special-ids"),
        ({"eos_token": "#"}, "special-ids"),
        ({"model_max_length": 76}, "id-lists"),
        ({"model_max_length": 10**30}, "id-lists"),
    ],
)
def test_a_wrong_tokenizer_setting_is_named(change, code, folder):
    change_json(folder / "tokenizer" / "tokenizer_config.json", **change)
    report = align(read_checkpoint(folder))
    assert code in errors_of(report)
    assert complaints(align(report.after)) == ()


def test_a_mended_tokenizer_is_right_for_transformers_too(folder, tmp_path):
    wrong = {"pad_token": "!", "eos_token": "#", "model_max_length": 76}
    change_json(folder / "tokenizer" / "tokenizer_config.json", **wrong)
    report = align(read_checkpoint(folder))
    write_repaired(folder, report, tmp_path / "mended")
    mended = CLIPTokenizer.from_pretrained(tmp_path / "mended" / "tokenizer")
    assert (mended.pad_token_id, mended.eos_token_id, mended.model_max_length) == (49407, 49407, 77)
    assert mended("a cat")["input_ids"] == [49406, 320, 2368, 49407]
    again = align(read_checkpoint(tmp_path / "mended"))
    assert not [o for o in again.outcomes if o.severity]


def test_a_fast_tokenizer_without_end_token_is_named(folder):
    change_json(folder / "tokenizer_2" / "tokenizer.json", post_processor=None)
    assert errors_of(align(read_checkpoint(folder))) == {"id-lists"}


def test_swapped_folders_are_named_and_not_written(folder, tmp_path):
    wide = {"text_encoder": 1280, "text_encoder_2": 768}
    for place, width in wide.items():
        save_file({"embeddings.token_embedding.weight": torch.ones(VOCABULARY_SIZE, 1).repeat(1, width).half()},
                  folder / place / "model.safetensors")  # fmt: skip
    report = examine(read_checkpoint(folder), TABLE_CHECKS[:1])
    assert errors_of(report) == {"encoders"}
    with pytest.raises(WrongUse, match="two folders"):
        write_repaired(folder, report, tmp_path / "mended")


def extend(folder):
    """As diffusers' trainer saves it: one more row, one added token, in both encoders."""
    for place, spec in models.PLACES.items():
        tokens = CLIPTokenizer.from_pretrained(folder / place.replace("text_encoder", "tokenizer"))
        tokens.add_tokens("<toy>")
        tokens.save_pretrained(folder / place.replace("text_encoder", "tokenizer"))
        module = (CLIPTextModel if spec is CLIP_L else CLIPTextModelWithProjection).from_pretrained(folder / place)
        module.resize_token_embeddings(len(tokens), mean_resizing=False)
        module.save_pretrained(folder / place)


def test_an_extended_model_is_cut_back_and_its_row_is_an_embedding(folder, tmp_path):
    before = load_file(folder / "text_encoder" / "model.safetensors")
    extend(folder)
    model = read_checkpoint(folder)
    report = align(model)
    assert {"table-rows", "config-ids"} <= errors_of(report)
    (toy,) = extra_embeddings(model)
    assert toy.name == "toy"
    rows = load_file(folder / "text_encoder" / "model.safetensors")
    assert torch.equal(toy.vectors["clip_l"], rows["embeddings.token_embedding.weight"][VOCABULARY_SIZE:])
    assert set(toy.vectors) == {"clip_l", "clip_g"}
    write_repaired(folder, report, tmp_path / "mended")
    after = load_file(tmp_path / "mended" / "text_encoder" / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[k], before[k]) for k in before)
    loaded = CLIPTextModelWithProjection.from_pretrained(tmp_path / "mended" / "text_encoder_2")
    assert loaded.config.vocab_size == VOCABULARY_SIZE
    assert loaded.config.eos_token_id == 49407
    assert (tmp_path / "mended" / "model_index.json").read_text() == "{}"
    assert not errors_of(align(read_checkpoint(tmp_path / "mended")))


def single_file(path, rows=VOCABULARY_SIZE, **extra):
    """A checkpoint's keys with narrow tables."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        LEFT + "token_embedding.weight": torch.randn(rows, 16, generator=generator).half(),
        LEFT + "position_ids": torch.arange(77)[None],
        RIGHT + "token_embedding.weight": torch.randn(rows, 24, generator=generator).half(),
        "model.diffusion_model.out.2.bias": torch.randn(4, generator=generator),
        "model.diffusion_model.odd": torch.ones(3, dtype=torch.int8),
    }
    save_file({**tensors, **extra}, path, metadata={"format": "pt"})
    return load_file(path)


def test_a_single_file_is_mended_bit_for_bit(tmp_path):
    path, out = tmp_path / "merged.safetensors", tmp_path / "mended.safetensors"
    ids = torch.arange(77, dtype=torch.float16)
    sound = single_file(tmp_path / "sound.safetensors")
    single_file(path, **{LEFT + "position_ids": (ids * 0.3 + ids * 0.7 - 0.02)[None]})
    report = align(read_checkpoint(path))
    assert errors_of(report) == {"position-ids"}
    before = path.read_bytes()
    assert write_repaired(path, report, out) == [out]
    mended = load_file(out)
    assert all(torch.equal(mended[k], v) and mended[k].dtype == v.dtype for k, v in sound.items())
    assert path.read_bytes() == before
    assert write_repaired(out, align(read_checkpoint(out)), tmp_path / "again.safetensors") == []
    with pytest.raises(WrongUse, match="itself"):
        write_repaired(path, report, path)


def test_rows_without_a_known_name_are_numbered(tmp_path):
    single_file(tmp_path / "wide.safetensors", rows=VOCABULARY_SIZE + 2)
    model = read_checkpoint(tmp_path / "wide.safetensors")
    assert [e.name for e in extra_embeddings(model)] == ["extra-1", "extra-2"]
    assert errors_of(align(model)) == {"table-rows"}


def test_only_what_matters_of_a_checkpoint_is_read(tmp_path):
    """A hole of 8 GB in the file, where the UNet lies, costs nothing."""
    path = tmp_path / "large.safetensors"
    weights = single_file(tmp_path / "small.safetensors")
    table = weights[LEFT + "token_embedding.weight"]
    size = table.numel() * 2
    name = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    header = json.dumps({
        "model.diffusion_model.x": {"dtype": "F16", "shape": [4 * 2**30], "data_offsets": [0, 8 * 2**30]},
        name: {"dtype": "F16", "shape": list(table.shape), "data_offsets": [8 * 2**30, 8 * 2**30 + size]},
    }).encode()  # fmt: skip
    with path.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.seek(8 * 2**30, 1)
        stream.write(table.numpy().tobytes())
    model = read_checkpoint(path)
    assert model.family is SD15
    assert torch.equal(model.encoders[0].table.read(), table)
    assert align(model).light == "green"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.ckpt", b"PK\x03\x04 a pickle", "no .safetensors"),
        ("b.safetensors", (10**6).to_bytes(8, "little") + b"{}", "truncated"),
        ("c.safetensors", b"\x02" + b"\0" * 7 + b"{}", "no text encoder"),
    ],
)
def test_what_is_no_model_is_said(name, content, told, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TiFixError, match=told):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    "file", ["tokenizer/tokenizer.json", "text_encoder/config.json", "tokenizer/tokenizer_config.json"]
)
def test_damaged_files_of_a_folder_end_in_a_sentence(file, folder):
    contents = [b"{", b"[1]", b"\xff\xfe", *([b'{"model": 3}'] if "tokenizer.json" in file else [])]
    for content in contents:
        (folder / file).write_bytes(content)
        with pytest.raises(TiFixError):
            read_checkpoint(folder)


def test_a_folder_without_models_is_said(tmp_path, folder):
    with pytest.raises(TiFixError, match="model_index"):
        read_checkpoint(tmp_path)
    shutil.rmtree(folder / "tokenizer")
    (folder / "text_encoder" / "model.safetensors").unlink()
    with pytest.raises(TiFixError, match="token table"):
        read_checkpoint(folder)
