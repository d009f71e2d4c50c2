"""The standalone host as commands open it: ``--model``, ``--precision`` and ``--device``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ti_fix.errors import WrongUse

if TYPE_CHECKING:  # PyTorch takes seconds to import, and --help needs none of it
    from ti_fix.embedding import Embedding

Convert = Callable[["Embedding"], "Embedding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """How embeddings go from files into a model and back.

    Attributes:
        fit: from the widths of files to the model's; only the small models differ.
        publish: the way back.
    """

    fit: Convert
    publish: Convert


def add_model_arguments(parser: Any, *, default: str | None = None) -> None:
    """The arguments that say which model is opened, and how."""
    parser.add_argument(
        "--model",
        required=default is None,
        default=default,
        metavar="PATH",
        help="a checkpoint, a diffusers folder, or small:sdxl, small:sd15 …"
        + (f" (default: {default}, which ships with ti_fix)" if default else ""),
    )
    parser.add_argument(
        "--precision", choices=("float32", "float16", "bfloat16"), default="float32", help="of the model"
    )
    parser.add_argument(
        "--device", default="auto", help="where the model runs: auto (a GPU if there is one), cpu, cuda"
    )


def widths_of(model: str) -> Widths:
    """How embeddings go into a model and out of it; loads nothing of it."""
    return Widths(fit=_fold, publish=_unfold) if model.startswith("small:") else Widths(fit=_same, publish=_same)


def _fold(embedding: Embedding) -> Embedding:
    from ti_fix.small.expand import fold  # diffusers takes seconds; nothing is folded before a model is there

    return fold(embedding)


def _unfold(embedding: Embedding) -> Embedding:
    from ti_fix.small.expand import unfold

    return unfold(embedding)


def open_host(arguments: argparse.Namespace, folders: Sequence[Path] = ()) -> Any:
    """Load the model.

    Args:
        arguments: what `add_model_arguments` added.
        folders: whose embeddings prompts may call.

    Raises:
        TiFixError: there is no such model or device.
    """
    import torch

    from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, load_checkpoint, load_folder, parts_of_small
    from ti_fix.repair import clean, scan

    device = device_of(arguments.device)
    path = Path(arguments.model)
    if arguments.model.startswith("small:"):
        from ti_fix.small import load

        try:
            parts = parts_of_small(load(arguments.model.removeprefix("small:")))
        except KeyError as error:
            raise WrongUse(f"{error.args[0]}.") from None
    elif path.exists():
        where: dict[str, Any] = {"device": device, "dtype": getattr(torch, arguments.precision)}
        parts = load_folder(path, **where) if path.is_dir() else load_checkpoint(path, **where)
    else:
        raise WrongUse(f"{path} does not exist; give a checkpoint or a diffusers folder (--model).")
    model, fit = StandaloneModel(parts), widths_of(arguments.model).fit

    def usable(folder: Path) -> Iterable[Embedding]:
        found = (each for judged in scan([folder], family=model.family) for each in clean(judged))
        return (each for each in found if each.family == model.family)

    return StandaloneHost(model, embedding_folders=folders, read_folder=usable, fit=fit)


def device_of(asked: str) -> str:
    """The device to run on; of several processes on one computer each takes a card of its own.

    Raises:
        WrongUse: CUDA is asked for and there is none.
    """
    import torch

    has_cuda = torch.cuda.is_available()
    if asked.startswith("cuda") and not has_cuda:
        raise WrongUse("there is no CUDA device that PyTorch can use here; leave --device out to train on the CPU.")
    found = ("cuda" if has_cuda else "cpu") if asked == "auto" else asked
    return f"cuda:{os.environ['LOCAL_RANK']}" if found == "cuda" and "LOCAL_RANK" in os.environ else found


def _same(embedding: Embedding) -> Embedding:
    return embedding
