"""What is found out with the model loaded: memory and prediction type before the first step, the result at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ti_fix.errors import WrongUse
from ti_fix.train import monitor
from ti_fix.train.distilled import GUESSING, guessed_detail, named
from ti_fix.train.engine import Batch, Engine
from ti_fix.train.events import Event
from ti_fix.train.latents import LatentCache
from ti_fix.train.memory import of_step
from ti_fix.train.objective import objective
from ti_fix.train.recompute import wanted
from ti_fix.train.selftest import measured_prediction
from ti_fix.train.state import State

_DROWNED = 0.5
"""Share of the other words' effect below which a warning is due."""


def precision(cache: LatentCache) -> Iterator[Event]:
    """Tell where the VAE could not encode the pictures as it was loaded."""
    if cache.precision:
        message = (
            f"The VAE answers with NaN in the precision that it is loaded in; the pictures were encoded in "
            f"{cache.precision} instead, and nothing else is affected. SDXL's own VAE does this in half precision."
        )
        yield monitor.event(0, "note", "vae-precision", message)


def memory(engine: Engine, state: State) -> Iterator[Event]:
    """How much memory a step will take, for models of real size; silent where a host's UNet cannot be counted."""
    config, model = engine.config, engine.model
    if not wanted("auto", model.unet):
        return
    batch = engine.batch(1, 0)
    with torch.no_grad():
        told = model.encode_prompts(batch.prompts[:1], {config.name: state.vectors}, batch.sizes[:1])
    checkpointing = wanted(config.checkpointing, model.unet)
    try:
        found = of_step(model, batch.latents, told, checkpointing=checkpointing)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return
    message = (
        f"A step takes about {found.total / 2**30:.1f} GB beside text encoders and VAE: {found.weights / 2**30:.1f} "
        f"for the UNet's weights, {found.step / 2**30:.1f} for {len(batch.latents)} pictures at this size"
    )
    free = free_memory(model.unet)
    if free is not None:
        message += f"; the card has {free / 2**30:.1f} GB free beside what is loaded"
    if free is not None and found.step > free:
        smaller: dict[str, Any] = {"batch_size": max(1, config.batch_size // 2)} if checkpointing else {}
        remedy = smaller or {"checkpointing": "on"}
        yield monitor.event(0, "warning", "memory", f"{message}: that will not fit. Train with less at once.", **remedy)
    elif checkpointing:
        yield monitor.event(0, "note", "memory", f"{message}.")
    else:
        yield monitor.event(0, "note", "memory", f"{message}; checkpointing takes far less.", checkpointing="on")


def free_memory(unet: Any) -> int | None:
    """Bytes that are free for a step on the card that holds the UNet; None where it is not on one."""
    device = next(unet.parameters()).device
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def prediction(engine: Engine, fixed: Sequence[Batch], state: State) -> Iterator[Event]:
    """Train by what the checkpoint really predicts.

    Raises:
        WrongUse: it predicts something else than was set.
    """
    declared = engine.objective.prediction
    measured = measured_prediction(engine, fixed[:4], state.copy_of_vectors())
    if measured in (None, declared):
        return
    told = f"The checkpoint is set up for {declared}, but it answers like {measured}."
    if engine.config.prediction != "auto":
        yield monitor.event(0, "error", "wrong-prediction-type", told, prediction=measured)
        raise WrongUse(f"{told} Set the prediction type to auto or to {measured}.")
    engine.objective = objective(engine.config, engine.model.schedule, prediction=measured)
    message = f"{told} It is trained as {measured}; set the prediction type if that is wrong."
    yield monitor.event(0, "warning", "wrong-prediction-type", message, prediction=measured)


def distilled(engine: Engine, fixed: Sequence[Batch]) -> Iterator[Event]:
    """Warn where the checkpoint says that it was distilled to draw in a few steps; a note where it answers so."""
    model = engine.model
    kinds = named(getattr(model, "described", ()))
    if getattr(getattr(model.unet, "config", None), "time_cond_proj_dim", None):
        kinds.append("a guidance input of the UNet, as LCM has it")
    guessed = guessed_detail(engine, fixed)
    guesses = guessed is not None and guessed > GUESSING
    if guessed is not None and guesses and not kinds:  # no warning: strange pictures give such a figure too
        message = (
            f"The checkpoint answers like one that was made to draw in 1 to 8 steps: it makes up {min(guessed, 1):.0%} "
            "of the detail that noise hides. Pictures unlike all that a model knows look the same. If its maker calls "
            "it Turbo, Lightning, Hyper or LCM, train on the model that it was made from."
        )
        yield monitor.event(0, "note", "distilled-checkpoint", message)
    if not kinds:
        return
    answers = " and by its answers" if guesses else ""
    doubt = ""
    if guessed is not None and not guesses:
        doubt = f" Its answers are much like an ordinary model's, though (detail made up: {max(guessed, 0):.0%})."
    message = (
        f"The checkpoint looks distilled, made to draw in 1 to 8 steps, by what is written about it "
        f"({', '.join(kinds)}){answers}.{doubt} Training on such a model learns badly: train on the model that it was "
        "made from, and use the embedding on both."
    )
    yield monitor.event(0, "warning", "distilled-checkpoint", message)


def result(engine: Engine, state: State, vectors: Mapping[str, Tensor]) -> Iterator[Event]:
    """The nearest words of the vectors, and what they do to the rest of a prompt."""
    config, step = engine.config, state.numbers.step
    words = monitor.nearest_words(vectors, engine.model.vocabulary(), 3)
    listed = "; ".join(f"{k}: {' | '.join(', '.join(row) for row in rows[:4])}" for k, rows in words.items())
    yield monitor.event(step, "note", "nearest-words", f"Nearest words of the first vectors: {listed}.")
    score = monitor.order_probe(engine.model, config.name, vectors, state.start, config.resolution)
    message = f"Beside the embedding {score:.0%} of the other words' effect is left (measured on the text encoders)."
    if score < _DROWNED:
        hint = f"{message} It may drown prompts; train fewer steps or with the direction optimiser."
        yield monitor.event(step, "warning", "order-probe", hint, optimiser="direction")
    else:
        yield monitor.event(step, "note", "order-probe", message)
