"""The trained towers as frozen-table text encoders for diffusion training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import CLIPTextModelWithProjection

from ti_fix.small.concepts import concepts
from ti_fix.small.training.checkpoint import load_checkpoint
from ti_fix.small.training.towers import KINDS, UsedRows, text_config
from ti_fix.small.vocabulary import BOS, EOS, PAD, tokenizer

TOWER_OF = {"clip_l": "L", "clip_g": "G"}
WORD_PICTURES = 6  # a row counts as a trained word from this many pictures on
CLAMP = (0.8, 1.25)  # allowed row length as a share of the real mean length


@dataclass(frozen=True, kw_only=True, slots=True)
class Tower:
    """A finished tower: used row ids, their rows and picture counts, and the other weights."""

    used: Tensor
    rows: Tensor
    pictures: Tensor
    body: dict[str, Tensor]


def word_rows(used: Tensor, pictures: Tensor) -> Tensor:
    """Mask of rows that are whole words seen with enough pictures."""
    names = tokenizer("clip_l").convert_ids_to_tokens(used.tolist())
    whole = [n.endswith("</w>") and n[:-4].isalpha() and len(n) > 6 for n in names]
    return torch.tensor(whole) & (pictures >= WORD_PICTURES)


def finished_tower(encoder: str, work: Path) -> Tower:
    """The tower with its row lengths brought to the real encoder's.

    A pre-norm transformer is unchanged when embeddings and everything written to the residual stream are scaled by
    one factor, so the mean length is exact; the few outliers are clamped afterwards.
    """
    name = TOWER_OF[encoder]
    state = load_checkpoint(work / f"tower_{name}.ckpt")
    if state is None:
        raise FileNotFoundError(work / f"tower_{name}.ckpt")
    wanted = KINDS[name].row_length
    table = next(k for k in state["text"] if "token_embedding" in k)
    rows, pictures, used = state["text"][table], state["picture_count"], state["used"]
    if state.get("final"):
        body = {k: v for k, v in state["text"].items() if k != table}
        return Tower(used=used, rows=rows, pictures=pictures, body=body)
    factor = wanted / rows[word_rows(used, pictures)].norm(dim=1).mean().item()
    written = ("position_embedding", "out_proj", "fc2")
    body = {k: v * factor if any(w in k for w in written) else v for k, v in state["text"].items() if k != table}
    rows = rows * factor
    length = rows.norm(dim=1, keepdim=True)
    rows = rows / length * length.clamp(CLAMP[0] * wanted, CLAMP[1] * wanted)
    return Tower(used=used, rows=rows, pictures=pictures, body=body)


def named_rows(tower: Tower) -> tuple[Tensor, Tensor]:
    """Ids of the invented names, and starting rows: each concept's class word, slightly moved."""
    tok = tokenizer("clip_l")
    place = {i: k for k, i in enumerate(tower.used.tolist())}
    ids, rows = [], []
    generator = torch.Generator().manual_seed(3)
    for concept in concepts():
        (token,) = tok(concept.name, add_special_tokens=False)["input_ids"]
        start = tower.rows[place[tok(concept.class_word, add_special_tokens=False)["input_ids"][0]]]
        noise = torch.randn(start.shape, generator=generator) * start.norm() / math.sqrt(len(start))
        ids.append(token)
        rows.append(start + 0.3 * noise)
    return torch.tensor(ids), torch.stack(rows)


class TextEncoder(nn.Module):
    """One tower in diffusion training: rows frozen, the other weights trainable."""

    def __init__(self, encoder: str, tower: Tower, named: bool = False) -> None:
        super().__init__()
        self.encoder, self.kind = encoder, KINDS[TOWER_OF[encoder]]
        self.model = CLIPTextModelWithProjection(text_config(self.kind))
        extra = named_rows(tower) if named else (None, None)
        self.model.set_input_embeddings(UsedRows(tower.used, tower.rows, *extra))
        self.model.load_state_dict(tower.body, strict=False)
        self.table.weight.requires_grad_(False)

    @property
    def table(self) -> UsedRows:
        """The token table."""
        return self.model.get_input_embeddings()

    def last_layer(self) -> list[nn.Parameter]:
        """Weights behind the penultimate states: SDXL does not read them of the L tower."""
        text = self.model.text_model
        return [*text.encoder.layers[-1].parameters(), *text.final_layer_norm.parameters()]

    def body(self) -> dict[str, Tensor]:
        """All weights but the table."""
        return {k: v for k, v in self.model.state_dict().items() if "token_embedding" not in k}

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids (n, 77) -> penultimate states, last normed states (n, 77, 64), pooled projection (n, 64)."""
        out = self.model(input_ids=ids, output_hidden_states=True)
        return out.hidden_states[-2], out.last_hidden_state, out.text_embeds


def token_ids(texts: list[str], encoder: str) -> Tensor:
    """Caption ids (n, 77)."""
    lists = tokenizer(encoder)(texts, add_special_tokens=False, truncation=True, max_length=75)["input_ids"]
    rows = [[BOS, *ids, EOS] for ids in lists]
    return torch.tensor([r + [PAD[encoder]] * (77 - len(r)) for r in rows])
