"""Runs from start to end: checkpoints, resume, validation, faults. Each fault must be named and lose nothing."""

from __future__ import annotations

import copy
import errno
import os
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.hosts.tiny_models import clip_tokenizer, sdxl_pipeline, tiny_sdxl
from tests.train.making import TRIGGER, codes, config, done, image, losses, model, pictures, run, said, same, sd15
from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import write
from ti_fix.hosts.standalone import StandaloneModel
from ti_fix.protocols import NoiseSchedule, Sizes
from ti_fix.train import CheckpointEvent, StepEvent, ValidationEvent, from_images, gather, train
from ti_fix.train.checkpoint import Files
from ti_fix.train.engine import Outcome
from ti_fix.train.monitor import nearest_words, order_probe, watch_gradient
from ti_fix.train.optimise import optimiser
from ti_fix.train.pictures import to_pixels
from ti_fix.train.state import Numbers, from_bytes

SIZES = Sizes(original=(64, 64), target=(64, 64))


def stop_after(steps):
    """A stop that is pressed after so many steps."""
    asked = iter(range(10**6))
    return lambda: next(asked) >= steps


# files


def test_results_and_checkpoints_are_written_and_thinned(tmp_path):
    events = run(config(out=str(tmp_path), steps=5, checkpoint_every=1, keep=2))
    files = Files(config(out=str(tmp_path)))
    assert done(events).path == files.final == tmp_path / f"{TRIGGER}.safetensors"
    assert sorted(p.name for p in files.folder.iterdir()) == [
        "latest.state", f"{TRIGGER}-3.safetensors", f"{TRIGGER}-4.safetensors",
    ]  # fmt: skip
    written = load_file(files.final)
    assert all(torch.equal(written[k], block) for k, block in done(events).embedding.vectors.items())
    kinds = [(e.kind, e.step) for e in events if isinstance(e, CheckpointEvent)]
    assert kinds[-2:] == [("state", 5), ("final", 5)] and ("step", 4) in kinds
    assert not list(tmp_path.rglob("*.tmp"))


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert done(run(config(checkpoint_every=1))).path is None
    assert not list(tmp_path.iterdir())


def test_the_file_says_how_it_was_made_and_nothing_private(tmp_path):
    image(1).save(tmp_path / "secret-holiday.png")
    (tmp_path / "secret-holiday.txt").write_text(f"{TRIGGER} with aunt Agatha")
    settings = config(folders=(str(tmp_path),), out=str(tmp_path / "out"), steps=1)
    path = done(run(settings, gather(settings))).path
    head = path.read_bytes()[:4000]
    assert b'"ss_steps":"1"' in head and b'"modelspec.prediction_type":"epsilon"' in head
    assert b"Agatha" not in head and b"secret" not in head and str(tmp_path).encode() not in head


def test_diffusers_own_loader_takes_the_file(tmp_path):
    """As diffusers documents it for SDXL: each half into its own encoder. Then the prompt gives our conditioning."""
    parts = copy.deepcopy(tiny_sdxl())
    path = done(run(config(out=str(tmp_path), steps=2))).path
    pipe = sdxl_pipeline(parts)
    pipe.tokenizer, pipe.tokenizer_2 = (copy.deepcopy(clip_tokenizer(key)) for key in ("clip_l", "clip_g"))
    for encoder in (pipe.text_encoder, pipe.text_encoder_2):
        encoder.config.eos_token_id = 49407
    state = load_file(path)
    pairs = (("clip_l", pipe.text_encoder, pipe.tokenizer), ("clip_g", pipe.text_encoder_2, pipe.tokenizer_2))
    for key, encoder, tokenizer in pairs:
        pipe.load_textual_inversion(state[key], token=TRIGGER, text_encoder=encoder, tokenizer=tokenizer)
    prompt = pipe.maybe_convert_prompt(f"a {TRIGGER} at night", pipe.tokenizer)
    with torch.no_grad():
        ids = [t(prompt, padding="max_length", max_length=77, return_tensors="pt").input_ids for _, _, t in pairs]
        hidden = [e(i, output_hidden_states=True).hidden_states[-2] for i, (_, e, _) in zip(ids, pairs, strict=True)]
        ours = model().encode_prompts([f"a {TRIGGER} at night"], {TRIGGER: state}, [SIZES])
    torch.testing.assert_close(torch.cat(hidden, -1), ours.context, rtol=1e-4, atol=1e-4)


