"""One embedding for one target, whichever way that goes; the command line, the page and the API call this."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from ti_fix.convert.config import ConvertConfig
from ti_fix.convert.converter import Converter
from ti_fix.convert.down import to_sd15
from ti_fix.convert.matching import MatchEvent
from ti_fix.convert.move import moved
from ti_fix.convert.result import Conversion
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, T5_XXL, Embedding, Family
from ti_fix.errors import WrongUse
from ti_fix.protocols import DiffusionModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """What to convert for.

    Attributes:
        family: SD1.5 or SDXL.
        converter: the dictionary of the SDXL checkpoint; needed for SD1.5 files to SDXL.
        made_on: CLIP-L table of the SDXL checkpoint that the embeddings come from, if known.
        used_on: CLIP-L table of the SD1.5 checkpoint that they are for, if known.
        models: (old, new) checkpoints to move embeddings between, which are of the family already.
    """

    family: Family
    converter: Converter | None = None
    made_on: Tensor | None = None
    used_on: Tensor | None = None
    models: tuple[DiffusionModel, DiffusionModel] | None = None


def convert(
    embedding: Embedding, target: Target, config: ConvertConfig, stop: Callable[[], bool]
) -> Iterator[MatchEvent | Conversion]:
    """Convert; the last event is the conversion.

    Raises:
        WrongUse: this embedding cannot be, or need not be, converted for that target.
    """
    keys = set(embedding.vectors) - {T5_XXL.key}
    if target.models is not None:
        yield from moved(embedding.half(frozenset(keys)), *target.models, config, stop)
    elif keys == target.family.keys and T5_XXL.key not in embedding.vectors:
        raise WrongUse(f"{embedding.name!r} is for {target.family.title} already; nothing to convert.")
    elif target.family is SD15:
        yield to_sd15(embedding, target.made_on, target.used_on)
    elif target.family is not SDXL:
        raise WrongUse(f"there is no conversion to {target.family.title}; choose SDXL or SD1.5.")
    elif keys == {CLIP_L.key, CLIP_G.key}:
        raise WrongUse(f"{embedding.name!r} has both SDXL halves already; `ti-fix repair` writes them without the T5.")
    elif target.converter is None:
        raise WrongUse("name the SDXL checkpoint to convert for; its own words are the dictionary.")
    else:
        yield from target.converter.events(embedding, config, stop)
