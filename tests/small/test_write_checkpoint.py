"""Written models load through diffusers' own readers and through ours, with every weight where it belongs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors import safe_open
from safetensors.torch import save_file

from tests.hosts.tiny_models import Small, small
from tests.small import test_expand
from ti_fix.embedding import SD15, SDXL
from ti_fix.errors import TiFixError, UnreadableFile, WrongUse
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, load_checkpoint, load_folder, parts_of_small
from ti_fix.protocols import ImageRequest
from ti_fix.small.host_yaml import webui_config
from ti_fix.small.write_checkpoint import _write_webui_files, checkpoint_weights, write_demo_model

ASK = ImageRequest(prompt="a (red:1.2) tower", width=64, height=64, steps=4, cfg_scale=4.0, seed=3)


@cache
def wide(name: str) -> Small:
    parts = test_expand.wide(name)
    return replace(small(name), unet=parts.unet, vae=parts.vae, text_encoders=parts.text_encoders)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """name and layout -> the written file or folder; each is written once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def write(name: str, layout: str) -> Path:
        out = folder / f"{name}-{layout}" / ("" if layout == "diffusers" else "model.safetensors")
        paths = write_demo_model(small(name), layout, out)
        assert all(path.is_file() for path in paths)
        return out

    return write


def picture(parts: Any) -> Any:
    return np.asarray(StandaloneHost(StandaloneModel(parts)).generate(ASK), dtype=int)


def assert_nearly_the_same_picture(found: Any, name: str) -> None:
    """Half precision rounds the divided columns by up to 1 / 4096: a level or two of 255 after four steps."""
    expected = picture(parts_of_small(small(name)))
    assert expected.std() > 5
    assert np.abs(found - expected).mean() < 1


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_our_reader_finds_every_weight_and_the_same_picture(name: str, written: Any) -> None:
    loaded = load_checkpoint(written(name, "forge"))
    assert loaded.family == (SDXL if name == "sdxl" else SD15)
    assert_same_weights(loaded, wide(name))
    assert_nearly_the_same_picture(picture(loaded), name)


def assert_same_weights(loaded: Any, model: Any) -> None:
    pairs = [(loaded.unet, model.unet), (loaded.vae, model.vae)]
    pairs += [(loaded.text_encoders[key], encoder) for key, encoder in model.text_encoders.items()]
    for found, expected in pairs:
        weights = found.state_dict()
        assert set(weights) == set(expected.state_dict())
        for key, weight in expected.state_dict().items():
            assert torch.equal(weights[key], weight.half().float()), key


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_diffusers_own_reader_finds_every_weight(name: str, written: Any) -> None:
    """The independent reference for the checkpoint names; it takes sizes from the folder written for Forge."""
    path = written(name, "forge")
    cls = StableDiffusionXLPipeline if name == "sdxl" else StableDiffusionPipeline
    pipeline = cls.from_single_file(path, config=str(path.with_suffix("")), local_files_only=True)
    encoders = {"clip_l": pipeline.text_encoder}
    if name == "sdxl":
        encoders["clip_g"] = pipeline.text_encoder_2
    found = Small(
        family=name, unet=pipeline.unet, vae=pipeline.vae, text_encoders=encoders, tokenizers={}, scheduler={}
    )
    assert_same_weights(found, wide(name))


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_a_diffusers_folder_loads_in_the_stock_pipeline(name: str, written: Any) -> None:
    folder = written(name, "diffusers")
    pipeline = DiffusionPipeline.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    assert pipeline.vae.config.scaling_factor == {"sdxl": 0.13025, "sd15": 0.18215}[name]
    image = pipeline("a tower", width=64, height=64, num_inference_steps=2).images[0]
    assert image.size == (64, 64)
    assert_nearly_the_same_picture(picture(load_folder(folder)), name)


OFFLINE = """
import socket, sys
from pathlib import Path

def refuse(*_args, **_kwargs):
    raise SystemExit("the network was used")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, load_checkpoint, load_folder
from ti_fix.protocols import ImageRequest
ask = ImageRequest(prompt="a tower", width=64, height=64, steps=1)
for load, path in ((load_checkpoint, sys.argv[1]), (load_folder, sys.argv[2])):
    StandaloneHost(StandaloneModel(load(Path(path)))).generate(ask)
"""


