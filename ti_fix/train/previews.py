"""Pictures during a run: previews, and the order probe by pictures: does a prompt's other half still come through?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ti_fix.errors import TiFixError
from ti_fix.protocols import ImageRequest
from ti_fix.train import monitor
from ti_fix.train.captions import NAME, filled
from ti_fix.train.checkpoint import embedding_of
from ti_fix.train.config import TrainConfig
from ti_fix.train.events import Event, FindingEvent, PreviewEvent

Generate = Callable[[ImageRequest], Any]

FAILURES = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TiFixError, TypeError, ValueError)
"""What a host's generation may raise; a failed picture must not end a training."""

FILLER = "a"
"""The word that stands in for each vector in the control."""

_SIDE = 16
"""Pixels to which pictures are shrunk before they are compared."""


class Previews:
    """Makes the pictures of a run, between its steps.

    Args:
        config: the settings.
        generate: the host's.
    """

    def __init__(self, config: TrainConfig, generate: Generate) -> None:
        self._config, self._generate = config, generate
        self._scenes: Tensor | None = None
        self._control = 0

    def preview(self, step: int, vectors: Mapping[str, Tensor]) -> Iterator[Event]:
        """One picture, or why there is none."""
        prompt = filled(self._config.preview_prompt, self._config.name, "")
        try:
            image = self._made(prompt, vectors)
        except FAILURES as error:
            yield _failed(step, "preview", error)
            return
        yield PreviewEvent(step=step, prompt=prompt, image=image)

    def probe(self, step: int, vectors: Mapping[str, Tensor]) -> Iterator[Event]:
        """Whether scenes beside the name are still drawn.

        "a photo on a beach" shows what a beach looks like from this seed; "a photo of NAME on a beach" must look more
        like it than like the other scenes, what all scenes have in common taken away. The control is the same with
        filler words in the place of the vectors: what fails there, fails for the words' places and not for the vectors.
        """
        about, scenes = self._config.preview_prompt, self._config.probe_scenes
        if len(scenes) < 2:
            return
        try:
            if self._scenes is None:
                bare = about.partition(f" of {NAME}")[0] if f" of {NAME}" in about else about.replace(NAME, "").strip()
                self._scenes = self._shrunk([f"{bare} {scene}" for scene in scenes], {})
                words = " ".join([FILLER] * self._config.vectors)
                self._control = recognised(self._shrunk(self._prompts(words), {}), self._scenes)
            found = recognised(self._shrunk(self._prompts(self._config.name), vectors), self._scenes)
        except FAILURES as error:
            yield _failed(step, "order probe", error)
            return
        yield self._told(step, found, self._control)

    def _prompts(self, word: str) -> list[str]:
        return [f"{filled(self._config.preview_prompt, word, '')} {scene}" for scene in self._config.probe_scenes]

    def _told(self, step: int, found: int, control: int) -> FindingEvent:
        total, first = len(self._config.probe_scenes), self._prompts(self._config.name)[0]
        message = f"Pictures of “{first}” and {total - 1} other scenes: {found} of {total} show their scene"
        message += f" (with filler words in place of the vectors: {control})."
        if control <= total / 2:
            hint = f"{message} This model draws such scenes too weakly to judge by them; name others (probe_scenes)."
            return monitor.event(step, "note", "order-probe-pictures", hint)
        if found <= control / 2:
            hint = f"{message} The vectors drown the rest of the prompt; train fewer steps or by direction."
            return monitor.event(step, "warning", "order-probe-pictures", hint, optimiser="direction")
        return monitor.event(step, "note", "order-probe-pictures", message)

    def _shrunk(self, prompts: Sequence[str], vectors: Mapping[str, Tensor]) -> Tensor:
        """Pictures as (prompts, numbers) in 0…1."""
        small = [self._made(prompt, vectors).convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
                 for prompt in prompts]  # fmt: skip
        return torch.stack([torch.from_numpy(np.asarray(each, np.float32).ravel() / 255) for each in small])

    def _made(self, prompt: str, vectors: Mapping[str, Tensor]) -> Any:
        config = self._config
        request = ImageRequest(
            prompt=prompt,
            width=config.resolution,
            height=config.resolution,
            steps=config.preview_steps,
            seed=config.seed,
            embeddings=(embedding_of(config, vectors, {}),) if vectors else (),
        )
        return self._generate(request)


def recognised(pictures: Tensor, scenes: Tensor) -> int:
    """How many pictures resemble their own scene most, by the cosine of what tells them apart; both (scenes, numbers).

    Pictures that hardly differ from each other show no scene at all.
    """
    one, other = pictures - pictures.mean(0), scenes - scenes.mean(0)
    alike = torch.nn.functional.normalize(one, dim=1) @ torch.nn.functional.normalize(other, dim=1).T
    own = torch.arange(len(pictures))
    plain = torch.linalg.vector_norm(one, dim=1) > 0.1 * torch.linalg.vector_norm(other, dim=1)
    return int(((alike.argmax(1) == own) & plain).sum())


def _failed(step: int, what: str, error: Exception) -> FindingEvent:
    message = f"The {what} failed ({type(error).__name__}: {error}); the training goes on."
    return monitor.event(step, "warning", f"{what.replace(' ', '-')}-failed", message)
