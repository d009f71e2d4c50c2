"""The run itself: prepare, step, tell, save, stop. Reads from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ti_fix.embedding import Embedding, Finding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.protocols import DiffusionModel
from ti_fix.train import checks, monitor
from ti_fix.train.checkpoint import Files, embedding_of
from ti_fix.train.checkpoint import about as header
from ti_fix.train.config import TrainConfig, check
from ti_fix.train.dataset import Dataset
from ti_fix.train.distributed import Group, current
from ti_fix.train.engine import Engine, Outcome, out_of_memory
from ti_fix.train.events import (
    CheckpointEvent,
    DoneEvent,
    Event,
    FindingEvent,
    PrepareEvent,
    StepEvent,
    ValidationEvent,
)
from ti_fix.train.initial import Statistics, start_vectors, statistics
from ti_fix.train.latents import LatentCache
from ti_fix.train.objective import objective
from ti_fix.train.optimise import optimiser
from ti_fix.train.preflight import Plan, plan
from ti_fix.train.previews import Generate, Previews
from ti_fix.train.recompute import recomputed, wanted
from ti_fix.train.selftest import check_gradient
from ti_fix.train.state import differences, from_bytes, new_state, to_bytes
from ti_fix.train.validation import FixedLoss

Ask = Callable[[], bool]
Judge = Callable[[], Iterable[Finding]]
Convert = Callable[[Embedding], Embedding]

_SMOOTH = 0.98
_SNAPSHOT_EVERY = 10


def train(  # noqa: PLR0913 - the parts of a run, each handed in
    config: TrainConfig,
    model: DiffusionModel,
    samples: Dataset,
    *,
    stop: Ask = lambda: False,
    save: Ask = lambda: False,
    generate: Generate | None = None,
    fit: Convert = lambda embedding: embedding,
    publish: Convert = lambda embedding: embedding,
    judge: Judge = tuple,
) -> Generator[Event, None, None]:
    """Learn an embedding.

    Args:
        config: the settings.
        model: the loaded model; its weights are not changed.
        samples: the pictures, from `gather` or `from_images`.
        stop: asked before each step; the run then ends with its files written.
        save: asked after each step; the state and the vectors of this step are then written, beside the regular saves.
        generate: makes previews and the order probe's pictures; called between steps, inside the model's `trainable()`.
        fit: brings a start file to the model's widths, `publish` what was learned to those of files; only models of
            unusual widths need them.
        publish: see `fit`.
        judge: what is wrong with the model's text encoders; an error stops the run before it begins.

    Yields:
        What happens, as it happens; the last event is a `DoneEvent`.

    Raises:
        TiFixError: a setting, the data or the model makes the run impossible; told before the first step, with all
            findings as events, or, for a loss that stays non-finite and a full disk, during it.
    """
    about = statistics(model.vocabulary())
    work = yield from _planned(config, model, samples, about, judge)
    start = start_vectors(config, model.vocabulary(), model.family, about, fit)
    recompute = recomputed(model.unet) if wanted(config.checkpointing, model.unet) else nullcontext()
    with model.trainable(), _memory_told(config):
        run = _Run(config, model, samples, work, start, about, generate, publish)
        yield from run.prepare()  # counts the memory of blocks as they are, so they are wrapped afterwards
        with recompute:
            yield from run.begin()
            yield from run.steps(stop, save)
            yield from run.finish()


def look(
    config: TrainConfig,
    model: DiffusionModel,
    samples: Dataset,
    *,
    fit: Convert = lambda embedding: embedding,
    judge: Judge = tuple,
) -> Generator[Event, None, None]:
    """What `train` would tell before its first step: findings, memory, prediction type. Writes nothing.

    Raises:
        TiFixError: as `train` would.
    """
    about = statistics(model.vocabulary())
    work = yield from _planned(config, model, samples, about, judge)
    start = start_vectors(config, model.vocabulary(), model.family, about, fit)
    with model.trainable(), _memory_told(config):
        run = _Run(replace(config, out="", cache="memory"), model, samples, work, start, about, None, fit)
        yield from run.prepare()


def _planned(
    config: TrainConfig, model: DiffusionModel, samples: Dataset, about: Mapping[str, Statistics], judge: Judge
) -> Generator[Event, None, Plan]:
    check(config)
    work = plan(config, model, samples, about)
    yield from (FindingEvent(step=0, finding=p.finding, remedy=p.remedy) for p in work.problems)
    of_model = tuple(judge())
    yield from (FindingEvent(step=0, finding=finding) for finding in of_model)
    errors = (*work.errors, *(finding for finding in of_model if finding.severity == "error"))
    if errors:
        raise WrongUse(" ".join(finding.message for finding in errors))
    return work


@contextmanager
def _memory_told(config: TrainConfig) -> Iterator[None]:
    """Say what to do when the card is full: it is met in the self-test as well as in a step."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise out_of_memory(config) from None


