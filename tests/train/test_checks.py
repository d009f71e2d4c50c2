"""What is found out about the loaded model: distilled or not, a VAE that overflows; and the order probe by pictures."""

from __future__ import annotations

import copy

import pytest
import torch
from PIL import Image

from tests.hosts.tiny_models import tiny_sdxl
from tests.train.making import TRIGGER, codes, config, done, image, model, pictures, run, said, severity
from ti_fix.embedding import SDXL
from ti_fix.errors import TiFixError
from ti_fix.hosts.standalone import Parts, StandaloneModel
from ti_fix.train import PreviewEvent, from_images
from ti_fix.train.distilled import named
from ti_fix.train.latents import LatentCache
from ti_fix.train.pictures import to_pixels
from ti_fix.train.preflight import views
from ti_fix.train.previews import recognised

# distilled checkpoints


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sd_xl_turbo_1.0_fp16.safetensors", "Turbo"),
        ("wildcardxXLTURBO_v10", "Turbo"),
        ("sdxl_lightning_4step.safetensors", "Lightning"),
        ("realvisxlV50_v50LightningBakedvae", "Lightning"),
        ("LCMScheduler", "LCM"),
        ("dreamshaper-lcm-v1", "LCM"),
        ("dreamshaperLCM_v7", "LCM"),
        ("Hyper-SDXL-merge", "Hyper-SD"),
        ("realvisxlV50_v50Hyper", "Hyper-SD"),
        ("epic_hyper_8steps", "Hyper-SD"),
        ("dmd2_sdxl_unet", "DMD"),
        ('{"type": "webui", "primary_model_name": "sdxl_TCD_lora"}', "TCD"),
        ("mymodel-8steps", "few steps"),
    ],
)
def test_names_of_distilled_models_are_known(text, kind):
    assert kind in named([text])


@pytest.mark.parametrize(
    "text",
    ["sd_xl_base_1.0.safetensors", "juggernautXL_v9", "hyperrealism_v3", "Hyper_Realistic_XL", "HyperReal",
     "realHyperrealistic_v2", "EulerDiscreteScheduler", "mybird-10000steps", "fulcmen", "animagineXL31", "ddmd2x"],
)  # fmt: skip
def test_other_names_are_left_alone(text):
    assert named([text]) == []


class Signs:
    """A world in which all is known: latents are +1 or -1, each number alone and either as likely.

    Args:
        distilled: answers with one possible picture, the likeliest, instead of the mean of all that are possible.
    """

    def __init__(self, *, distilled, described=()):
        self.distilled, self.described = distilled, described

    def __getattr__(self, name):
        return getattr(model(), name)

    def encode_images(self, pixels):
        generator = torch.Generator().manual_seed(int(pixels.double().sum() * 1000) % 2**31)
        shape = len(pixels), 4, pixels.shape[2] // 8, pixels.shape[3] // 8
        return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1

    def predict(self, noisy, timesteps, conditioning):
        signal = self.schedule.alphas_cumprod[timesteps][:, None, None, None]
        mean = torch.tanh(signal.sqrt() * noisy / (1 - signal))  # Bayes for two equally likely values
        clean = noisy.sign() if self.distilled else mean
        return (noisy - signal.sqrt() * clean) / (1 - signal).sqrt() + 0 * conditioning.context.mean()


def test_a_distilled_model_is_known_by_its_answers_and_a_denoiser_is_not():
    settings = config(steps=1, resolution=256)
    data = from_images([image(i, (256, 256)) for i in range(2)])
    assert "distilled-checkpoint" not in codes(run(settings, data, on=Signs(distilled=False)))
    events = run(settings, data, on=Signs(distilled=True))
    assert "answers like one" in said(events, "distilled-checkpoint") and done(events).step == 1
    assert severity(events, "distilled-checkpoint") == "note", "strange pictures have it too"


def test_name_and_answers_together_warn():
    settings = config(steps=1, resolution=256)
    data = from_images([image(i, (256, 256)) for i in range(2)])
    events = run(settings, data, on=Signs(distilled=True, described=("my_turbo.safetensors",)))
    assert "(Turbo) and by its answers" in said(events, "distilled-checkpoint")
    assert severity(events, "distilled-checkpoint") == "warning"


def test_a_name_alone_warns_and_tells_when_the_answers_do_not_agree():
    told = said(
        run(config(steps=1), on=Signs(distilled=False, described=("my_turbo.safetensors",))), "distilled-checkpoint"
    )
    assert "(Turbo)" in told and "much like an ordinary model" in told


def test_a_checkpoint_tells_its_name_and_its_merge_recipe(tmp_path):
    from safetensors.torch import load_file, save_file

    from ti_fix.hosts.standalone.checkpoint import _read

    save_file(
        {"a": torch.ones(1)}, tmp_path / "x.safetensors", metadata={"sd_merge_recipe": '{"secondary": "lcm-lora"}'}
    )
    weights, told = _read(tmp_path / "x.safetensors", torch.float32)
    assert weights == load_file(tmp_path / "x.safetensors") and named(told) == ["LCM"]
    parts = tiny_sdxl()
    given = Parts(family=SDXL, unet=parts.unet, vae=parts.vae, text_encoders=parts.text_encoders,
                  scheduler_config=parts.scheduler_config, described=("sdxl_lightning.safetensors",))  # fmt: skip
    assert "(Lightning)" in said(run(config(steps=1), on=StandaloneModel(given)), "distilled-checkpoint")


# a VAE that overflows


