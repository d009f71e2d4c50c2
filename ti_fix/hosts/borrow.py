"""Autograd on weights that belong to somebody else: everything here is undone when its context ends.

Knows modules and tensors, no host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")

NORMS = ("norm1", "norm2", "norm3")
TRANSFORMER_BLOCK = "BasicTransformerBlock"

_ABSENT = object()


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While open, `owner.name` is `value`; then what stood in its own dictionary comes back, if anything did."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def frozen(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While open, no weight asks for a gradient and every module is in evaluation mode.

    Weights that are inference tensors cannot be switched outside inference mode; `aliased` stands in for them.
    """
    modules = list(modules)
    flags = [(p, p.requires_grad) for m in modules for p in m.parameters() if not p.is_inference()]
    modes = [(part, part.training) for m in modules for part in m.modules()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for part, training in modes:
            part.training = training


def alias(tensor: Tensor) -> Tensor:
    """An ordinary tensor on the same memory: nothing is copied, and autograd may save it.

    Assigning an ordinary one to ``.data`` of an inference tensor, as `Module.to` does outside inference mode, leaves
    one without a version counter, of which not even a slice can be taken; so the tensor itself is never touched.
    """
    with torch.inference_mode(False):
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        return made


@contextmanager
def aliased(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While open, ordinary tensors on the same memory stand in for all weights and buffers.

    The modules must not be moved meanwhile: moving gives the stand-in new memory and leaves the original behind.
    A weight that several modules share has one stand-in.
    """
    with _stood_in(modules, alias):
        yield


@contextmanager
def widened(modules: Iterable[nn.Module], kind: torch.dtype) -> Iterator[None]:
    """While open, copies in another precision stand in for all weights and buffers; the originals are not touched."""
    with _stood_in(modules, lambda tensor: tensor.to(kind) if tensor.is_floating_point() else tensor):
        yield


@contextmanager
def _stood_in(modules: Iterable[nn.Module], make: Callable[[Tensor], Tensor]) -> Iterator[None]:
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    made: dict[int, Tensor] = {}
    try:
        for part in {id(part): part for module in modules for part in module.modules()}.values():
            kept: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)  # noqa: SLF001 - setattr runs code
            for entries in kept:
                for name, tensor in entries.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in made:
                        made[id(tensor)] = _stand_in(tensor, make)
                    replaced.append((entries, name, tensor))
                    entries[name] = made[id(tensor)]
        yield
    finally:
        for entries, name, tensor in replaced:
            entries[name] = tensor


def _stand_in(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    ordinary = make(tensor)
    return nn.Parameter(ordinary, requires_grad=False) if isinstance(tensor, nn.Parameter) else ordinary


@contextmanager
def norms_apart(unet: nn.Module) -> Iterator[None]:
    """While open, the norms of transformer blocks read copies of their inputs.

    Some hosts add to a block's state in place (``x += n``) after a norm has kept it for the backward pass. Computed
    again by checkpointing, that gives a wrong gradient without an error.
    """
    handles = [
        norm.register_forward_pre_hook(_cloned)
        for block in unet.modules()
        if type(block).__name__ == TRANSFORMER_BLOCK
        for norm in (getattr(block, name, None) for name in NORMS)
        if norm is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cloned(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)


def called_through(module: nn.Module, work: Callable[[], T]) -> T:
    """Do work as the forward pass of a module, so that hooks on it run: some bring it to the graphics card."""
    with attribute(module, "forward", work):
        result: T = module()
    return result


def unusable(modules: Iterable[nn.Module]) -> str:
    """Why gradients cannot pass through weights that are stored like this, empty where they can."""
    for parameter in (p for module in modules for p in module.parameters()):
        if parameter.is_meta:
            return "its weights are not in memory"
        if getattr(parameter, "gguf_cls", None) is not None:
            return "its weights are stored as GGUF"
        if getattr(parameter, "bnb_quantized", False) or getattr(parameter, "quant_state", None) is not None:
            return "its weights are stored in 4 bits (nf4 or fp4)"
        if not parameter.is_floating_point():
            return f"its weights are stored as {str(parameter.dtype).removeprefix('torch.')}"
    return ""
