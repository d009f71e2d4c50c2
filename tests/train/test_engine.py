"""Whole steps on a tiny SDXL model, against diffusers' own loss and against finite differences."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from diffusers import DDPMScheduler

from tests.hosts.tiny_models import tiny_sdxl
from tests.train.making import TRIGGER, codes, config, done, fingerprint, losses, model, pictures, run, same, sd15
from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel
from ti_fix.protocols import ImageRequest, Sizes
from ti_fix.train import PrepareEvent
from ti_fix.train.distributed import Group
from ti_fix.train.engine import Engine
from ti_fix.train.initial import start_vectors, statistics
from ti_fix.train.latents import LatentCache
from ti_fix.train.objective import objective
from ti_fix.train.optimise import optimiser
from ti_fix.train.preflight import plan
from ti_fix.train.selftest import check_gradient
from ti_fix.train.state import new_state
from ti_fix.ui.train_live import STAGES


def engine_of(settings, on, data=None):
    """An engine and its state, as the loop makes them; to be used inside `trainable()`."""
    data = data or pictures()
    about = statistics(on.vocabulary())
    work = plan(settings, on, data, about)
    start = start_vectors(settings, on.vocabulary(), on.family, about)
    cache = LatentCache(settings, on, data.samples)
    made = Engine(settings, on, objective(settings, on.schedule), about, cache, work.prompts, work.training, Group())
    return made, new_state(start, optimiser(settings, start, about), made.first_scale()), work


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_the_loss_is_diffusers(prediction):
    """The same latents, noise and text through the modules by hand, with diffusers' scheduler."""
    loaded = model(prediction)
    parts = tiny_sdxl(prediction)
    scheduler = DDPMScheduler(**parts.scheduler_config)
    settings = config(template="a photo of [name] at night")
    with loaded.trainable(), torch.no_grad():
        engine, state, _ = engine_of(settings, loaded)
        batch = engine.batch(1, 0)
        ours = engine.losses(batch, state.vectors)
        words = loaded.encode_prompts(["a photo of red tower at night"] * 2, {}, batch.sizes)
        noisy = scheduler.add_noise(batch.latents, batch.noise, batch.timesteps)
        size = words.vector.shape[1] - 6 * 256
        ids = torch.tensor([[*s.original, *s.crop, *s.target] for s in batch.sizes], dtype=torch.float32)
        added = {"text_embeds": words.vector[:, :size], "time_ids": ids}
        output = parts.unet(noisy, batch.timesteps, words.context, added_cond_kwargs=added).sample
    velocity = scheduler.get_velocity(batch.latents, batch.noise, batch.timesteps)
    target = batch.noise if prediction == "epsilon" else velocity
    torch.testing.assert_close(ours, (output - target).square().mean(dim=(1, 2, 3)), rtol=1e-5, atol=1e-6)