# resume


@pytest.mark.parametrize("kind", ["adamw", "direction"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, kind):
    settings = config(
        steps=6, optimiser=kind, validate_every=2, drop_tags=0.3, shuffle_tags=True, template="[name], a, b, c"
    )
    whole = run(settings)
    stopped = replace(settings, out=str(tmp_path), checkpoint_every=1)
    first = run(stopped, stop=stop_after(3))
    assert done(first).reason == "stopped" and done(first).step == 3
    second = run(replace(stopped, resume=True))
    assert same(done(whole), done(second))
    assert losses(first) + losses(second) == losses(whole)
    fixed = [[e.loss for e in events if isinstance(e, ValidationEvent)] for events in (whole, first, second)]
    assert fixed[1] + fixed[2] == fixed[0]


def test_changed_settings_are_told_on_resume(tmp_path):
    settings = config(out=str(tmp_path), steps=4)
    run(settings, stop=stop_after(2))
    events = run(replace(settings, resume=True, learning_rate="2e-2"))
    assert "learning_rate" in said(events, "resume-changed") and done(events).step == 4
    again = run(replace(settings, resume=True, learning_rate="2e-2", steps=5))
    assert "resume-changed" not in codes(again) and len(losses(again)) == 1


def test_a_damaged_state_is_refused_and_a_missing_one_begins_anew(tmp_path):
    settings = config(out=str(tmp_path), resume=True, steps=2)
    assert "nothing-to-resume" in codes(run(settings))
    state = Files(settings).state
    state.write_bytes(state.read_bytes()[:200])
    with pytest.raises(TiFixError, match="no saved run"):
        run(settings)


def test_a_run_of_other_encoders_is_not_gone_on_with(tmp_path):
    settings = config(out=str(tmp_path), steps=4)
    run(settings, stop=stop_after(2))
    with pytest.raises(WrongUse, match=r"clip_g .* takes clip_l .* Load the model of that run"):
        run(replace(settings, resume=True), on=sd15())


@pytest.mark.parametrize("other", ["direction", "prodigy", "adafactor"])
def test_another_optimiser_goes_on_with_a_memory_of_its_own(tmp_path, other):
    """Those of the others have shapes and names that it cannot use."""
    settings = config(out=str(tmp_path), steps=4)
    run(settings, stop=stop_after(2))
    events = run(replace(settings, resume=True, optimiser=other))
    assert "optimiser" in said(events, "resume-changed") and len(losses(events)) == 2
    kept = from_bytes(Files(settings).state.read_bytes(), optimiser(settings, {}, {}), "here")[0].optimiser.state()
    assert int(kept["clip_l.count"]) == 2


def test_a_killed_run_loses_at_most_the_steps_since_its_last_checkpoint(tmp_path):
    settings = config(out=str(tmp_path), steps=10**6, checkpoint_every=1, overwrite=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # trains until it is killed, and tells each state that it has saved
        for event in train(settings, model(), pictures()):
            if isinstance(event, CheckpointEvent) and event.kind == "state":
                os.write(writing, bytes([event.step]))
    told = [os.read(reading, 1)[0] for _ in range(3)][-1]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    events = run(replace(settings, steps=told + 3, resume=True))
    (first, *_) = [e for e in events if isinstance(e, StepEvent)]
    assert first.step > told
    assert same(done(events), done(run(config(steps=told + 3))))


# stopping, and the best step


def test_a_stop_before_the_first_step_is_an_error_not_a_result():
    with pytest.raises(WrongUse, match="nothing was learned"):
        run(config(), stop=lambda: True)


def test_abandoning_the_run_gives_the_model_back():
    loaded = model()
    flags = [p.requires_grad for p in loaded.unet.parameters()]
    events = train(config(), loaded, pictures())
    for event in events:
        if isinstance(event, StepEvent):
            break
    events.close()
    assert [p.requires_grad for p in loaded.unet.parameters()] == flags


def test_the_run_ends_where_the_last_stage_ends():
    assert len(losses(run(config(steps=9, learning_rate="0.01:1, 0.001:2,")))) == 2


def test_the_fixed_loss_is_fixed_and_the_best_vectors_are_kept(tmp_path):
    """The rate falls to zero after three steps, so the fixed loss stands still from there on."""
    settings = config(steps=9, learning_rate="0.3:3, 0:9", validate_every=1, patience=3)
    events = run(settings)
    fixed = {e.step: e.loss for e in events if isinstance(e, ValidationEvent)}
    best = min(fixed, key=lambda step: fixed[step])
    end = done(events)
    assert fixed[3] == fixed[4] and len(set(fixed.values())) == 4
    assert end.best_step == best and end.reason == "plateau" and end.step == best + 3
    assert same(end, done(run(replace(settings, steps=best, validate_every=0)))) if best else True


# faults


def injected(loaded, at):
    """The model with NaN in the UNet's answer on some calls, counted from 0."""

    class Faulty:
        calls = 0

        def __getattr__(self, name):
            return getattr(loaded, name)

        def predict(self, noisy, timesteps, conditioning):
            output = loaded.predict(noisy, timesteps, conditioning)
            if noisy.requires_grad or not torch.is_grad_enabled():
                return output
            self.calls += 1
            if self.calls - 1 in at:
                output = output.clone()
                output[1] = float("nan")
            return output

    return Faulty()


def test_a_nan_is_named_rolled_back_and_the_run_goes_on():
    events = run(config(steps=5), on=injected(model(), {2}))
    message = said(events, "not-finite")
    assert "step 3" in message and "picture" in message and "timestep" in message and "0.5 of what was set" in message
    assert [e.step for e in events if isinstance(e, StepEvent)] == [1, 2, 4, 5]
    assert all(bool(block.isfinite().all()) for block in done(events).embedding.vectors.values())


def test_only_the_picture_with_the_nan_is_blamed():
    message = said(run(config(steps=3, batch_size=2), on=injected(model(), {1})), "not-finite")
    assert message.count("timestep") == 1


@pytest.mark.parametrize("changes", [{}, {"self_test": True}, {"validate_every": 1}])
def test_a_full_card_is_told_wherever_it_is_met(changes):
    class Full:
        def __getattr__(self, name):
            return getattr(model(), name)

        def predict(self, noisy, timesteps, conditioning):
            if len(noisy) > 1:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return model().predict(noisy, timesteps, conditioning)

    with pytest.raises(TiFixError, match="does not suffice for 2 pictures at 64 pixels; lower the batch size"):
        run(config(**{"validation_timesteps": 2, **changes}), on=Full())


def test_nan_for_ever_ends_the_run_with_the_good_vectors_saved(tmp_path):
    settings = config(steps=20, out=str(tmp_path))
    with pytest.raises(TiFixError, match="5 times in a row"):
        run(settings, on=injected(model(), range(3, 100)))
    saved = load_file(Files(settings).state)
    assert all(bool(t.isfinite().all()) for name, t in saved.items() if name.startswith("vectors/"))


class Oracle:
    """Knows the only picture, and answers exactly with its noise, or its velocity."""

    def __init__(self, kind, declared):
        self.kind, self.picture = kind, model().encode_images(to_pixels(image(0)))
        alphas = model().schedule.alphas_cumprod
        self.schedule = NoiseSchedule(alphas_cumprod=alphas, prediction_type=declared)

    def __getattr__(self, name):
        return getattr(model(), name)

    def predict(self, noisy, timesteps, conditioning):
        alpha = self.schedule.alphas_cumprod[timesteps][:, None, None, None]
        noise = (noisy - alpha.sqrt() * self.picture) / (1 - alpha).sqrt()
        velocity = alpha.sqrt() * noise - (1 - alpha).sqrt() * self.picture
        return (noise if self.kind == "epsilon" else velocity) + 0 * conditioning.context.mean()


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_a_declared_but_wrong_prediction_type_is_found(kind):
    other = "v_prediction" if kind == "epsilon" else "epsilon"
    right = run(config(steps=1), pictures(1), on=Oracle(kind, kind))
    assert "wrong-prediction-type" not in codes(right) and losses(right)[0] < 1e-6
    events = run(config(steps=1), pictures(1), on=Oracle(kind, other))
    assert f"answers like {kind}" in said(events, "wrong-prediction-type") and losses(events)[0] < 1e-6
    with pytest.raises(WrongUse, match=f"to auto or to {kind}"):
        run(config(steps=1, prediction=other), pictures(1), on=Oracle(kind, other))


def test_an_existing_name_is_not_overwritten(tmp_path):
    write(Embedding(name=TRIGGER, vectors={"clip_l": torch.ones(1, 768)}), tmp_path)
    before = (tmp_path / f"{TRIGGER}.safetensors").read_bytes()
    with pytest.raises(WrongUse, match="exists already"):
        run(config(out=str(tmp_path)))
    assert (tmp_path / f"{TRIGGER}.safetensors").read_bytes() == before
    assert done(run(config(out=str(tmp_path), overwrite=True, steps=1))).path


def test_a_folder_that_cannot_be_written_stops_the_run_before_it_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongUse, match="cannot be written"):
        run(config(out=str(tmp_path / "file" / "sub")))


def test_a_disk_that_fills_up_names_itself_and_keeps_the_last_state(tmp_path, monkeypatch):
    settings = config(out=str(tmp_path), steps=4, checkpoint_every=1)
    real, written = os.fsync, []

    def fsync(number):
        written.append(number)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TiFixError, match="disk is full"):
        run(settings)
    monkeypatch.undo()
    resumed = run(replace(settings, resume=True))
    assert same(done(resumed), done(run(replace(settings, out=""))))


