"""Text encoders in two passes: run without gradients now, again with them once their gradient is known.

Chen et al. 2016 (arXiv 1604.06174) for a whole network: gradients are equal up to rounding, and between the passes
nothing of the encoders is kept, neither states nor the copies that a host makes when it casts weights; they may even
leave the graphics card meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Encode = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""From leaves to outputs; gives the same for the same leaves."""


def in_two_passes(encode: Encode, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of `encode`, whose backward pass runs it again."""
    outputs: tuple[Tensor, ...] = _Again.apply(encode, *leaves)  # type: ignore[no-untyped-call]
    return outputs


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, encode: Encode, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.encode = encode
        ctx.save_for_backward(*leaves)
        with torch.no_grad():
            return encode(leaves)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [leaf.detach() for leaf in ctx.saved_tensors]
            for place in wanted:
                leaves[place].requires_grad_()
            outputs = ctx.encode(leaves)
            reached = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad]
            found: Sequence[Tensor | None] = [None] * len(wanted)
            if reached:
                chosen, weights = zip(*reached, strict=True)
                found = torch.autograd.grad(chosen, [leaves[p] for p in wanted], weights, allow_unused=True)
        answers = dict(zip(wanted, found, strict=True))
        return (None, *(answers.get(place) for place in range(len(ctx.saved_tensors))))
