"""Learning rate and clipping bound of each step and encoder, in the unit that the optimiser uses."""

from __future__ import annotations

from collections.abc import Mapping

from ti_fix.train.config import TrainConfig
from ti_fix.train.initial import Statistics
from ti_fix.train.schedule import Rate, last_step, scheduled


def steps_of(config: TrainConfig) -> int:
    """Steps of the run: as set, or up to the last stage of the longest rate text."""
    return last_step([text for text in (config.learning_rate, config.learning_rate_g) if text], config.steps)


def rates_of(config: TrainConfig, about: Mapping[str, Statistics]) -> dict[str, Rate]:
    """Encoder key -> raw rate of each step; rates in multiples of the vocabulary's RMS are multiplied out."""
    return {key: _rate(config, key, each) for key, each in about.items()}


def _rate(config: TrainConfig, key: str, about: Statistics) -> Rate:
    text = config.learning_rate_g if key == "clip_g" and config.learning_rate_g else config.learning_rate
    rate = scheduled(
        text,
        shape=config.schedule,
        steps=steps_of(config),
        warmup=config.warmup,
        floor=config.rate_floor,
        cycles=config.cycles,
    )
    unit = about.rms if config.rate_unit == "rms" else 1.0
    return lambda step: unit * rate(step)
