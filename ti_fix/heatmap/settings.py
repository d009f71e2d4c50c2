"""The settings of attention maps."""

from __future__ import annotations

from dataclasses import dataclass

from ti_fix.options import option

LAYER_CHOICES = ("all", "down", "middle", "up")
ENCODER_CHOICES = ("both", "clip_l", "clip_g")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSettings:
    """What is recorded."""

    layers: str = option("all", "Layers", "Which part of the UNet is looked at.", choices=LAYER_CHOICES)
    first: float = option(
        0.0, "From", "Share of the steps after which recording begins.", minimum=0.0, maximum=1.0, expert=True
    )
    last: float = option(
        1.0, "Until", "Share of the steps after which recording ends.", minimum=0.0, maximum=1.0, expert=True
    )
    temperature: float = option(
        1.0,
        "Temperature",
        "1 is the model's own attention; lower is sharper (0.07 is the view that articles show).",
        minimum=0.01,
        maximum=10.0,
    )
    encoder: str = option(
        "both",
        "Text encoder",
        "SDXL: both encoders' tokens together, or what one of them alone would ask for.",
        choices=ENCODER_CHOICES,
        expert=True,
    )
