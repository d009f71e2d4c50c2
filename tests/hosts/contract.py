"""What every adapter must keep, whatever its host: one suite, run against each of them.

A test module subclasses `HostContract` and gives a fixture ``host``. The reference is the model itself wherever that
is possible: vectors that are a word's own rows must do exactly what the word does.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ti_fix.embedding import Embedding
from ti_fix.protocols import Conditioning, DiffusionModel, Host, ImageRequest, Sizes

WORD = "lighthouse"
TRIGGER = "zqx-one"
SIZE = Sizes(original=(64, 64), target=(64, 64))


def rows_of(model: DiffusionModel, text: str) -> dict[str, Tensor]:
    """The token rows that spell a text, encoder by encoder: (tokens, width), float32 on the CPU."""
    vocabulary = model.vocabulary()
    ids = vocabulary.tokenize(text)
    return {key: table[ids].detach().float().cpu().clone() for key, table in vocabulary.tables.items()}


def encoded(
    model: DiffusionModel, prompt: str, tensors: Mapping[str, Mapping[str, Tensor]] | None = None
) -> Conditioning:
    with model.trainable(), torch.no_grad():
        return model.encode_prompts([prompt], tensors or {}, [SIZE])


def assert_same(a: Conditioning, b: Conditioning) -> None:
    """Equal up to the rounding of one encoder pass."""
    torch.testing.assert_close(a.context, b.context, rtol=1e-4, atol=1e-5)
    if a.vector is not None or b.vector is not None:
        torch.testing.assert_close(a.vector, b.vector, rtol=1e-4, atol=1e-5)


def pixels(image: Any) -> Any:
    return np.asarray(image, dtype=np.int16)


def weights(model: DiffusionModel) -> list[tuple[Tensor, Tensor, bool]]:
    """Each UNet weight with a copy of its numbers and its gradient flag."""
    return [(p, p.detach().clone(), p.requires_grad) for p in model.unet.parameters()]


class HostContract:
    """Subclass it as ``Test…`` and give a fixture ``host`` of class scope."""

    request = ImageRequest(prompt=f"a {WORD}", width=64, height=64, steps=3, cfg_scale=3.0, seed=7)
    image_tolerance = 0
    """Largest difference of a colour level between two runs of one request, 0…255."""

    @pytest.fixture
    def model(self, host: Host) -> DiffusionModel:
        return host.model()

    # what it says about itself

    def test_names_itself_and_its_folders(self, host: Host) -> None:
        assert host.name
        assert all(isinstance(folder, Path) for folder in host.embedding_folders)
        assert host.interrupted() is False

    def test_vocabulary_has_one_table_per_encoder(self, model: DiffusionModel) -> None:
        vocabulary = model.vocabulary()
        assert set(vocabulary.tables) == model.family.keys
        for table in vocabulary.tables.values():
            assert table.ndim == 2 and table.shape[0] >= 49408
        assert vocabulary.tokenize("a cat") == [320, 2368]

    def test_schedule_is_a_falling_signal(self, model: DiffusionModel) -> None:
        signal = model.schedule.alphas_cumprod
        assert signal.shape == (1000,) and 0 <= signal[-1] < signal[0] < 1
        assert bool((signal.diff() <= 0).all())
        assert model.schedule.prediction_type in ("epsilon", "v_prediction")

    # prompts and vectors

    def test_a_words_own_rows_do_what_the_word_does(self, model: DiffusionModel) -> None:
        spliced = encoded(model, f"a {TRIGGER} at night", {TRIGGER: rows_of(model, WORD)})
        assert_same(spliced, encoded(model, f"a {WORD} at night"))

    def test_many_vectors_take_as_many_places(self, model: DiffusionModel) -> None:
        text = "red tower, blue sea"
        spliced = encoded(model, f"a {TRIGGER} at night", {TRIGGER: rows_of(model, text)})
        assert_same(spliced, encoded(model, f"a {text} at night"))

    def test_two_embeddings_in_one_prompt_each_at_its_place(self, model: DiffusionModel) -> None:
        tensors = {"zqx-one": rows_of(model, "red"), "zqx-two": rows_of(model, "green tower")}
        spliced = encoded(model, "zqx-two, zqx-one and zqx-two", tensors)
        assert_same(spliced, encoded(model, "green tower, red and green tower"))

    def test_case_does_not_matter_and_the_longer_trigger_wins(self, model: DiffusionModel) -> None:
        tensors = {"zqx": rows_of(model, "red"), "zqx-long": rows_of(model, "green")}
        assert_same(encoded(model, "a ZQX-Long boat, a zqx boat", tensors), encoded(model, "a green boat, a red boat"))

    def test_no_vectors_change_nothing(self, model: DiffusionModel) -> None:
        unused = encoded(model, f"a {WORD}", {TRIGGER: rows_of(model, "red")})
        assert torch.equal(unused.context, encoded(model, f"a {WORD}").context)

    def test_a_batch_is_its_rows(self, model: DiffusionModel) -> None:
        tensors = {TRIGGER: rows_of(model, "red")}
        prompts = [f"a {TRIGGER} boat", f"the {WORD}"]
        with model.trainable(), torch.no_grad():
            both = model.encode_prompts(prompts, tensors, [SIZE, SIZE])
        for i, prompt in enumerate(prompts):
            single = encoded(model, prompt, tensors)
            torch.testing.assert_close(both.context[i : i + 1], single.context, rtol=1e-4, atol=1e-5)

    def test_break_starts_a_chunk(self, model: DiffusionModel) -> None:
        both = encoded(model, f"{WORD} BREAK red").context
        halves = torch.cat([encoded(model, WORD).context, encoded(model, "red").context], dim=1)
        torch.testing.assert_close(both, halves, rtol=1e-4, atol=1e-5)

    def test_long_prompts_take_chunks_of_75(self, model: DiffusionModel) -> None:
        words = ["red"] * 75 + ["blue"] * 3
        both = encoded(model, " ".join(words)).context
        halves = [encoded(model, "red " * 75).context, encoded(model, "blue " * 3).context]
        torch.testing.assert_close(both, torch.cat(halves, dim=1), rtol=1e-4, atol=1e-5)

    def test_vectors_are_never_split_between_chunks(self, model: DiffusionModel) -> None:
        tensors = {TRIGGER: rows_of(model, "red tower, blue")}
        both = encoded(model, "sea " * 73 + TRIGGER, tensors).context
        halves = [encoded(model, "sea " * 73).context, encoded(model, TRIGGER, tensors).context]
        torch.testing.assert_close(both, torch.cat(halves, dim=1), rtol=1e-4, atol=1e-5)

    def test_pooled_text_is_that_of_the_first_chunk(self, model: DiffusionModel) -> None:
        first = encoded(model, WORD).vector
        if first is None:
            pytest.skip("this family has no pooled text")
        torch.testing.assert_close(encoded(model, f"{WORD} BREAK red").vector, first, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(encoded(model, f"red BREAK {WORD}").vector, first, rtol=1e-4, atol=1e-5)

    def test_emphasis_scales_the_words_states(self, model: DiffusionModel) -> None:
        plain = encoded(model, f"a {WORD} at night").context
        strong = encoded(model, f"a ({WORD}:1.5) at night").context
        where = slice(2, 2 + len(model.vocabulary().tokenize(WORD)))
        ratio = strong / plain
        rest = torch.cat([ratio[:, : where.start], ratio[:, where.stop :]], dim=1).median()
        torch.testing.assert_close(ratio[:, where].median() / rest, torch.tensor(1.5), rtol=1e-3, atol=0)
        assert_same(encoded(model, f"a ({WORD}:1.0) at night"), encoded(model, f"a {WORD} at night"))

    def test_sizes_reach_the_vector(self, model: DiffusionModel) -> None:
        vectors = []
        with model.trainable(), torch.no_grad():
            for target in ((64, 64), (64, 128), (128, 64)):
                sizes = [Sizes(original=(64, 64), target=target)]
                vectors.append(model.encode_prompts([WORD], {}, sizes).vector)
        if vectors[0] is None:
            pytest.skip("this family has no size conditioning")
        assert not torch.equal(vectors[0], vectors[1]) and not torch.equal(vectors[1], vectors[2])

    # learning

    def test_gradients_agree_with_finite_differences(self, model: DiffusionModel) -> None:
        """Directional derivatives of the loss, one per encoder and prompt.

        2 % is what float32 leaves over the best of three steps: on models that hardly listen to the word short ones
        drown in rounding, on those that listen well long ones bend.
        """
        generator = torch.Generator().manual_seed(0)
        # 16 x 16: on less, the group norms of the lowest level see so few numbers that they act like signs
        latents = torch.randn(1, 4, 16, 16, generator=generator)
        prompts = (f"a {TRIGGER} at night", f"({TRIGGER}:1.3) BREAK {TRIGGER}")

        def loss(prompt: str, rows: Mapping[str, Tensor]) -> Tensor:
            conditioning = model.encode_prompts([prompt], {TRIGGER: rows}, [SIZE])
            return model.predict(latents, torch.tensor([400]), conditioning).double().square().mean()

        with model.trainable():
            for prompt in prompts:
                rows = {key: block.requires_grad_() for key, block in rows_of(model, "red tower").items()}
                gradients = torch.autograd.grad(loss(prompt, rows), list(rows.values()))
                for (key, block), gradient in zip(rows.items(), gradients, strict=True):
                    assert gradient.norm() > 0
                    # along the gradient the change is largest against rounding
                    errors = []
                    for share in (0.003, 0.01, 0.03):
                        step = share * block.detach().norm() * gradient / gradient.norm()
                        with torch.no_grad():
                            ahead = loss(prompt, {**rows, key: block + step})
                            behind = loss(prompt, {**rows, key: block - step})
                        errors.append(abs(float(ahead - behind) / 2 / float((gradient * step).sum()) - 1))
                    assert min(errors) < 0.02, f"{key}: off by {errors}"

    def test_every_row_and_encoder_receives_a_gradient(self, model: DiffusionModel) -> None:
        rows = {key: block.requires_grad_() for key, block in rows_of(model, "red tower").items()}
        with model.trainable():
            conditioning = model.encode_prompts([f"a {TRIGGER}"], {TRIGGER: rows}, [SIZE])
            output = model.predict(torch.ones(1, 4, 8, 8), torch.tensor([400]), conditioning)
            output.square().mean().backward()
        for block in rows.values():
            assert block.grad is not None and bool((block.grad.norm(dim=1) > 0).all())

    def test_trainable_gives_everything_back(self, model: DiffusionModel) -> None:
        """Also when the work in it fails."""
        before = weights(model)
        rows = {key: block.requires_grad_() for key, block in rows_of(model, "red").items()}

        def fail_while_training() -> None:
            with model.trainable():
                conditioning = model.encode_prompts([TRIGGER], {TRIGGER: rows}, [SIZE])
                model.predict(torch.ones(1, 4, 8, 8), torch.tensor([400]), conditioning).mean().backward()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail_while_training()
        after = list(model.unet.parameters())
        assert len(after) == len(before)
        for now, (parameter, numbers, flag) in zip(after, before, strict=True):
            assert now is parameter and now.requires_grad == flag and now.grad is None
            assert torch.equal(now.detach(), numbers)

    def test_predict_takes_batch_rows_apart(self, model: DiffusionModel) -> None:
        noisy = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
        times = torch.tensor([10, 900])
        with model.trainable(), torch.no_grad():
            both = model.encode_prompts([WORD, "red"], {}, [SIZE, SIZE])
            together = model.predict(noisy, times, both)
            for i in range(2):
                vector = None if both.vector is None else both.vector[i : i + 1]
                alone = Conditioning(context=both.context[i : i + 1], vector=vector)
                single = model.predict(noisy[i : i + 1], times[i : i + 1], alone)
                torch.testing.assert_close(together[i : i + 1], single, rtol=1e-3, atol=1e-4)

    def test_pictures_become_latents_of_an_eighth(self, model: DiffusionModel) -> None:
        gradient = torch.linspace(-1, 1, 64).expand(2, 3, 64, 64)
        with model.trainable():
            latents = model.encode_images(gradient)
        assert latents.shape == (2, 4, 8, 8) and not latents.requires_grad
        assert bool(latents.isfinite().all())

    # pictures

    def test_generates_the_same_picture_again_also_while_training(self, host: Host) -> None:
        before = pixels(host.generate(self.request))
        assert before.shape == (64, 64, 3) and before.std() > 0
        with host.model().trainable():
            during = pixels(host.generate(self.request))
        after = pixels(host.generate(self.request))
        assert np.abs(during - before).max() <= self.image_tolerance
        assert np.abs(after - before).max() <= self.image_tolerance

    def test_a_picture_takes_the_embeddings_it_is_given(self, host: Host) -> None:
        vectors = rows_of(host.model(), WORD)
        asked = ImageRequest(
            prompt=f"a {TRIGGER}",
            width=64,
            height=64,
            steps=3,
            cfg_scale=3.0,
            seed=7,
            embeddings=(Embedding(name=TRIGGER, vectors=vectors),),
        )
        difference = np.abs(pixels(host.generate(asked)) - pixels(host.generate(self.request)))
        assert difference.max() <= max(1, self.image_tolerance)

    def test_runs_work_from_another_thread(self, host: Host) -> None:
        answers: list[int] = []
        worker = threading.Thread(target=lambda: answers.append(host.run(lambda: 42)))
        worker.start()
        worker.join(30)
        assert answers == [42]

    def test_an_error_in_the_work_reaches_the_caller(self, host: Host) -> None:
        def fail() -> None:
            raise KeyError("from the work")

        with pytest.raises(KeyError, match="from the work"):
            host.run(fail)
        assert host.run(lambda: 1) == 1


if __name__ == "__main__":
    import sys

    from tests.hosts.check_host import main

    sys.exit(main(["--parts", "contract", *sys.argv[1:]]))
