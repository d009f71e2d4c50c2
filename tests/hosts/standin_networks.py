"""Networks that are put together like the WebUIs' and behave like them where training meets them; our own code.

Block names, in-place additions, wrappers around token tables and the one slot for vectors to splice in are as
docs/hosts.md tells; sizes are tiny, token tables take no memory.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.hosts.standin_databases import WIDTHS
from ti_fix import tokenizer
from ti_fix.prompt import EMPTY_CHUNK, Chunk, split_prompt

VOCABULARY, INNER, CHANNELS = 49408, 32, 32
BOS, EOS = 49406, 49407


class Spliced(nn.Module):
    """The wrapper around a token table: reads the slot, empties it, puts vectors in."""

    def __init__(self, wrapped: nn.Module, slot: Any, key: str) -> None:
        super().__init__()
        self.wrapped, self.key = wrapped, key
        object.__setattr__(self, "slot", slot)

    def forward(self, ids: Tensor) -> Tensor:
        fixes, self.slot.fixes = self.slot.fixes, None
        rows = self.wrapped(ids)
        if not fixes or not any(fixes):
            return rows
        filled = []
        for each, row in zip(fixes, rows, strict=True):
            now = row
            for offset, embedding in each:
                vec = embedding.vec[self.key] if isinstance(embedding.vec, dict) else embedding.vec
                count = min(len(row) - offset - 1, len(vec))
                places = torch.arange(offset + 1, offset + 1 + count)
                now = now.index_put((places,), vec[:count].to(rows))
            filled.append(now)
        return torch.stack(filled)


class Text(nn.Module):
    """A text encoder of real width whose inside is narrow."""

    def __init__(self, key: str, seed: int, slot: Any) -> None:
        super().__init__()
        width = WIDTHS[key]
        with torch.inference_mode(torch.is_inference_mode_enabled()):
            line = torch.randn(VOCABULARY + width, generator=torch.Generator().manual_seed(seed)) * 0.02
            table = nn.Embedding(1, 1)
            table.weight = nn.Parameter(line.as_strided((VOCABULARY, width), (1, 1)))
        self.model = nn.Module()
        self.model.token_embedding = Spliced(table, slot, key)
        self.places = nn.Parameter(torch.randn(77, INNER) * 0.3)
        self.into, self.mix, self.out = nn.Linear(width, INNER), nn.Linear(INNER, INNER), nn.Linear(INNER, width)
        with torch.no_grad():
            self.into.weight.mul_(20)
            self.out.bias.fill_(0.4)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """States (batch, 77, width) and the pooled state at the first end token."""
        inner = self.into(self.model.token_embedding(ids)) + self.places
        seen = inner.cumsum(1) / torch.arange(1, 78, device=ids.device)[None, :, None]
        states = self.out(torch.tanh(inner + self.mix(seen)))
        ends = (ids == EOS).int().argmax(1)
        return states, states[torch.arange(len(ids)), ends]


class Engine(nn.Module):
    """The host's object around a text encoder: cuts prompts, encodes chunks, and writes into infotexts when called."""

    def __init__(self, key: str, encoder: Text, slot: Any, database: Any, infotext: dict[str, str]) -> None:
        super().__init__()
        self.wrapped = self.text_encoder = encoder
        self.embedding_key, self.return_pooled = key, key == "clip_g"
        self.input_key, self.clip_skip, self.emphasis, self.infotext = "txt", 1, None, infotext
        object.__setattr__(self, "hijack", slot)
        object.__setattr__(self, "slot", slot)
        object.__setattr__(self, "_database", database)

    @property
    def embeddings(self) -> Any:
        return self._database() if callable(self._database) else self._database

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return [tokenizer.encode(text) for text in texts]

    def empty_chunk(self) -> Any:
        return self._chunk(EMPTY_CHUNK, {})

    def process_texts(self, texts: list[str]) -> tuple[list[Any], int]:
        known = {e.name: e for entries in self.embeddings.ids_lookup.values() for _, e in reversed(entries)}
        rows = {name: int(each.vectors) for name, each in known.items()}
        return [[self._chunk(c, known) for c in split_prompt(text, rows, tokenizer.encode)] for text in texts], 0

    @staticmethod
    def _chunk(chunk: Chunk, known: dict[str, Any]) -> Any:
        fixes = [Fix(splice.start - 1, known[splice.trigger]) for splice in chunk.splices]
        return SimpleNamespace(tokens=list(chunk.ids), multipliers=list(chunk.weights), fixes=fixes)

    def process_tokens(self, tokens: list[list[int]], multipliers: list[list[float]]) -> Tensor:
        """One pass; emphasis restores the mean of the whole batch."""
        states, pooled = self.wrapped(torch.tensor(tokens))
        weighted = states * torch.tensor(multipliers)[..., None]
        weighted = weighted * (states.mean() / weighted.mean())
        if self.return_pooled:
            weighted.pooled = pooled
        return weighted

    def forward(self, texts: list[str]) -> Any:
        """Encode prompts for a picture; names of embeddings go into the infotext."""
        chunks, _ = self.process_texts(texts)
        states = []
        for each in chunks[0]:
            self.slot.fixes = [each.fixes]
            for fix in each.fixes:
                self.infotext["TI"] = ", ".join(filter(None, [self.infotext.get("TI", ""), fix.embedding.name]))
            states.append(self.process_tokens([each.tokens], [each.multipliers]))
        pooled = states[0].pooled if self.return_pooled else None
        return torch.hstack(states), pooled


