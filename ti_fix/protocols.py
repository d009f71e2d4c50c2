"""All that the core asks of the outside: a host, and the diffusion model that it has loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from ti_fix.embedding import Embedding, Family, Vocabulary

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """One picture to make.

    Attributes:
        prompt, negative_prompt: texts as the user would type them; triggers of `embeddings` may stand in them.
        width, height: pixels.
        steps: sampling steps.
        cfg_scale: classifier-free guidance scale.
        seed: seed of the starting noise.
        embeddings: embeddings to use beside those of the host's folders.
    """

    prompt: str
    negative_prompt: str = ""
    width: int = 1024
    height: int = 1024
    steps: int = 20
    cfg_scale: float = 7.0
    seed: int = 0
    embeddings: tuple[Embedding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """SDXL's size conditioning of one picture, each as (height, width) in pixels (arXiv 2307.01952, section 2.2)."""

    original: tuple[int, int]
    crop: tuple[int, int] = (0, 0)
    target: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conditioning:
    """What the UNet is told about the text.

    Attributes:
        context: (batch, 77 * chunks, context width).
        vector: (batch, adm width) pooled text and sizes, None where the family has none.
    """

    context: Tensor
    vector: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseSchedule:
    """The diffusion process that the model was trained on.

    Attributes:
        alphas_cumprod: (timesteps,) float tensor, Ho et al. 2020 (arXiv 2006.11239).
        prediction_type: ``epsilon`` or ``v_prediction`` (Salimans & Ho 2022, arXiv 2202.00512).
    """

    alphas_cumprod: Tensor
    prediction_type: str


class DiffusionModel(Protocol):
    """The loaded model; everything about devices, precision and low-memory modes stays behind it."""

    @property
    def family(self) -> Family: ...
    @property
    def schedule(self) -> NoiseSchedule: ...
    @property
    def unet(self) -> Any:
        """The UNet module, for hooks on ``attn2``."""

    def vocabulary(self) -> Vocabulary: ...

    def trainable(self) -> AbstractContextManager[None]:
        """While open, the weights take part in autograd; on exit everything is as it was."""

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Pixels (batch, 3, height, width) in -1…1 -> scaled latents (batch, 4, height / 8, width / 8)."""

    def encode_prompts(
        self,
        prompts: Sequence[str],
        tensors: Mapping[str, Mapping[str, Tensor]],
        sizes: Sequence[Sizes],
    ) -> Conditioning:
        """The host's own encode path, differentiable in the tensors.

        Args:
            prompts: one text a row.
            tensors: trigger -> encoder key -> (rows, width), spliced in where the trigger stands.
            sizes: one a row.
        """

    def predict(self, noisy: Tensor, timesteps: Tensor, conditioning: Conditioning) -> Tensor:
        """The UNet's raw output, of the shape of `noisy` (batch, 4, height / 8, width / 8)."""


class Described(Protocol):
    """What a `DiffusionModel` may have besides: read only where it is there."""

    @property
    def described(self) -> Sequence[str]:
        """What is written about the checkpoint: file name, title, merge recipe, kind of scheduler."""


class WidensImages(Protocol):
    """What a `DiffusionModel` may have besides: asked only where `encode_images` answers with NaN."""

    def encode_images_in(self, pixels: Tensor, precision: str) -> Tensor:
        """`encode_images` with the VAE in ``bfloat16`` or ``float32`` for this call, as it was afterwards."""


class Host(Protocol):
    """The program that holds the model: a WebUI, or the standalone one."""

    @property
    def name(self) -> str: ...
    @property
    def embedding_folders(self) -> Sequence[Path]: ...

    def model(self) -> DiffusionModel: ...

    def generate(self, request: ImageRequest) -> Any:
        """One picture as a PIL image; works inside `DiffusionModel.trainable` too."""

    def run(self, work: Callable[[], T]) -> T:
        """Do model work where and when this host wants it (queue lock, main thread)."""

    def interrupted(self) -> bool:
        """Whether the user has pressed the host's own stop button."""

    def refresh_embeddings(self) -> None:
        """Make new and changed files usable in the next prompt."""
