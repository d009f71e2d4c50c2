"""The model of a command: a checkpoint, a diffusers folder or a small one, held by the standalone host."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ti_fix.errors import WrongUse

SMALL = "small:"


def add_model(parser: Any, *, required: bool = True) -> None:
    """The arguments that say which model, where and how precisely."""
    parser.add_argument(
        "--model",
        required=required,
        metavar="PATH",
        help="a checkpoint, a diffusers folder, or small:sdxl, small:sd15 …",
    )
    parser.add_argument(
        "--precision", choices=("float32", "float16", "bfloat16"), default="float32", help="of the model"
    )
    parser.add_argument(
        "--device", default="auto", help="where the model runs: auto (a GPU if there is one), cpu, cuda"
    )


def device_of(asked: str) -> str:
    """The device to run on.

    Raises:
        WrongUse: CUDA is asked for and there is none.
    """
    import torch

    has_cuda = torch.cuda.is_available()
    if asked.startswith("cuda") and not has_cuda:
        raise WrongUse("there is no CUDA device that PyTorch can use here; leave --device out to use the CPU.")
    return ("cuda" if has_cuda else "cpu") if asked == "auto" else asked


def open_host(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The standalone host with the model, and how its embeddings go from files and into them."""
    return host_of(arguments.model, device_of(arguments.device), arguments.precision)


def host_of(model: str, device: str, precision: str) -> tuple[Any, Any, Any]:
    """The same for a model by its name or path.

    Raises:
        WrongUse: there is no such model.
    """
    import torch

    from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, load_checkpoint, load_folder, parts_of_small

    if model.startswith(SMALL):
        from ti_fix.small import load
        from ti_fix.small.expand import fold, unfold

        try:
            parts = parts_of_small(load(model.removeprefix(SMALL)))
        except KeyError as error:
            raise WrongUse(f"{error.args[0]}.") from None
        return StandaloneHost(StandaloneModel(parts), fit=fold), fold, unfold
    path = Path(model)
    where: dict[str, Any] = {"device": device, "dtype": getattr(torch, precision)}
    if not path.exists():
        raise WrongUse(f"{path} does not exist; give a checkpoint or a diffusers folder (--model).")
    parts = load_folder(path, **where) if path.is_dir() else load_checkpoint(path, **where)
    return StandaloneHost(StandaloneModel(parts)), _same, _same


def _same(embedding: Any) -> Any:
    return embedding
