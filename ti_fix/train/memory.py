"""How much memory a step takes, counted before it is taken: the UNet runs on tensors that have a shape and no content.

What a step holds at its peak: the weights, what autograd keeps for the backward pass, the gradient that is on its way
through the largest layer, and, with checkpointing, what one block keeps while it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ti_fix.protocols import Conditioning, DiffusionModel
from ti_fix.train.recompute import around_blocks, recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes of one step.

    Attributes:
        weights: of the UNet.
        kept: what autograd keeps between forward and backward.
        block: what the largest block keeps while it is computed again; 0 without checkpointing.
        moving: gradients into and out of the largest layer.
        workspace: two copies of the largest convolution's weights, which kernels bring into orders of their own.
    """

    weights: int
    kept: int
    block: int
    moving: int
    workspace: int

    @property
    def total(self) -> int:
        """At the peak."""
        return self.weights + self.step

    @property
    def step(self) -> int:
        """At the peak, weights apart."""
        return self.kept + self.block + self.moving + self.workspace


def estimate(unet: Any, call: Callable[[Any], Tensor], *, checkpointing: bool) -> Estimate:
    """Count the bytes of a forward pass with gradients to the text.

    Args:
        unet: the module, with its weights on any device; they are neither read nor copied.
        call: runs the module it is given on meta tensors of the wanted shapes, text with ``requires_grad``, and
            returns its output.
        checkpointing: whether blocks are computed again in the backward pass.
    """
    workspace = 2 * max((p.numel() * p.element_size() for p in unet.parameters() if p.ndim == 4), default=0)
    weights = sum(p.numel() * p.element_size() for p in unet.parameters())
    with on_meta(unet), _attention_without_matrices():
        if not checkpointing:
            kept, largest = _kept(unet, lambda: call(unet))
            return Estimate(weights=weights, kept=kept, block=0, moving=2 * largest, workspace=workspace)
        block, largest = _largest_block(unet, lambda: call(unet))
        with recomputed(unet):
            kept, _ = _kept(unet, lambda: call(unet))
        return Estimate(weights=weights, kept=kept, block=block, moving=2 * largest, workspace=workspace)


def of_step(model: DiffusionModel, latents: Tensor, conditioning: Conditioning, *, checkpointing: bool) -> Estimate:
    """The estimate for a loaded model.

    Args:
        model: inside `trainable()`.
        latents: a batch as it will be trained, (rows, 4, height, width).
        conditioning: of one row.
        checkpointing: whether blocks are computed again.
    """
    rows = len(latents)

    def stand_in(tensor: Tensor) -> Tensor:
        return torch.empty(rows, *tensor.shape[1:], dtype=tensor.dtype, device="meta").requires_grad_()

    def call(_unet: Any) -> Tensor:
        vector = None if conditioning.vector is None else stand_in(conditioning.vector)
        told = Conditioning(context=stand_in(conditioning.context), vector=vector)
        return model.predict(latents.to("meta"), torch.zeros(rows, dtype=torch.long, device="meta"), told)

    return estimate(model.unet, call, checkpointing=checkpointing)


@contextmanager
def on_meta(module: nn.Module) -> Iterator[None]:
    """While open, the module's weights and buffers are stand-ins without content; the real ones are untouched."""
    replaced: list[tuple[nn.Module, str, str, Tensor]] = []
    try:
        for part in module.modules():
            for kind in ("_parameters", "_buffers"):
                for name, tensor in getattr(part, kind).items():
                    if tensor is not None:
                        replaced.append((part, kind, name, tensor))
                        empty: Tensor = torch.empty_like(tensor, device="meta")
                        getattr(part, kind)[name] = (
                            nn.Parameter(empty, requires_grad=False) if kind == "_parameters" else empty
                        )
        yield
    finally:
        for part, kind, name, tensor in replaced:
            getattr(part, kind)[name] = tensor


def _kept(unet: nn.Module, call: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that autograd keeps for the output of a call, each storage once, weights apart; and of the largest one."""
    seen: dict[int, Any] = {}
    own = {p.untyped_storage()._cdata for p in unet.parameters()}  # noqa: SLF001 - the only name that meta storages have

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:  # noqa: SLF001
            seen[storage._cdata] = storage  # noqa: SLF001 - held, so that the name is not given away again
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call()
        sizes = [storage.nbytes() for storage in seen.values()]
        del output
    return sum(sizes), max(sizes, default=0)


def _largest_block(unet: nn.Module, call: Callable[[], Any]) -> tuple[int, int]:
    """The most that one block keeps beside its input, and its largest tensor; the whole UNet runs for it."""
    largest = 0, 0

    def counted(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal largest
            kept, tensor = _kept(module, lambda: forward(*args, **kwargs))
            own_input = args[0].numel() * args[0].element_size()  # kept between the passes, so counted there
            largest = max(largest, (kept - own_input, tensor))
            return forward(*args, **kwargs)

        return run

    with around_blocks(unet, counted), torch.enable_grad():
        call()
    return largest


class _Attention(torch.autograd.Function):
    """Keeps what an attention without materialised matrices keeps: its inputs, its output, one number a row."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """An output of the right shape."""
        output: Tensor = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        """Never called: only shapes are asked for."""
        raise NotImplementedError


@contextmanager
def _attention_without_matrices() -> Iterator[None]:
    original = torch.nn.functional.scaled_dot_product_attention

    def stand_in(query: Tensor, key: Tensor, value: Tensor, *_args: Any, **_named: Any) -> Any:
        return _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]

    torch.nn.functional.scaled_dot_product_attention = stand_in
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