def test_vectors_that_do_not_move_are_told():
    events = run(config(steps=22, learning_rate="1e-9", batch_size=1))
    assert "learns-nothing" in codes(events) and "1, 2" in said(events, "learns-nothing")
    assert "rate-low" in codes(events)


def test_a_gradient_out_of_the_ordinary_is_told_once():
    numbers, found = Numbers(), []
    for step in range(1, 61):
        numbers.step = step
        length = 100.0 if step in (10, 40, 45) else 1.0 + step / 100
        outcome = Outcome(
            loss=1.0,
            gradients={"clip_l": length},
            rates={},
            rows=((0, 7, 0.1), (1, 900, 5.0)),
            updated=True,
            seconds=0.1,
        )
        found += watch_gradient(numbers, outcome, ["a.png", "b.png"])
    assert [(e.step, e.finding.code) for e in found] == [(40, "gradient-alarm")]
    assert "b.png at timestep 900" in found[0].finding.message


def test_long_vectors_are_a_note():
    events = run(config(steps=4, learning_rate="1"))
    assert "long-vectors" in codes(events)


def test_ordinary_runs_raise_no_alarm():
    for seed in range(2):
        events = run(config(seed=seed, steps=4, validate_every=2))
        bad = [e.finding for e in events if hasattr(e, "finding") and e.finding.severity != "note"]
        assert not [f.code for f in bad if f.code != "order-probe"], bad


