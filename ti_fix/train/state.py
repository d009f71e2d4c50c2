"""All that a run knows at a step: what a checkpoint holds, and nothing else decides how the run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ti_fix.errors import TiFixError
from ti_fix.train.config import RESUMABLE, TrainConfig, as_mapping
from ti_fix.train.optimise import Optimiser

FORMAT = "1"


@dataclass(slots=True, kw_only=True)
class Numbers:
    """What a run remembers beside tensors.

    Attributes:
        step: updates made.
        smooth_loss: moving average of the loss.
        best_step, best_loss: of the fixed loss; -1 and infinity before the first one.
        first_loss: the fixed loss before training.
        stale: fixed losses since the best one.
        scale: factor of the loss before the backward pass.
        steady: steps since the factor last changed.
        rate_factor: by which the rate was lowered after non-finite losses.
        bad_steps: steps in a row without a finite loss.
        gradients: lengths of the last gradients.
        told: findings that are told once.
    """

    step: int = 0
    smooth_loss: float = math.nan
    best_step: int = -1
    best_loss: float = math.inf
    first_loss: float = math.nan
    stale: int = 0
    scale: float = 1.0
    steady: int = 0
    rate_factor: float = 1.0
    bad_steps: int = 0
    gradients: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class State:
    """A run at a step.

    Attributes:
        vectors: encoder key -> (vectors, width) float32 leaf on the CPU.
        start: the same before the first step.
        best: the same at the best fixed loss.
        optimiser: with its own state.
        numbers: the rest.
    """

    vectors: dict[str, Tensor]
    start: dict[str, Tensor]
    best: dict[str, Tensor]
    optimiser: Optimiser
    numbers: Numbers

    def copy_of_vectors(self) -> dict[str, Tensor]:
        """The vectors as they are now, without a gradient."""
        return {key: block.detach().clone() for key, block in self.vectors.items()}

    def set_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Overwrite the leaves."""
        with torch.no_grad():
            for key, block in self.vectors.items():
                block.copy_(vectors[key])


def new_state(start: Mapping[str, Tensor], optimiser: Optimiser, scale: float) -> State:
    """The state before the first step."""
    return State(
        vectors={key: block.detach().clone().requires_grad_() for key, block in start.items()},
        start={key: block.detach().clone() for key, block in start.items()},
        best={key: block.detach().clone() for key, block in start.items()},
        optimiser=optimiser,
        numbers=Numbers(scale=scale),
    )


def to_bytes(state: State, config: TrainConfig) -> bytes:
    """The state as a safetensors file."""
    parts: Mapping[str, Mapping[str, Tensor]] = {
        "vectors": state.vectors,
        "start": state.start,
        "best": state.best,
        "optimiser": state.optimiser.state(),
    }
    tensors = {f"{part}/{name}": t.detach().clone() for part, named in parts.items() for name, t in named.items()}
    about = {
        "ti_fix.state": FORMAT,
        "numbers": json.dumps(asdict(state.numbers)),
        "config": json.dumps(as_mapping(config)),
    }
    return save(tensors, metadata=about)


def from_bytes(data: bytes, optimiser: Optimiser, where: str) -> tuple[State, dict[str, Any]]:
    """A state from a file, and the settings that it was saved with.

    Raises:
        TiFixError: it is no state, damaged, or of another version.
    """
    try:
        tensors = load(data)
        about = _header(data)
        numbers = {k: v for k, v in json.loads(about["numbers"]).items() if k in {f.name for f in fields(Numbers)}}
        config = json.loads(about["config"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise TiFixError(f"{where} is no saved run ({error}); start without resume.") from None
    if about.get("ti_fix.state") != FORMAT:
        raise TiFixError(f"{where} was saved by another version of ti_fix; start without resume.")
    parts: dict[str, dict[str, Tensor]] = {"vectors": {}, "start": {}, "best": {}, "optimiser": {}}
    for name, tensor in tensors.items():
        part, _, key = name.partition("/")
        parts.setdefault(part, {})[key] = tensor
    optimiser.load_state(parts["optimiser"])
    vectors = {key: block.requires_grad_() for key, block in parts["vectors"].items()}
    return State(
        vectors=vectors, start=parts["start"], best=parts["best"], optimiser=optimiser, numbers=Numbers(**numbers)
    ), config


def _header(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return found


def differences(config: TrainConfig, saved: Mapping[str, Any]) -> list[str]:
    """Settings that a resumed run changes although they decide how it goes."""
    now = as_mapping(config)
    constant = config.schedule == "constant"
    return [
        name
        for name, value in now.items()
        if name in saved and saved[name] != value and (name not in RESUMABLE or (name == "steps" and not constant))
    ]
