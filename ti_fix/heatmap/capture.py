"""Cross-attention maps while a picture is made, from the outputs of ``attn2.to_q`` and ``attn2.to_k``.

The maps are the model's own attention, softmax(q k^T / sqrt(d)), averaged over heads, steps and layers (the method of
DAAM: Tang et al. 2023, arXiv 2210.04885), computed beside the model: nothing of the attention itself is replaced, so
any optimisation may be in use and the picture stays as it is. Modules have these names in diffusers, in both WebUIs
and in their kin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.heatmap.settings import MapSettings

ROWS_AT_ONCE = 4096
"""Queries whose attention is held at a time: with 10 heads and two chunks of text 25 MB."""

SAME = 1e-2
"""Relative distance up to which a row of the context is taken for the one that was announced (half precision)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """A row of text conditioning whose words are followed.

    Attributes:
        picture: which picture of the batch it makes.
        context: (tokens, width), as the UNet receives it.
        places: word -> positions among the tokens.
    """

    picture: int
    context: Tensor
    places: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordMaps:
    """The maps of one picture in one pass.

    Attributes:
        picture: number in the batch.
        width, height: of the latents; a hires pass has larger ones and maps of its own.
        words: in the order of `maps`.
        maps: (words, height, width); each value is the mean share of attention that the place gives to the word, so
            that over all tokens they sum to 1.
        layers, steps: how many are behind it.
    """

    picture: int
    width: int
    height: int
    words: tuple[str, ...]
    maps: Tensor
    layers: int
    steps: int


Words = tuple[str, ...]


@dataclass(slots=True)
class _Pass:
    """Sums of one picture at one latent size.

    A picture may be told several texts, side by side (AND) or one after the other (prompt editing), so sums are kept
    for each set of words.
    """

    sums: dict[tuple[str, Words], tuple[Tensor, tuple[int, int]]] = field(default_factory=dict)
    counts: dict[tuple[str, Words], int] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    def add(self, layer: str, words: Words, share: Tensor, grid: tuple[int, int], step: int) -> None:
        """Add a layer's (words, height * width) of one step and text."""
        key = layer, words
        if key in self.sums:
            self.sums[key][0].add_(share)
        else:
            self.sums[key] = share, grid
        self.counts[key] = self.counts.get(key, 0) + 1
        self.steps.add(step)

    @property
    def words(self) -> Words:
        """Every word that stood in any of the texts."""
        return tuple(dict.fromkeys(word for _, words in self.sums for word in words))


