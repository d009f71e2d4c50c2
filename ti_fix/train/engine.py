"""One update of the vectors, and the fixed loss: all the numbers of a run. Nothing here yields."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ti_fix.errors import TiFixError
from ti_fix.protocols import Conditioning, DiffusionModel, Sizes
from ti_fix.train.buckets import View
from ti_fix.train.captions import varied
from ti_fix.train.config import TrainConfig
from ti_fix.train.context_prior import ContextPrior
from ti_fix.train.distributed import Group
from ti_fix.train.initial import Statistics
from ti_fix.train.latents import LatentCache
from ti_fix.train.objective import Objective, direction_prior, draw_timesteps, norm_prior
from ti_fix.train.optimise import clip
from ti_fix.train.order import Order
from ti_fix.train.random_streams import python_stream, torch_stream
from ti_fix.train.rates import rates_of, steps_of
from ti_fix.train.schedule import staged
from ti_fix.train.state import State

_HALF_SCALE, _MOST_SCALE = 2.0**12, 2.0**24
_GROW_AFTER = 200
_RETRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What goes through the model at once.

    Attributes:
        latents, noise: (rows, 4, height, width).
        timesteps: (rows,).
        weights: (rows, 1, height, width) of the places, None where all count alike.
        prompts, sizes, pictures: one a row; `pictures` are places in the data set.
    """

    latents: Tensor
    noise: Tensor
    timesteps: Tensor
    weights: Tensor | None
    prompts: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    pictures: tuple[int, ...]

    def rows(self, which: Sequence[int]) -> Batch:
        """Some of the rows."""
        places = torch.tensor(which, dtype=torch.long)
        return Batch(
            latents=self.latents[places],
            noise=self.noise[places],
            timesteps=self.timesteps[places],
            weights=None if self.weights is None else self.weights[places],
            prompts=tuple(self.prompts[i] for i in which),
            sizes=tuple(self.sizes[i] for i in which),
            pictures=tuple(self.pictures[i] for i in which),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What came out of one step.

    Attributes:
        loss: mean over the batch; not finite where the step failed.
        gradients: encoder key -> length before clipping.
        rates: encoder key -> rate used.
        rows: picture, timestep and loss of each row.
        updated: whether the vectors were changed.
        seconds: that it took.
    """

    loss: float
    gradients: Mapping[str, float]
    rates: Mapping[str, float]
    rows: tuple[tuple[int, int, float], ...]
    updated: bool
    seconds: float


class Engine:
    """Does steps on a state; made inside `trainable()`."""

    def __init__(
        self,
        config: TrainConfig,
        model: DiffusionModel,
        objective: Objective,
        about: Mapping[str, Statistics],
        cache: LatentCache,
        prompts: Sequence[Sequence[str]],
        training: Sequence[View],
        group: Group,
    ) -> None:
        self.config, self.model, self.objective, self.about = config, model, objective, about
        self.cache, self._prompts, self._group = cache, prompts, group
        self.steps = steps_of(config)
        self._order = Order(training, config.batch_size, config.seed)
        self._rates = rates_of(config, about)
        self._bound = staged(config.clip_at, self.steps, what="clipping bound")
        self._context: ContextPrior | None = None
        self._weighted = any(cache.weighted(view) for view in training)

    def first_scale(self) -> float:
        """The loss's factor to begin with: above 1 where the UNet computes in fewer than 32 bits of float."""
        dtypes = {p.dtype for p in self.model.unet.parameters()}
        return 1.0 if dtypes <= {torch.float32, torch.float64, torch.bfloat16} else _HALF_SCALE

    # batches

    def batch(self, step: int, part: int) -> Batch:
        """The rows of one pass of a step, the same whenever it is asked for."""
        config = self.config
        views = self._order.batch((step - 1) * config.accumulate + part)
        what = "step", step, part
        chance, generator = python_stream(config.seed, *what), torch_stream(config.seed, *what)
        first = chance.random()
        prompts = []
        for view in views:
            choices = self._prompts[view.picture]
            draw = first if config.share_caption else chance.random()
            caption = choices[int(draw * len(choices))]
            prompts.append(varied(caption, config.name, chance, shuffle=config.shuffle_tags, drop=config.drop_tags))
        timesteps = draw_timesteps(
            len(views), self.objective.timesteps, generator, stratified=config.timesteps == "stratified"
        )
        return self._batch(views, prompts, timesteps, generator)

    def _batch(
        self, views: Sequence[View], prompts: Sequence[str], timesteps: Tensor, generator: torch.Generator
    ) -> Batch:
        encoded = [self.cache.get(view) for view in views]
        latents = torch.cat([each.latents for each in encoded])
        weights = None
        if self._weighted:
            weights = torch.cat(
                [e.weights if e.weights is not None else torch.ones_like(e.latents[:, :1]) for e in encoded]
            )
        return Batch(
            latents=latents,
            noise=self.objective.noise(latents, generator),
            timesteps=timesteps,
            weights=weights,
            prompts=tuple(prompts),
            sizes=tuple(view.sizes for view in views),
            pictures=tuple(view.picture for view in views),
        )

    def fixed_batch(self, view: View, timesteps: Tensor) -> Batch:
        """A view at some timesteps under its first caption, with noise that depends on nothing but these."""
        rows = len(timesteps)
        generator = torch_stream(self.config.seed, "validation", view.picture, int(timesteps[0]))
        return self._batch([view] * rows, [self._prompts[view.picture][0]] * rows, timesteps, generator)

    # losses

    def losses(self, batch: Batch, vectors: Mapping[str, Tensor], *, plain: bool = False) -> Tensor:
        """The loss of each row, (rows,); `plain`: mean squared error without weights by timestep.

        Without vectors the prompts are taken as they are.
        """
        named = {self.config.name: vectors} if vectors else {}
        conditioning = self.model.encode_prompts(batch.prompts, named, batch.sizes)
        return self._losses(batch, conditioning, plain=plain)

    def _losses(self, batch: Batch, conditioning: Conditioning, *, plain: bool = False) -> Tensor:
        noisy = self.objective.noisy(batch.latents, batch.noise, batch.timesteps)
        output = self.model.predict(noisy, batch.timesteps, conditioning)
        target = self.objective.target(batch.latents, batch.noise, batch.timesteps)
        objective = self.objective.plain() if plain else self.objective
        return objective.losses(output, target, batch.timesteps, batch.weights)

    def _priors(self, state: State) -> Tensor:
        config = self.config
        total = torch.zeros(())
        for key, block in state.vectors.items():
            if config.norm_prior:
                total = total + config.norm_prior * norm_prior(block, self.about[key].length)
            if config.direction_prior and config.optimiser != "direction":
                total = total + config.direction_prior * direction_prior(block, state.start[key])
        return total

    def _context_prior(self, state: State) -> ContextPrior:
        if self._context is None:
            size = [Sizes(original=(512, 512), target=(512, 512))]  # the context does not depend on it

            def encode(prompts: Sequence[str], vectors: Mapping[str, Tensor]) -> Tensor:
                return self.model.encode_prompts(prompts, {self.config.name: vectors}, size * len(prompts)).context

            tokenize = self.model.vocabulary().tokenize
            self._context = ContextPrior(encode, tokenize, self.config.name, state.start)
        return self._context

    # steps

    def step(self, state: State) -> Outcome:
        """One whole update. Where the loss is not finite nothing is changed.

        Raises:
            TiFixError: the memory does not suffice, or the backward pass cannot be done.
        """
        started = time.perf_counter()
        step = state.numbers.step + 1
        with torch.inference_mode(False), torch.enable_grad():
            gradients, loss, rows = self._gradients_in_range(state, step)
        lengths = {key: float(block.norm()) for key, block in gradients.items()}
        rates = {key: rate(step) * state.numbers.rate_factor for key, rate in self._rates.items()}
        updated = math.isfinite(loss) and all(map(math.isfinite, lengths.values()))
        if updated:
            clipped = clip(gradients, self.config.clip, self._bound(step))
            state.optimiser.update(state.vectors, clipped, rates)
        return Outcome(
            loss=loss,
            gradients=lengths,
            rates=rates,
            rows=rows,
            updated=updated,
            seconds=time.perf_counter() - started,
        )

    def _gradients_in_range(
        self, state: State, step: int
    ) -> tuple[dict[str, Tensor], float, tuple[tuple[int, int, float], ...]]:
        """Gradients with a loss factor at which half precision neither overflows nor underflows."""
        numbers = state.numbers
        for _ in range(_RETRIES):
            gradients, loss, rows = self._gradients(state, step, numbers.scale)
            finite = all(bool(block.isfinite().all()) for block in gradients.values())
            if numbers.scale == 1 or not math.isfinite(loss):
                break
            if not finite:
                numbers.scale, numbers.steady = max(1.0, numbers.scale / 2), 0
                continue
            if not any(bool(block.any()) for block in gradients.values()) and numbers.scale < _MOST_SCALE:
                numbers.scale, numbers.steady = numbers.scale * 16, 0
                continue
            numbers.steady += 1
            if numbers.steady >= _GROW_AFTER and numbers.scale < _MOST_SCALE:
                numbers.scale, numbers.steady = numbers.scale * 2, 0
            break
        return gradients, loss, rows

    def _gradients(
        self, state: State, step: int, scale: float
    ) -> tuple[dict[str, Tensor], float, tuple[tuple[int, int, float], ...]]:
        """Unscaled gradients of the whole step, its mean loss, and each row of this process."""
        config, group = self.config, self._group
        total = {key: torch.zeros_like(block) for key, block in state.vectors.items()}
        loss, rows = torch.zeros((), dtype=torch.float64), []
        share = 1 / (config.accumulate * config.batch_size)
        for part in range(config.accumulate):
            batch = self.batch(step, part)
            mine = range(group.rank, config.batch_size, group.size)
            if not mine:
                continue
            batch = batch if group.size == 1 else batch.rows(mine)
            vectors = {config.name: state.vectors}
            conditioning = self.model.encode_prompts(batch.prompts, vectors, batch.sizes)
            losses = self._losses(batch, conditioning)
            objective = losses.sum() * share
            if config.context_prior:
                prior = self._context_prior(state)(batch.prompts, conditioning.context.float())
                objective = objective + config.context_prior * prior * len(batch.prompts) * share
            self._add_gradients(total, state, objective, scale)
            loss += losses.detach().double().sum() * share
            rows += list(zip(batch.pictures, batch.timesteps.tolist(), losses.detach().tolist(), strict=True))
        group.add_up([*total.values(), loss])
        self._add_gradients(total, state, self._priors(state), 1.0)
        return total, float(loss), tuple(rows)

    @staticmethod
    def _add_gradients(total: dict[str, Tensor], state: State, loss: Tensor, scale: float) -> None:
        if not loss.requires_grad:  # no caption of this pass holds the name, or there is no prior
            return
        found = torch.autograd.grad(loss * scale, list(state.vectors.values()), allow_unused=True)
        for key, gradient in zip(state.vectors, found, strict=True):
            if gradient is not None:
                total[key] += gradient / scale


def out_of_memory(config: TrainConfig) -> TiFixError:
    """What to say when the memory does not suffice."""
    return TiFixError(
        f"The memory does not suffice for {config.batch_size} pictures at {config.resolution} pixels; lower the batch "
        "size (and raise accumulation), or the resolution."
    )
