"""Texts for a judge: token ids with their end token, long ones in parts."""

from __future__ import annotations

import torch
from torch import Tensor

from ti_fix.embedding import CLIP_L
from ti_fix.tokenizer import encode

_BOS, _EOS = CLIP_L.bos_id or 0, CLIP_L.eos_id or 0
_COMMA, _STOP = 267, 269


def parts(ids: list[int], room: int) -> list[list[int]]:
    """Cut token ids into parts of at most `room`, at the last comma or full stop of a part where there is one.

    Args:
        ids: without start and end.
        room: tokens of a part, start and end not counted.
    """
    cut: list[list[int]] = []
    while len(ids) > room:
        ends = [i + 1 for i, token in enumerate(ids[:room]) if token in (_COMMA, _STOP)]
        at = ends[-1] if ends and ends[-1] > room // 2 else room
        cut.append(ids[:at])
        ids = ids[at:]
    return [*cut, ids] if ids or not cut else cut


def batch_of(texts: list[str], context: int) -> tuple[Tensor, list[int], list[int]]:
    """Token ids of texts for a tower that reads `context` tokens.

    Returns:
        ids (parts, context), zero behind each end token as open_clip pads; the text that each part belongs to; the
        tokens of each part.
    """
    rows: list[list[int]] = []
    owners: list[int] = []
    lengths: list[int] = []
    for owner, text in enumerate(texts):
        for part in parts(encode(text), context - 2):
            rows.append([_BOS, *part, _EOS, *[0] * (context - 2 - len(part))])
            owners.append(owner)
            lengths.append(max(1, len(part)))
    return torch.tensor(rows), owners, lengths


def joined(features: Tensor, owners: list[int], lengths: list[int], count: int) -> Tensor:
    """One feature a text: the mean of its parts by their tokens, of unit length.

    A text of one part keeps its feature. The cosine of a picture to the mean is the mean of the cosines up to the
    length that the normalisation takes off.

    Args:
        features: (parts, width).
        owners: from `batch_of`.
        lengths: from `batch_of`.
        count: how many texts.
    """
    weights = torch.tensor(lengths, dtype=features.dtype, device=features.device)[:, None]
    sums = torch.zeros(count, features.shape[1], dtype=features.dtype, device=features.device)
    sums.index_add_(0, torch.tensor(owners, device=features.device), features * weights)
    return torch.nn.functional.normalize(sums, dim=-1)
