"""What a model runs on, for people: versions, memory, precisions."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn


def machine() -> list[tuple[str, str]]:
    """Names and values: Python, PyTorch, free memory of the GPU and of the computer."""
    found = [("python", platform.python_version()), ("torch", torch.__version__)]
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        found += [("gpu", torch.cuda.get_device_name()), ("gpu_memory", f"{_gigabytes(free)} of {_gigabytes(total)}")]
    memory = _free_memory()
    return [*found, ("memory", _gigabytes(memory))] if memory else found


def precisions(encoders: Any, unet: Any) -> list[tuple[str, str]]:
    """Names and values: types of the weights of the text encoders and of the UNet; nothing without a model."""
    named = (("encoder_dtype", encoders), ("unet_dtype", unet))
    return [(name, text) for name, module in named if (text := _types(module))]


def _types(module: Any) -> str:
    if not isinstance(module, nn.Module):
        return ""
    return ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()}))


def _gigabytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say it in /proc."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0].split()[1]) if found else None