def overflowing():
    """A VAE in half precision whose first layer leaves the range of half precision, as SDXL's own does further in."""
    parts = copy.deepcopy(tiny_sdxl())
    with torch.no_grad():
        parts.vae.encoder.conv_in.weight.mul_(1e5 / parts.vae.encoder.conv_in.weight.abs().max())
        parts.vae.half()
        parts.vae.encoder.conv_in.weight.clamp_(-60000, 60000)
    return parts


def test_a_vae_that_overflows_is_run_wider_and_given_back():
    parts = overflowing()
    before = {name: tensor.clone() for name, tensor in parts.vae.state_dict().items()}
    pixels = to_pixels(image(0))
    assert not StandaloneModel(parts).encode_images(pixels).isfinite().all()
    cache = LatentCache(config(), StandaloneModel(parts), pictures(1).samples)
    found = cache.get(views(0, (64, 64), 64, square=True, scales=(1.0,), flip=False)[0]).latents
    wider = copy.deepcopy(parts.vae).bfloat16()
    with torch.no_grad():
        expected = wider.encode(pixels.bfloat16()).latent_dist.mean * wider.config.scaling_factor
    assert cache.precision == "bfloat16" and torch.equal(found, expected.float()) and found.isfinite().all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in parts.vae.state_dict().items())
    assert {tensor.dtype for tensor in parts.vae.parameters()} == {torch.float16}


def test_the_run_tells_it_in_words():
    events = run(config(steps=1), on=StandaloneModel(overflowing()))
    assert "encoded in bfloat16" in said(events, "vae-precision") and done(events).step == 1
    assert "vae-precision" not in codes(run(config(steps=1)))


def test_float32_is_the_last_resort_and_is_kept():
    class Stubborn:
        asked: list[str] = []  # noqa: RUF012

        def encode_images(self, pixels):
            return model().encode_images(pixels) * float("nan")

        def encode_images_in(self, pixels, precision):
            self.asked.append(precision)
            return model().encode_images(pixels) * (1.0 if precision == self.works else float("nan"))

    loaded = Stubborn()
    loaded.works = "float32"
    cache = LatentCache(config(), loaded, pictures(2).samples)
    for i in range(2):
        cache.get(views(i, (64, 64), 64, square=True, scales=(1.0,), flip=False)[0])
    assert cache.precision == "float32" and loaded.asked == ["bfloat16", "float32", "float32", "float32"]
    loaded.works = "none"
    with pytest.raises(TiFixError, match="NaN, also in float32"):
        LatentCache(config(), loaded, pictures(1).samples)


# the order probe by pictures

SCENES = ("on red", "on green", "on blue")


class Drawing:
    """A host that draws the scene of a prompt as a colour, behind something; vectors longer than 10 drown it."""

    def __init__(self, blind=False):
        self.prompts, self.blind = [], blind

    def __call__(self, request):
        self.prompts.append(request.prompt)
        long = any(float(block.norm()) > 10 for e in request.embeddings for block in e.vectors.values())
        colours = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
        scene = next((rgb for word, rgb in colours.items() if word in request.prompt), (90, 90, 90))
        found = Image.new("RGB", (64, 64), (90, 90, 90) if long or self.blind else scene)
        found.paste((250, 250, 250) if TRIGGER in request.prompt else (0, 0, 0), (20, 20, 44, 44))
        return found


def probed(drawing, **changes):
    settings = config(steps=2, probe_every=1, probe_scenes=SCENES, **changes)
    return run(settings, generate=drawing)


def test_scenes_that_come_through_are_a_note():
    drawing = Drawing()
    events = probed(drawing)
    told = said(events, "order-probe-pictures")
    assert "3 of 3 show their scene (with filler words in place of the vectors: 3)" in told
    assert not [e for e in events if hasattr(e, "finding") and e.finding.code == "order-probe-pictures"
                and e.finding.severity != "note"]  # fmt: skip
    # the reference and the control are drawn once, the control with as many filler words as vectors
    assert drawing.prompts[:7] == [
        *(f"a photo {s}" for s in SCENES), *(f"a photo of a a {s}" for s in SCENES), f"a photo of {TRIGGER} on red",
    ]  # fmt: skip
    assert len(drawing.prompts) == 3 + 3 + 2 * 3


def test_vectors_that_drown_the_scene_are_a_warning():
    events = probed(Drawing(), learning_rate="1e3")
    (first, *_) = [e for e in events if hasattr(e, "finding") and e.finding.code == "order-probe-pictures"]
    assert first.finding.severity == "warning" and first.remedy == {"optimiser": "direction"}
    assert "0 of 3" in first.finding.message


def test_a_model_that_cannot_draw_the_scenes_is_not_held_against_the_vectors():
    told = said(probed(Drawing(blind=True)), "order-probe-pictures")
    assert "too weakly" in told and "drown" not in told


def test_a_probe_that_fails_does_not_end_the_run():
    def fails(request):
        raise RuntimeError("no")

    events = probed(fails, preview_every=2)
    assert {"order-probe-failed", "preview-failed"} <= set(codes(events)) and done(events).step == 2
    assert not [e for e in events if isinstance(e, PreviewEvent)]


def test_the_probe_changes_no_vector():
    one, other = done(probed(Drawing())).embedding.vectors, done(run(config(steps=2))).embedding.vectors
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_recognition_is_by_what_tells_scenes_apart():
    scenes = torch.eye(4)
    assert recognised(scenes * 0.5 + 3, scenes) == 4
    assert recognised(scenes[[1, 0, 2, 3]], scenes) == 2
    assert recognised(torch.ones(4, 4), scenes) == 0
