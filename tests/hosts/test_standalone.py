"""The standalone host against the stock diffusers pipelines over the same modules."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler
from transformers import CLIPTokenizer

from tests.hosts.tiny_models import clip_tokenizer, sd15_pipeline, sdxl_pipeline, tiny_sd15, tiny_sdxl
from ti_fix.embedding import SD15, SDXL, Embedding, Family
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel
from ti_fix.hosts.standalone.load import load_folder
from ti_fix.hosts.standalone.sample import noise_schedule
from ti_fix.protocols import ImageRequest, Sizes
from ti_fix.small.tokenizer_files import write_tokenizer
from ti_fix.tokenizer import encode

PROMPTS = ("", "a red tower at night", "Émile's café, 3 boats: fine", "boat " * 75)
SIZE = Sizes(original=(96, 64), crop=(8, 4), target=(64, 80))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_sdxl_prompts_are_encoded_as_the_pipeline_does(prompt: str) -> None:
    pipeline = sdxl_pipeline(tiny_sdxl())
    with torch.no_grad():
        context, _, pooled, _ = pipeline.encode_prompt(prompt, do_classifier_free_guidance=False)
        ours = StandaloneModel(tiny_sdxl()).encode_prompts([prompt], {}, [SIZE])
    torch.testing.assert_close(ours.context, context, rtol=1e-5, atol=1e-5)
    assert ours.vector is not None
    torch.testing.assert_close(ours.vector[:, :64], pooled, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_sd15_prompts_are_encoded_as_the_pipeline_does(prompt: str) -> None:
    pipeline = sd15_pipeline(tiny_sd15())
    with torch.no_grad():
        context, _ = pipeline.encode_prompt(prompt, "cpu", 1, False)
        ours = StandaloneModel(tiny_sd15()).encode_prompts([prompt], {}, [SIZE])
    torch.testing.assert_close(ours.context, context, rtol=1e-5, atol=1e-5)
    assert ours.vector is None


def test_clip_skip_2_is_an_encoder_without_its_last_layer() -> None:
    parts = tiny_sd15()
    shorter = copy.deepcopy(parts.text_encoders["clip_l"])
    del shorter.encoder.layers[-1]
    shortened = dataclasses.replace(parts, text_encoders={"clip_l": shorter})
    with torch.no_grad():
        skipped = StandaloneModel(parts, clip_skip=2).encode_prompts(["a red tower"], {}, [SIZE]).context
        expected = StandaloneModel(shortened).encode_prompts(["a red tower"], {}, [SIZE]).context
    torch.testing.assert_close(skipped, expected, rtol=1e-5, atol=1e-5)


def test_sizes_and_pooled_text_reach_the_unet_as_in_the_pipeline() -> None:
    parts = tiny_sdxl()
    model = StandaloneModel(parts)
    noisy = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = model.encode_prompts(["a red tower"], {}, [SIZE])
        assert ours.vector is not None
        added = {"text_embeds": ours.vector[:, :64], "time_ids": torch.tensor([[96.0, 64, 8, 4, 64, 80]])}
        expected = parts.unet(noisy, torch.tensor([321]), ours.context, added_cond_kwargs=added).sample
        predicted = model.predict(noisy, torch.tensor([321]), ours)
    torch.testing.assert_close(predicted, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("negative", ["", "blurry, grey"])
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_sdxl_pictures_are_those_of_the_pipeline(prediction_type: str, negative: str) -> None:
    parts = tiny_sdxl(prediction_type)
    request = ImageRequest(
        prompt="a red tower", negative_prompt=negative, width=64, height=128, steps=5, cfg_scale=4.0, seed=11
    )
    pipeline = sdxl_pipeline(parts)
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        request.prompt,
        negative_prompt=negative or None,
        width=64,
        height=128,
        num_inference_steps=5,
        guidance_scale=4.0,
        generator=torch.Generator().manual_seed(11),
    ).images[0]
    assert_pictures_equal(StandaloneHost(StandaloneModel(parts)).generate(request), expected)


def test_sd15_pictures_are_those_of_the_pipeline() -> None:
    request = ImageRequest(prompt="a red tower", width=64, height=64, steps=5, cfg_scale=4.0, seed=11)
    pipeline = sd15_pipeline(tiny_sd15())
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        request.prompt,
        width=64,
        height=64,
        num_inference_steps=5,
        guidance_scale=4.0,
        generator=torch.Generator().manual_seed(11),
    ).images[0]
    assert_pictures_equal(StandaloneHost(StandaloneModel(tiny_sd15())).generate(request), expected)


def assert_pictures_equal(ours: Any, expected: Any) -> None:
    """One level of 255 apart at most: both round, after sums in another order."""
    difference = np.abs(np.asarray(ours, dtype=int) - np.asarray(expected, dtype=int))
    assert ours.size == expected.size and difference.max() <= 1
    assert np.asarray(ours).std() > 5


def test_a_loaded_embedding_acts_as_in_the_stock_pipeline() -> None:
    """diffusers adds the vectors to the token table and to the tokenizer; splicing must give the same states."""
    generator = torch.Generator().manual_seed(1)
    vectors = {key: torch.randn(3, 64, generator=generator) * 0.05 for key in ("clip_l", "clip_g")}
    prompt = "a boat of <zqx> at night"
    with torch.no_grad():
        ours = StandaloneModel(tiny_sdxl()).encode_prompts([prompt], {"<zqx>": vectors}, [SIZE])
    pipeline = copy.deepcopy(sdxl_pipeline(tiny_sdxl()))
    for key, number in (("clip_l", ""), ("clip_g", "_2")):
        pipeline.load_textual_inversion(
            vectors[key],
            token="<zqx>",
            text_encoder=getattr(pipeline, f"text_encoder{number}"),
            tokenizer=getattr(pipeline, f"tokenizer{number}"),
        )
    with torch.no_grad():
        context, _, pooled, _ = pipeline.encode_prompt(prompt, do_classifier_free_guidance=False)
    torch.testing.assert_close(ours.context, context, rtol=1e-5, atol=1e-5)
    assert ours.vector is not None
    torch.testing.assert_close(ours.vector[:, :64], pooled, rtol=1e-5, atol=1e-5)


def test_uneven_rows_leave_token_0_as_the_hosts_do() -> None:
    model = StandaloneModel(tiny_sdxl())
    tables = model.vocabulary().tables
    uneven = {"clip_l": tables["clip_l"][[100]], "clip_g": tables["clip_g"][[200, 300]]}
    filled = {"clip_l": tables["clip_l"][[100, 0]], "clip_g": tables["clip_g"][[200, 300]]}
    with torch.no_grad():
        a, b = (model.encode_prompts(["a zqx boat"], {"zqx": t}, [SIZE]).context for t in (uneven, filled))
    torch.testing.assert_close(a, b)


def test_vectors_of_another_width_are_refused() -> None:
    model = StandaloneModel(tiny_sdxl())
    wide = {"zqx": {"clip_l": torch.zeros(1, 768), "clip_g": torch.zeros(1, 1280)}}
    with pytest.raises(WrongUse, match="768 wide, this model's are 64"):
        model.encode_prompts(["a zqx"], wide, [SIZE])
    # and the token table is as before
    assert torch.isfinite(model.encode_prompts(["a zqx"], {}, [SIZE]).context).all()


def test_emphasis_restores_the_mean_of_its_chunk() -> None:
    model = StandaloneModel(tiny_sdxl())
    with torch.no_grad():
        plain = model.encode_prompts(["a tower"], {}, [SIZE]).context
        strong = model.encode_prompts(["a (tower:1.4)"], {}, [SIZE]).context
    for part in (slice(0, 64), slice(64, 128)):  # L and G are scaled apart
        expected = plain[..., part].clone()
        expected[:, 2] *= 1.4
        expected *= plain[..., part].mean() / expected.mean()
        torch.testing.assert_close(strong[..., part], expected, rtol=1e-5, atol=1e-6)


def test_folders_and_requests_bring_embeddings(tmp_path: Path) -> None:
    model = StandaloneModel(tiny_sdxl())
    known = model.vocabulary()
    word = {key: table[known.tokenize("tower")].clone() for key, table in known.tables.items()}
    on_disk: list[Embedding] = []
    host = StandaloneHost(model, embedding_folders=[tmp_path], read_folder=lambda folder: on_disk)
    ask = ImageRequest(prompt="a zqx", width=64, height=64, steps=2, cfg_scale=3.0)
    without = np.asarray(host.generate(ask))
    on_disk.append(Embedding(name="zqx", vectors=word))
    assert np.array_equal(np.asarray(host.generate(ask)), without)
    host.refresh_embeddings()
    expected = host.generate(dataclasses.replace(ask, prompt="a tower"))
    assert_pictures_equal(host.generate(ask), expected)
    own = Embedding(name="zqx", vectors={key: -block for key, block in word.items()})
    assert not np.array_equal(np.asarray(host.generate(dataclasses.replace(ask, embeddings=(own,)))), expected)


def test_fit_is_applied_to_every_embedding(tmp_path: Path) -> None:
    def halve(embedding: Embedding) -> Embedding:
        return embedding.with_vectors({k: v[:, :64] for k, v in embedding.vectors.items()})

    wide = Embedding(name="zqx", vectors={"clip_l": torch.ones(1, 128), "clip_g": torch.ones(1, 128)})
    host = StandaloneHost(
        StandaloneModel(tiny_sdxl()), embedding_folders=[tmp_path], read_folder=lambda folder: [wide], fit=halve
    )
    ask = ImageRequest(prompt="a zqx", width=64, height=64, steps=1)
    assert host.generate(ask) == host.generate(dataclasses.replace(ask, embeddings=(wide,)))


def test_many_pictures_are_the_single_ones_in_order() -> None:
    host = StandaloneHost(StandaloneModel(tiny_sdxl()))
    small = ImageRequest(prompt="a tower", width=64, height=64, steps=2, cfg_scale=3.0, seed=1)
    asked = [
        small,
        dataclasses.replace(small, prompt="a boat BREAK at night", seed=2),
        dataclasses.replace(small, width=128),
        dataclasses.replace(small, prompt="a red boat", seed=3),
    ]
    for together, request in zip(host.generate_many(asked), asked, strict=True):
        assert_pictures_equal(together, host.generate(request))


def test_impossible_sizes_are_refused() -> None:
    host = StandaloneHost(StandaloneModel(tiny_sdxl()))
    with pytest.raises(WrongUse, match="multiples of 8"):
        host.generate(ImageRequest(prompt="a tower", width=60, height=64, steps=1))


def test_encoding_a_picture_is_the_posteriors_mean_in_the_models_scale() -> None:
    parts = tiny_sdxl()
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    model = StandaloneModel(parts)
    with torch.no_grad():
        expected = parts.vae.encode(picture).latent_dist.mean * 0.5
        restored = parts.vae.decode(expected / 0.5).sample.clamp(-1, 1)
    torch.testing.assert_close(model.encode_images(picture), expected)
    torch.testing.assert_close(model.decode_latents(expected), restored)


def test_the_schedule_is_the_schedulers() -> None:
    schedule = StandaloneModel(tiny_sdxl("v_prediction")).schedule
    reference = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    torch.testing.assert_close(schedule.alphas_cumprod, reference.alphas_cumprod)
    assert schedule.prediction_type == "v_prediction"
    zero = noise_schedule({"prediction_type": "v_prediction", "rescale_betas_zero_snr": True})
    assert zero.alphas_cumprod[-1] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("family", [SDXL, SD15])
def test_a_diffusers_folder_gives_the_same_picture(family: Family, tmp_path: Path) -> None:
    parts, pipeline = (tiny_sdxl(), sdxl_pipeline) if family == SDXL else (tiny_sd15(), sd15_pipeline)
    pipeline(parts).save_pretrained(tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.family == family
    request = ImageRequest(prompt="a red tower", width=64, height=64, steps=2, cfg_scale=3.0)
    assert StandaloneHost(StandaloneModel(loaded)).generate(request) == StandaloneHost(StandaloneModel(parts)).generate(
        request
    )


def test_half_precision_folders_are_found(tmp_path: Path) -> None:
    pipeline = copy.deepcopy(sd15_pipeline(tiny_sd15())).to(torch.float16)
    pipeline.save_pretrained(tmp_path, variant="fp16")
    loaded = load_folder(tmp_path)
    assert next(loaded.unet.parameters()).dtype == torch.float32


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TiFixError, match=r"model_index\.json"):
        load_folder(tmp_path)


def test_tokenizer_files_read_back(tmp_path: Path) -> None:
    for key, pad in (("clip_l", 49407), ("clip_g", 0)):
        written = write_tokenizer(clip_tokenizer(key), tmp_path / key)
        assert all(path.is_file() for path in written)
        again = CLIPTokenizer.from_pretrained(tmp_path / key, local_files_only=True)
        assert again.pad_token_id == pad
        for prompt in PROMPTS:
            assert again(prompt).input_ids[1:-1] == encode(prompt)