class Fix(NamedTuple):
    """Where vectors are spliced in, counted without the start token, and whose."""

    offset: int
    embedding: Any


class CrossAttention(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = nn.Linear(width, width), nn.Linear(context, width), nn.Linear(context, width)
        with torch.no_grad():
            self.to_k.weight.mul_(4)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        told = x if context is None else context
        return self.attend(self.to_q(x), self.to_k(told), self.to_v(told))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def unlearnable_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As fast kernels are: without a backward pass."""
    with torch.no_grad():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


class BasicTransformerBlock(nn.Module):
    def __init__(self, width: int, context: int, *, in_place: bool, attention: type[CrossAttention]) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1, self.attn2 = attention(width, width), attention(width, context)
        self.ff, self.in_place = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)), in_place

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        if not self.in_place:
            x = x + self.attn1(self.norm1(x))
            x = x + self.attn2(self.norm2(x), context)
            return x + self.ff(self.norm3(x))
        n = self.attn1(self.norm1(x))
        x += n
        n = self.attn2(self.norm2(x), context)
        x += n
        skip = x
        x = self.ff(self.norm3(x))
        x += skip
        return x


class SpatialTransformer(nn.Module):
    def __init__(self, context: int, **how: Any) -> None:
        super().__init__()
        self.norm, self.proj_in = nn.GroupNorm(8, CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.transformer_blocks = nn.ModuleList([BasicTransformerBlock(CHANNELS, context, **how) for _ in range(2)])
        self.proj_out = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        for block in self.transformer_blocks:
            y = block(y, context)
        return x + self.proj_out(y).transpose(1, 2).reshape(b, c, h, w)


class ResBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, CHANNELS), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.emb = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        return x + self.conv(torch.nn.functional.silu(self.norm(x) + self.emb(emb)[..., None, None]))


def sinusoid(numbers: Tensor, width: int) -> Tensor:
    """Features of numbers, (count, width)."""
    frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2)).to(numbers.device)
    angles = numbers.float().reshape(-1, 1) * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class UNet(nn.Module):
    """Rows, transformers, rows; `options` is written into as Forge's UNet does."""

    def __init__(
        self, context: int, adm: int | None, *, in_place: bool, attention: type[CrossAttention] = CrossAttention
    ) -> None:
        super().__init__()
        self.in_channels = 4
        self.into, self.out = nn.Conv2d(4, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, 4, 3, padding=1)
        self.label_emb = None if adm is None else nn.Linear(adm, CHANNELS)
        self.blocks = nn.ModuleList([ResBlock(), ResBlock()])
        self.spatial = SpatialTransformer(context, in_place=in_place, attention=attention)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        y: Tensor | None = None,
        transformer_options: dict[str, Any] | None = None,
    ) -> Tensor:
        if transformer_options is not None:
            transformer_options["original_shape"] = list(x.shape)
        emb = sinusoid(timesteps, CHANNELS)
        if self.label_emb is not None:
            assert y is not None
            emb = emb + self.label_emb(y)
        h = self.blocks[0](self.into(x), emb)
        return self.out(self.blocks[1](self.spatial(h, context), emb))


class Vae(nn.Module):
    """Eight pixels to a latent; encoding draws from a posterior that is as wide as it is high."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.quant_conv = nn.Conv2d(3, 8, 8, stride=8), nn.Conv2d(8, 8, 1)
        self.post = nn.Conv2d(4, 3, 1)

    def posterior(self, pixels: Tensor) -> Any:
        mean, spread = self.quant_conv(self.encoder(pixels)).chunk(2, dim=1)
        return SimpleNamespace(mode=lambda: mean, sample=lambda: mean + torch.randn_like(mean) * spread.exp())

    def encode(self, pixels: Tensor, regulation: Any = None) -> Tensor:
        """As Forge's: drawn, unless it is told what to do with the posterior."""
        posterior = self.posterior(pixels)
        found: Tensor = posterior.sample() if regulation is None else regulation(posterior)
        return found

    def decode(self, latents: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(torch.tanh(self.post(latents)), scale_factor=8)


def lively(module: nn.Module, seed: int) -> nn.Module:
    """Weights by a seed, so that two models of one kind differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return module