def test_loading_asks_nobody_even_where_that_is_allowed(written: Any) -> None:
    paths = [str(written("sd15", layout)) for layout in ("a1111", "diffusers")]
    allowed = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, *paths], env=allowed, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_v_prediction_and_zero_terminal_snr_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    save_file({k: v.clone() for k, v in checkpoint_weights(small("sd15-v")).items()}, path)
    schedule = StandaloneModel(load_checkpoint(path)).schedule
    assert schedule.prediction_type == "v_prediction" and schedule.alphas_cumprod[-1] == pytest.approx(0, abs=1e-6)
    assert load_checkpoint(path, prediction_type="epsilon").scheduler_config["prediction_type"] == "epsilon"
    for name, kind in (("sdxl", "Eps"), ("sdxl-v", "V")):
        told = json.dumps(webui_config(small(name), clip_l=Path("l"), bigg=Path("g.json")))
        assert f"{kind}Scaling" in told


def test_sizes_are_those_that_hosts_recognise(written: Any) -> None:
    with safe_open(written("sdxl", "forge"), framework="pt") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        types = {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
    assert types == {"F16"}
    assert shapes["conditioner.embedders.0.transformer.text_model.embeddings.token_embedding.weight"] == (49408, 768)
    assert shapes["conditioner.embedders.1.model.token_embedding.weight"] == (49408, 1280)
    assert shapes["conditioner.embedders.1.model.text_projection"] == (1280, 1280)
    assert shapes["conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_weight"] == (3840, 1280)
    assert shapes["model.diffusion_model.label_emb.0.0.weight"][1] == 2816
    assert shapes["model.diffusion_model.middle_block.1.transformer_blocks.0.attn2.to_k.weight"][1] == 2048
    assert shapes["first_stage_model.encoder.mid.attn_1.q.weight"] == (128, 128, 1, 1)


def test_the_yaml_points_to_what_stands_beside_it(tmp_path: Path) -> None:
    files = _write_webui_files(wide("sdxl"), tmp_path / "demo.safetensors", tmp_path / "demo")
    assert tmp_path / "demo.yaml" in files
    params = json.loads((tmp_path / "demo.yaml").read_text(encoding="utf-8"))["model"]["params"]
    clip_l, bigg, *_ = params["conditioner_config"]["params"]["emb_models"]
    folder = Path(clip_l["params"]["version"])
    assert folder.is_absolute() and (folder / "vocab.json").is_file()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["hidden_size"] == 768
    assert clip_l["params"]["layer_idx"] == config["num_hidden_layers"] - 1
    tower = Path(params["sampler_config"]["params"]["path"])
    assert tower.is_file() and tower.stem == bigg["params"]["arch"]


def test_a_webui_gets_the_file_with_its_yaml(written: Any) -> None:
    path = written("sd15", "a1111")
    assert load_checkpoint(path).family == SD15
    params = json.loads(path.with_suffix(".yaml").read_text(encoding="utf-8"))["model"]["params"]
    assert params["unet_config"]["params"]["context_dim"] == 768
    assert (Path(params["cond_stage_config"]["params"]["version"]) / "merges.txt").is_file()


def test_text_is_the_same_in_both_forms(written: Any) -> None:
    """Text encoders hold no divided weights, so half precision loses what it lost in the small form, no more."""
    loaded = load_checkpoint(written("sdxl", "forge")).text_encoders["clip_g"].state_dict()
    packed = small("sdxl").text_encoders["clip_g"].state_dict()
    table = "text_model.embeddings.token_embedding.weight"
    assert torch.equal(loaded[table][:, 64:128], packed[table].half().float())


@pytest.mark.parametrize(("layout", "out"), [("comfy", "x.safetensors"), ("a1111", "x.ckpt"), ("forge", "x")])
def test_wrong_layouts_and_names_are_refused(layout: str, out: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse):
        write_demo_model(small("sd15"), layout, tmp_path / out)
    assert not list(tmp_path.iterdir())


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UnreadableFile):
        load_checkpoint(path)
    save_file({"clip_l": torch.zeros(1, 768)}, path)
    with pytest.raises(TiFixError, match="no text encoder"):
        load_checkpoint(path)
    save_file({"cond_stage_model.model.ln_final.weight": torch.zeros(1)}, path)
    with pytest.raises(TiFixError, match=r"SD 2\.x"):
        load_checkpoint(path)
    weights = checkpoint_weights(wide("sd15"))
    del weights["model.diffusion_model.out.2.weight"]
    save_file({k: v.contiguous() for k, v in weights.items()}, path)
    with pytest.raises(TiFixError, match=r"lacks 'out\.2\.weight'"):
        load_checkpoint(path)