def test_nearest_words_of_words_are_themselves():
    vocabulary = model().vocabulary()
    ids = vocabulary.tokenize("red tower")
    vectors = {key: table[ids] for key, table in vocabulary.tables.items()}
    for rows in nearest_words(vectors, vocabulary).values():
        assert [row[0] for row in rows] == ["red", "tower"]


def test_words_that_nobody_trained_are_no_neighbours():
    vocabulary = model().vocabulary()
    ids = vocabulary.tokenize("red tower")
    vectors = {key: table[ids] for key, table in vocabulary.tables.items()}
    trained = torch.ones(len(next(iter(vocabulary.tables.values()))), dtype=torch.bool)
    trained[ids[0]] = False
    for rows in nearest_words(vectors, replace(vocabulary, trained=trained)).values():
        assert "red" not in rows[0] and rows[1][0] == "tower"


def test_the_order_probe_is_one_for_words_and_falls_for_vectors_that_drown_them():
    loaded = model()
    vocabulary = loaded.vocabulary()
    ids = vocabulary.tokenize("red tower")
    start = {key: table[ids].clone() for key, table in vocabulary.tables.items()}
    scores = [
        order_probe(loaded, TRIGGER, {key: scale * block for key, block in start.items()}, start, 64)
        for scale in (1, 3, 100)
    ]
    assert scores[0] == pytest.approx(1, abs=1e-5)
    assert scores[0] > scores[1] > scores[2]


def test_a_vae_that_fails_is_named(tmp_path):
    parts = copy.deepcopy(tiny_sdxl())
    with torch.no_grad():
        parts.vae.encoder.conv_in.bias.fill_(float("nan"))
    with pytest.raises(TiFixError, match="NaN"):
        run(config(), on=StandaloneModel(parts), data=from_images([image(1)]))