class _Run:
    """The parts of one run, joined."""

    def __init__(
        self,
        config: TrainConfig,
        model: DiffusionModel,
        data: Dataset,
        work: Plan,
        start: Mapping[str, Tensor],
        about: Mapping[str, Statistics],
        generate: Generate | None,
        publish: Convert,
    ) -> None:
        self._config, self._model, self._work, self._publish = config, model, work, publish
        self._names = [sample.name for sample in data.samples]
        self._about = about
        self._group: Group = current()
        first = self._group.rank == 0
        self._files = Files(config) if config.out and first else None
        self._previews = Previews(config, generate) if generate is not None and first else None
        cache = LatentCache(config, model, data.samples, _cache_folder(config))
        goal = objective(config, model.schedule)
        self._engine = Engine(config, model, goal, self._about, cache, work.prompts, work.training, self._group)
        chosen = optimiser(config, start, self._about)
        self._state = new_state(start, chosen, self._engine.first_scale())
        self._good = self._snapshot()
        self._pace = monitor.Pace(on_card=next(model.unet.parameters()).device.type != "cpu")
        self._reason: Literal["finished", "stopped", "plateau"] = "finished"

    # before

    def prepare(self) -> Iterator[Event]:
        """Encode the pictures; look at the memory and at what the model predicts."""
        views = list(dict.fromkeys((*self._work.training, *self._work.validation)))
        for done, view in enumerate(views, 1):
            self._engine.cache.get(view)
            yield PrepareEvent(what="pictures", done=done, total=len(views))
        yield from checks.precision(self._engine.cache)
        yield PrepareEvent(what="model", done=0, total=1)
        self._fixed = FixedLoss(self._engine, self._work.validation)
        yield from checks.memory(self._engine, self._state)
        yield from checks.prediction(self._engine, self._fixed.batches, self._state)
        yield from checks.distilled(self._engine, self._fixed.batches)

    def begin(self) -> Iterator[Event]:
        """Take up a saved run, or test the model and measure the loss before training."""
        if self._config.resume:
            yield from self._resume()
        if self._state.numbers.step == 0:
            if self._config.self_test:
                yield PrepareEvent(what="self-test", done=0, total=1)
                check_gradient(self._engine, self._fixed.batches[0], self._state.copy_of_vectors())
                yield PrepareEvent(what="self-test", done=1, total=1)
            if self._config.validate_every:
                yield PrepareEvent(what="loss", done=0, total=1)
                yield from self._validate()

    def _resume(self) -> Iterator[Event]:
        if not self._config.out:
            raise WrongUse("Resume needs the output folder of the run (out).")
        files = Files(self._config)
        if not files.state.exists():
            yield monitor.event(0, "note", "nothing-to-resume", f"{files.state} does not exist; a new run begins.")
            return
        new, kind = self._state, self._config.optimiser
        self._state, saved = from_bytes(files.state.read_bytes(), new.optimiser, str(files.state))
        _refuse_other_encoders(self._state.vectors, new.vectors, files.state)
        if saved.get("optimiser") != kind:  # another one's memory means nothing to it
            self._state.optimiser.load_state({})
        self._good = self._snapshot()
        changed = differences(self._config, saved)
        if changed:
            message = (
                f"The saved run had other values of {', '.join(changed)}; the run goes on, but not as it would have."
            )
            yield monitor.event(self._state.numbers.step, "warning", "resume-changed", message)

    # during

    def steps(self, stop: Ask, save: Ask) -> Iterator[Event]:
        """Step until the end, a stop or a plateau."""
        config, numbers = self._config, self._state.numbers
        while numbers.step < self._engine.steps:
            if self._group.any(stop()):
                self._reason = "stopped"
                return
            yield from self._step()
            step = numbers.step
            if step % _SNAPSHOT_EVERY == 0 and not numbers.bad_steps:
                self._good = self._snapshot()
            if _due(step, config.validate_every) or (config.validate_every and step == self._engine.steps):
                yield from self._validate()
            asked = save()
            if asked or (_due(step, config.checkpoint_every) and step < self._engine.steps):
                yield from self._save(asked=asked)
            if self._previews is not None and _due(step, config.preview_every):
                yield from self._previews.preview(step, self._state.copy_of_vectors())
            if self._previews is not None and _due(step, config.probe_every):
                yield from self._previews.probe(step, self._state.copy_of_vectors())
            if config.patience and numbers.stale >= config.patience:
                self._reason = "plateau"
                return

    def _step(self) -> Iterator[Event]:
        numbers = self._state.numbers
        outcome = self._engine.step(self._state)
        numbers.step += 1
        if not outcome.updated:
            yield self._failed(outcome)
            return
        numbers.bad_steps = 0
        smooth = numbers.smooth_loss
        numbers.smooth_loss = outcome.loss if math.isnan(smooth) else smooth + (1 - _SMOOTH) * (outcome.loss - smooth)
        yield StepEvent(
            step=numbers.step,
            steps=self._engine.steps,
            loss=outcome.loss,
            smooth_loss=numbers.smooth_loss,
            rates=outcome.rates,
            gradients=outcome.gradients,
            lengths={k: _mean_length(b) / self._about[k].length for k, b in self._state.vectors.items()},
            seconds=outcome.seconds,
        )
        yield from self._pace.watch(numbers.step, outcome.seconds)
        yield from monitor.watch_gradient(numbers, outcome, self._names)
        yield from monitor.watch_vectors(self._state, self._about, self._engine.steps)

    def _failed(self, outcome: Outcome) -> FindingEvent:
        """Go back to the last good vectors with half the rate; give up after several failures in a row."""
        numbers = self._state.numbers
        numbers.bad_steps += 1
        numbers.rate_factor /= 2
        vectors, kept = self._good
        self._state.set_vectors(vectors)
        self._state.optimiser.load_state(kept)
        finding = monitor.not_finite(self._config, numbers, outcome, self._names)
        if numbers.bad_steps >= monitor.BAD_STEPS:
            if self._files is not None:
                self._files.write_state(to_bytes(self._state, self._config))
            raise TiFixError(
                f"{finding.finding.message} It failed {numbers.bad_steps} times in a row, so the run ends."
            )
        return finding

    def _snapshot(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self._state.copy_of_vectors(), self._state.optimiser.state()

    def _validate(self) -> Iterator[Event]:
        numbers = self._state.numbers
        loss = self._fixed(self._state.copy_of_vectors())
        if numbers.step == 0:
            numbers.first_loss = loss
        if loss < numbers.best_loss:
            numbers.best_loss, numbers.best_step, numbers.stale = loss, numbers.step, 0
            self._state.best = self._state.copy_of_vectors()
        else:
            numbers.stale += 1
        yield ValidationEvent(
            step=numbers.step,
            loss=loss,
            best_step=numbers.best_step,
            best_loss=numbers.best_loss,
            words=monitor.nearest_words(self._state.copy_of_vectors(), self._model.vocabulary()),
        )
        yield from monitor.watch_progress(numbers, self._engine.steps)

    def _save(self, *, asked: bool) -> Iterator[Event]:
        if self._files is None:
            return
        step = self._state.numbers.step
        path = self._files.write_state(to_bytes(self._state, self._config))
        yield CheckpointEvent(step=step, kind="state", path=path)
        if asked or self._config.keep:
            embedding = self._publish(embedding_of(self._config, self._state.vectors, self._header(step)))
            yield CheckpointEvent(step=step, kind="step", path=self._files.write_step(embedding, step))

    # after

    def finish(self) -> Iterator[Event]:
        """Choose the best vectors, look at them, write them."""
        numbers, state = self._state.numbers, self._state
        if numbers.step == 0:
            raise WrongUse("The run was stopped before its first step; nothing was learned and nothing is written.")
        at_end = not self._config.validate_every
        vectors = state.copy_of_vectors() if at_end else state.best
        best_step = numbers.step if at_end else numbers.best_step
        yield from checks.result(self._engine, state, vectors)
        embedding = embedding_of(self._config, vectors, self._header(best_step))
        path = None
        if self._files is not None:
            state_path = self._files.write_state(to_bytes(state, self._config))
            yield CheckpointEvent(step=numbers.step, kind="state", path=state_path)
            path = self._files.write_final(self._publish(embedding))
            yield CheckpointEvent(step=best_step, kind="final", path=path)
        yield DoneEvent(step=numbers.step, reason=self._reason, embedding=embedding, best_step=best_step, path=path)

    def _header(self, step: int) -> dict[str, str]:
        return header(self._config, step, len(self._names), self._engine.objective.prediction)


def _refuse_other_encoders(saved: Mapping[str, Tensor], model: Mapping[str, Tensor], where: Path) -> None:
    """A run can only go on with the encoders that it has vectors for."""
    has, takes = ({key: block.shape[1] for key, block in each.items()} for each in (saved, model))
    if has != takes:
        told, wanted = (
            ", ".join(f"{key} {width} wide" for key, width in sorted(each.items())) for each in (has, takes)
        )
        raise WrongUse(
            f"{where} holds vectors for {told}; the loaded model takes {wanted}. Load the model of that run, or start "
            "without resume."
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _mean_length(block: Tensor) -> float:
    return float(torch.linalg.vector_norm(block.detach(), dim=1).mean())


def _cache_folder(config: TrainConfig) -> Path | None:
    if config.cache == "memory":
        return None
    if config.cache_folder:
        return Path(config.cache_folder)
    if not config.out:
        raise WrongUse("The disk cache needs a folder; set the cache folder or the output folder.")
    return Files(config).folder / "latents"