class Recorder:
    """Records while it is open; every hook is taken off when it closes, whatever happened.

    Args:
        unet: the module, diffusers' or a WebUI's.
        settings: what to record.
        steps: of the sampling; needed when only a part of them is recorded.
        split: width of the first encoder's part of the context, where one encoder alone is looked at.

    Raises:
        WrongUse: recording would end before it begins.
        TiFixError: the UNet has no layer to look at.
    """

    def __init__(self, unet: Any, settings: MapSettings | None = None, *, steps: int = 0, split: int = 0) -> None:
        self._unet, self._settings, self._split = unet, settings or MapSettings(), split
        if self._settings.first >= self._settings.last:
            raise WrongUse("Maps are recorded from a share of the steps until a later one; let From be below Until.")
        self._range = (self._settings.first * steps, self._settings.last * steps) if steps else (0.0, float("inf"))
        self._layers = {
            name: module
            for name, module in unet.named_modules()
            if name.endswith("attn2") and hasattr(module, "to_q") and hasattr(module, "to_k") and self._chosen(name)
        }
        if not self._layers:
            raise TiFixError("This model has no cross-attention of the kind that maps are made from (attn2).")
        self._handles: list[Any] = []
        self._wanted: Sequence[Wanted] = ()
        self._used: set[int] = set()
        self._rows: list[tuple[int, Wanted, int]] = []
        self._queries: dict[str, Tensor] = {}
        self._size = (0, 0)
        self._step = 0
        self._passes: dict[tuple[int, int, int], _Pass] = {}
        self.skipped: set[str] = set()

    def expect(self, wanted: Sequence[Wanted], step: int | None = None) -> None:
        """Name the rows to follow, in the order of the pictures.

        Args:
            wanted: stays in force until it is said anew, as for a prompt that changes.
            step: which one begins; counted by the rows that come where it is not known.
        """
        self._wanted, self._used = wanted, set()
        self._step = self._step if step is None else step

    def __enter__(self) -> Recorder:  # noqa: PYI034 - Self is newer than Python 3.10
        if self._handles:
            raise TiFixError("These maps are being recorded already; close the first recorder.")
        self._handles.append(self._unet.register_forward_pre_hook(self._begin, with_kwargs=True))
        for name, module in self._layers.items():
            self._handles.append(module.to_q.register_forward_hook(self._keep_query(name)))
            self._handles.append(module.to_k.register_forward_hook(self._take_key(name, module)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._queries.clear()

    def maps(self) -> list[WordMaps]:
        """What was recorded: one entry a picture and pass, in the order of the pictures, earlier passes first."""
        found = sorted(self._passes.items(), key=lambda item: item[0][0])
        return [_combined(picture, height, width, each) for (picture, height, width), each in found]

    def _chosen(self, name: str) -> bool:
        part = self._settings.layers
        starts = {"down": ("down_blocks", "input_blocks"), "middle": ("mid_block", "middle_block")}
        starts["up"] = ("up_blocks", "output_blocks")
        return part == "all" or name.startswith(starts[part])

    def _begin(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a forward of the UNet: which rows of its batch are wanted, and how large the picture is."""
        noisy = args[0] if args else kwargs.get("sample", kwargs.get("x"))
        context = kwargs.get("encoder_hidden_states", kwargs.get("context", args[2] if len(args) > 2 else None))
        self._queries.clear()
        self._rows = []
        if not isinstance(noisy, Tensor) or not isinstance(context, Tensor) or not self._wanted:
            return
        self._size = int(noisy.shape[-2]), int(noisy.shape[-1])
        if len(self._used) == len(self._wanted):
            self._used.clear()
            self._step += 1
        rows = self._recognised(context)
        if self._range[0] < self._step + 1 and self._step < self._range[1]:  # a step that lies in it partly counts
            self._rows = [each for each in rows if each[1].places]

    def _recognised(self, context: Tensor) -> list[tuple[int, Wanted, int]]:
        """(row, what it is, how often its tokens are repeated) of each row that was announced and not seen yet."""
        rows = []
        for number in range(len(context)):
            for place, wanted in enumerate(self._wanted):
                repeats = 0 if place in self._used else _repeats(context[number], wanted.context)
                if repeats:
                    self._used.add(place)
                    rows.append((number, wanted, repeats))
                    break
        return rows

    def _keep_query(self, name: str) -> Any:
        def hook(_module: Any, _args: Any, output: Tensor) -> None:
            if self._rows:
                self._queries[name] = output.detach()

        return hook

    def _take_key(self, name: str, attention: Any) -> Any:
        def hook(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
            query = self._queries.pop(name, None)
            if query is None:
                return
            with torch.no_grad():
                key = output if self._settings.encoder == "both" else module.forward(self._half(args[0]))
                self._add(name, query, key.detach(), int(attention.heads))

        return hook

    def _half(self, context: Tensor) -> Tensor:
        """The context with the other encoder's part zeroed.

        The projection has no bias, so the other part of the logits goes with it.
        """
        alone = torch.zeros_like(context)
        part = slice(0, self._split) if self._settings.encoder == "clip_l" else slice(self._split, None)
        alone[..., part] = context[..., part]
        return alone

    def _add(self, name: str, query: Tensor, key: Tensor, heads: int) -> None:
        grid = _grid(self._size, query.shape[1])
        if grid is None:
            self.skipped.add(name)
            return
        for row, wanted, repeats in self._rows:
            share = _shares(query[row], key[row], heads, self._settings.temperature, wanted, repeats)
            kept = self._passes.setdefault((wanted.picture, *self._size), _Pass())
            kept.add(name, tuple(wanted.places), share, grid, self._step)


def _repeats(row: Tensor, wanted: Tensor) -> int:
    """How often the row holds the wanted tokens; 0 where it is another text.

    A WebUI that pads puts empty chunks behind them; Forge repeats the whole text up to a common length instead.
    """
    count = len(wanted)
    if row.shape[0] < count or row.shape[1] != wanted.shape[1]:
        return 0
    like = wanted.to(row)
    if not _same(row[:count], like):
        return 0
    whole, rest = divmod(len(row), count)
    repeated = whole > 1 and not rest and all(_same(row[i * count : (i + 1) * count], like) for i in range(1, whole))
    return whole if repeated else 1


def _same(one: Tensor, other: Tensor) -> bool:
    distance = (one.float() - other.float()).norm()
    return bool(distance <= SAME * other.float().norm())


def _grid(size: tuple[int, int], count: int) -> tuple[int, int] | None:
    """Height and width of a layer with so many places: the latents' size, halved (rounding up) as often as it takes."""
    height, width = size
    while height * width > count:
        height, width = (height + 1) // 2, (width + 1) // 2
    return (height, width) if height * width == count else None


def _shares(query: Tensor, key: Tensor, heads: int, temperature: float, wanted: Wanted, repeats: int) -> Tensor:
    """Attention that each place gives to each word, mean over heads, (words, places).

    Args:
        query: (places, heads * d).
        key: (tokens, heads * d).
        heads: of the layer.
        temperature: divides the logits.
        wanted: whose words.
        repeats: how often the text stands in the tokens.
    """
    count = len(wanted.context)
    columns = [[p + i * count for p in places for i in range(repeats)] for places in wanted.places.values()]
    flat = [column for word in columns for column in word]
    owner = torch.tensor([n for n, word in enumerate(columns) for _ in word], device=query.device)
    keys = key.float().view(len(key), heads, -1).permute(1, 2, 0)
    scale = keys.shape[1] ** -0.5 / temperature
    shares = torch.zeros(len(columns), len(query), device=query.device)
    for start in range(0, len(query), ROWS_AT_ONCE):
        part = query[start : start + ROWS_AT_ONCE].float()
        logits = (part.view(len(part), heads, -1).transpose(0, 1) * scale) @ keys
        weights = logits.softmax(dim=-1)[..., flat].mean(dim=0)
        shares[:, start : start + len(part)].index_add_(0, owner, weights.T)
    return shares


def _combined(picture: int, height: int, width: int, found: _Pass) -> WordMaps:
    """Mean over texts, steps and layers at the latents' size; bilinear, which keeps the sum over tokens at each place.

    A word's mean is over the texts and steps in which it stood.
    """
    words = found.words
    rows = {word: number for number, word in enumerate(words)}
    layers = dict.fromkeys(layer for layer, _ in found.sums)
    total, times = torch.zeros(len(words), height, width), torch.zeros(len(words), 1, 1)
    for layer in layers:
        sums, counts = torch.zeros(len(words), height, width), torch.zeros(len(words), 1, 1)
        for (name, told), (summed, grid) in found.sums.items():
            if name == layer and told:
                large = summed.cpu().view(1, len(told), *grid)
                places = [rows[word] for word in told]
                sums[places] += F.interpolate(large, size=(height, width), mode="bilinear", align_corners=False)[0]
                counts[places] += found.counts[name, told]
        total += sums / counts.clamp(min=1)
        times += (counts > 0).float()
    return WordMaps(
        picture=picture,
        width=width,
        height=height,
        words=words,
        maps=total / times.clamp(min=1),
        layers=len(layers),
        steps=len(found.steps),
    )
