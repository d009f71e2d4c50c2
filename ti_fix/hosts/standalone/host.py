"""The program that holds a standalone model: its embeddings, its pictures, its lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from ti_fix.embedding import SDXL, Embedding
from ti_fix.hosts.standalone.model import StandaloneModel
from ti_fix.hosts.standalone.sample import joined, sample, starting_noise, to_images
from ti_fix.protocols import Conditioning, ImageRequest, Sizes

T = TypeVar("T")


class StandaloneHost:
    """A `ti_fix.protocols.Host` around one `StandaloneModel`.

    Args:
        model: the loaded model.
        embedding_folders: folders whose embeddings prompts may call.
        read_folder: reads one of these folders.
        fit: makes an embedding fit the model (the small models fold published widths); the default changes nothing.
    """

    name = "standalone"

    def __init__(
        self,
        model: StandaloneModel,
        *,
        embedding_folders: Sequence[Path] = (),
        read_folder: Callable[[Path], Iterable[Embedding]] = lambda _folder: (),
        fit: Callable[[Embedding], Embedding] = lambda embedding: embedding,
    ) -> None:
        self._model = model
        self._folders = tuple(embedding_folders)
        self._read_folder = read_folder
        self._fit = fit
        self._lock = threading.RLock()
        self._known: dict[str, Mapping[str, Tensor]] = {}
        self.refresh_embeddings()

    @property
    def embedding_folders(self) -> Sequence[Path]:
        return self._folders

    def model(self) -> StandaloneModel:
        """The model it was made with."""
        return self._model

    def run(self, work: Callable[[], T]) -> T:
        """Do model work now, one piece at a time."""
        with self._lock:
            return work()

    def interrupted(self) -> bool:
        """Never: there is no stop button here but the caller's own."""
        return False

    def refresh_embeddings(self) -> None:
        """Read the folders again; until then new files are not seen."""
        found = (self._fit(e) for folder in self._folders for e in self._read_folder(folder))
        self._known = {e.name: e.vectors for e in found}

    def generate(self, request: ImageRequest) -> Image.Image:
        """One picture; see `generate_many`."""
        return self.generate_many([request])[0]

    @torch.no_grad()
    def generate_many(self, requests: Sequence[ImageRequest]) -> list[Image.Image]:
        """Pictures in the order of the requests; those that agree in size, steps and guidance share a batch.

        Raises:
            WrongUse: a size that the model cannot make.
        """
        groups: dict[tuple[Any, ...], list[tuple[int, Conditioning, Conditioning]]] = {}
        for place, request in enumerate(requests):
            wanted, unwanted = self._condition(request)
            shared = (request.width, request.height, request.steps, request.cfg_scale)
            key = (*shared, wanted.context.shape, unwanted.context.shape)
            groups.setdefault(key, []).append((place, wanted, unwanted))
        images: dict[int, Image.Image] = {}
        for (width, height, steps, cfg_scale, *_), group in groups.items():
            places, wanteds, unwanteds = zip(*group, strict=True)
            latents = sample(
                self._model.predict,
                self._model.scheduler_config,
                starting_noise([requests[p].seed for p in places], height, width, self._model.latent_scale),
                joined(wanteds),
                joined(unwanteds),
                steps=steps,
                cfg_scale=cfg_scale,
            )
            images.update(zip(places, to_images(self._model.decode_latents(latents)), strict=True))
        return [images[place] for place in range(len(requests))]

    def _condition(self, request: ImageRequest) -> tuple[Conditioning, Conditioning]:
        """What the UNet is told for the prompt and for the negative prompt, a batch of one each."""
        vectors = {**self._known, **{e.name: e.vectors for e in map(self._fit, request.embeddings)}}
        size = request.height, request.width
        sizes = [Sizes(original=size, target=size)]
        wanted = self._model.encode_prompts([request.prompt], vectors, sizes)
        unwanted = self._model.encode_prompts([request.negative_prompt], vectors, sizes)
        if self._model.family == SDXL and not request.negative_prompt:
            unwanted = self._model.without_text(unwanted)
        return wanted, unwanted