def test_gradients_agree_with_central_differences():
    """In double precision, number by number, within 1e-3."""
    parts = copy.deepcopy(tiny_sdxl())
    for module in (parts.unet, *parts.text_encoders.values()):
        module.double()
    loaded = StandaloneModel(parts)
    with loaded.trainable():
        engine, state, _ = engine_of(config(), loaded)
        single = engine.batch(1, 0)
        batch = replace(single, latents=single.latents.double(), noise=single.noise.double())
        vectors = {key: block.detach().double().requires_grad_() for key, block in state.vectors.items()}
        gradients = torch.autograd.grad(engine.losses(batch, vectors).mean(), list(vectors.values()))
        for (key, block), gradient in zip(vectors.items(), gradients, strict=True):
            strongest = int(gradient.abs().argmax())
            for place in (strongest, 0, block.numel() - 1):
                ends = []
                for sign in (1, -1):
                    moved = block.detach().clone()
                    moved.view(-1)[place] += sign * 1e-4
                    with torch.no_grad():
                        ends.append(float(engine.losses(batch, {**vectors, key: moved}).double().mean()))
                measured = (ends[0] - ends[1]) / 2e-4
                assert measured == pytest.approx(float(gradient.view(-1)[place]), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("optimiser", ["adamw", "direction", "prodigy"])
def test_only_the_vectors_change_and_every_row_does(optimiser):
    loaded = model()
    before = fingerprint(loaded)
    rate = "1" if optimiser == "prodigy" else "1e-2"
    events = run(config(vectors=3, optimiser=optimiser, learning_rate=rate))
    assert fingerprint(loaded) == before
    about = statistics(loaded.vocabulary())
    start = start_vectors(config(vectors=3), loaded.vocabulary(), loaded.family, about)
    for key, block in done(events).embedding.vectors.items():
        assert block.dtype == torch.float32 and block.shape == start[key].shape
        assert bool((block - start[key]).norm(dim=1).gt(0).all()), key
    assert all(p.grad is None for p in loaded.unet.parameters())


def test_sd15_learns_too():
    events = run(config(vectors=2), on=sd15())
    found = done(events).embedding
    assert set(found.vectors) == {"clip_l"} and len(losses(events)) == 3


def test_the_loss_falls_on_one_picture():
    settings = config(steps=16, batch_size=1, learning_rate="5e-2", validate_every=8, validation_timesteps=4)
    events = run(settings, pictures(1))
    fixed = [e.loss for e in events if type(e).__name__ == "ValidationEvent"]
    assert fixed[-1] < fixed[0] - 0.01 and min(fixed) == fixed[-1]


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    one, two, other = (run(config(seed=seed)) for seed in (1, 1, 2))
    assert same(done(one), done(two)) and losses(one) == losses(two)
    assert not same(done(one), done(other))


def test_other_users_of_random_numbers_change_nothing():
    def generate(request):
        torch.manual_seed(5)
        return torch.rand(3)

    quiet = run(config(steps=4))
    torch.manual_seed(99)
    watched = run(config(steps=4, preview_every=2), generate=generate)
    assert sum(type(e).__name__ == "PreviewEvent" for e in watched) == 2
    assert same(done(quiet), done(watched))


def test_a_preview_under_inference_mode_does_not_stop_training():
    loaded = model()
    size = Sizes(original=(64, 64), target=(64, 64))

    def generate(request):
        with torch.inference_mode():
            return loaded.encode_prompts([request.prompt], {e.name: e.vectors for e in request.embeddings}, [size])

    events = run(config(steps=4, preview_every=2), generate=generate)
    assert same(done(events), done(run(config(steps=4))))


def test_a_failed_preview_is_a_warning():
    def generate(request):
        raise RuntimeError("no picture today")

    events = run(config(steps=2, preview_every=1), generate=generate)
    assert codes(events).count("preview-failed") == 2
    assert same(done(events), done(run(config(steps=2))))


def test_accumulation_is_a_larger_batch():
    """Two passes of one picture are one pass of two, when the rows are the same."""
    loaded = model()
    with loaded.trainable():
        engine, state, _ = engine_of(config(batch_size=1, accumulate=2), loaded)
        parts = [engine.batch(1, part) for part in (0, 1)]
        together, _, _ = engine._gradients(state, 1, 1.0)
        singles = [
            torch.autograd.grad(engine.losses(part, state.vectors).mean(), list(state.vectors.values()))
            for part in parts
        ]
        for i, key in enumerate(state.vectors):
            torch.testing.assert_close(together[key], (singles[0][i] + singles[1][i]) / 2)


def test_a_loss_factor_cancels_bit_for_bit():
    """Factors are powers of two, so scaling up and down again changes nothing in single precision."""
    loaded = model()
    with loaded.trainable():
        engine, state, _ = engine_of(config(), loaded)
        plain, scaled = (engine._gradients(state, 1, scale)[0] for scale in (1.0, 2.0**12))
    for key in plain:
        torch.testing.assert_close(plain[key], scaled[key], rtol=1e-5, atol=1e-9)


def half(parts, dtype):
    parts = copy.deepcopy(parts)
    for module in (parts.unet, *parts.text_encoders.values()):
        module.to(dtype)
    return StandaloneModel(parts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_train_full_precision_vectors(dtype):
    loaded = half(tiny_sdxl(), dtype)
    with loaded.trainable():
        engine, state, _ = engine_of(config(), loaded)
        assert engine.first_scale() == (4096.0 if dtype == torch.float16 else 1.0)
        found = engine._gradients_in_range(state, 1)[0]
        if dtype == torch.float16:
            check_gradient(engine, engine.batch(1, 0), state.copy_of_vectors())
    full = model()
    with full.trainable():
        reference, other, _ = engine_of(config(), full)
        expected = reference._gradients(other, 1, 1.0)[0]
    for key, block in state.vectors.items():
        assert block.dtype == torch.float32 and found[key].dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(found[key].flatten(), expected[key].flatten(), dim=0)
        assert float(cosine) > 0.98


def test_an_underflowing_gradient_is_scaled_until_it_arrives():
    """A UNet whose output hardly depends on the text: in half precision the unscaled gradient is zero."""
    parts = copy.deepcopy(tiny_sdxl())
    with torch.no_grad():
        parts.unet.conv_out.weight.mul_(1e-6)
    loaded = half(parts, torch.float16)
    with loaded.trainable():
        engine, state, _ = engine_of(config(), loaded)
        plain = engine._gradients(state, 1, 1.0)[0]
        found = engine._gradients_in_range(state, 1)[0]
    lost = sum(int((block == 0).sum()) for block in plain.values())
    kept = sum(int((block == 0).sum()) for block in found.values())
    assert kept < lost and kept == 0


# the model's own checks before the first step


@contextmanager
def attention(loaded, wrap):
    """While open, what each cross-attention answers goes through `wrap`."""
    handles = [
        module.register_forward_hook(lambda _m, _a, output: wrap(output))
        for name, module in loaded.unet.named_modules()
        if name.endswith("attn2")
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("no backward for this attention")


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (torch.Tensor.detach, "No usable gradient reaches the vectors of clip_l"),  # the pooled text is CLIP-G's
        (_NoBackward.apply, "backward pass cannot be done"),
        (_WrongBackward.apply, "wrong by"),
    ],
)
def test_an_attention_that_cannot_be_trained_through_is_refused(wrap, message):
    loaded = model()
    with attention(loaded, wrap), pytest.raises(TiFixError, match=message):
        run(config(self_test=True))


def test_a_sound_model_passes_the_self_test():
    loaded = model()
    with loaded.trainable():
        engine, state, _ = engine_of(config(), loaded)
        errors = check_gradient(engine, engine.batch(1, 0), state.copy_of_vectors())
    assert set(errors) == {"clip_l", "clip_g"} and max(errors.values()) < 0.02


def test_each_stage_before_the_first_step_is_told_and_pages_have_words_for_it():
    events = run(config(self_test=True, validate_every=1))
    stages = [each.what for each in events if isinstance(each, PrepareEvent)]
    assert list(dict.fromkeys(stages)) == ["pictures", "model", "self-test", "loss"] == list(STAGES)


def test_train_time_conditioning_is_that_of_generation():
    """One to three chunks, with emphasis: what a step sees is what the host uses for pictures, to the bit."""
    loaded = model()
    seen = {}
    prompts = [
        f"a {TRIGGER}",
        f"({TRIGGER}:1.3) by the sea",
        "sea " * 80 + TRIGGER,
        "sea " * 160 + f"[{TRIGGER}] at night",
    ]
    with loaded.trainable():
        engine, state, _ = engine_of(config(), loaded)
        batch = engine.batch(1, 0)
        vectors = state.copy_of_vectors()
        host = StandaloneHost(loaded)
        for prompt in prompts:
            seen[prompt] = loaded.encode_prompts([prompt], {TRIGGER: state.vectors}, batch.sizes[:1])
            request = ImageRequest(
                prompt=prompt, width=64, height=64, embeddings=(Embedding(name=TRIGGER, vectors=vectors),)
            )
            wanted, _ = host._condition(request)
            assert torch.equal(seen[prompt].context.detach(), wanted.context), prompt
            assert torch.equal(seen[prompt].vector.detach(), wanted.vector), prompt
    assert [seen[p].context.shape[1] for p in prompts] == [77, 77, 154, 231]
