"""Which tensors of a file belong together: one concept, several, or nothing that could be vectors."""

from __future__ import annotations

from dataclasses import dataclass

from ti_fix.embedding import ENCODERS
from ti_fix.errors import UnreadableFile, quoted
from ti_fix.formats import labels
from ti_fix.formats.shapes import PAIR_WIDTH, orient
from ti_fix.formats.stored import StoredTensor, walk, writable

MAX_TEXT = 4096
"""Characters of a text beside the vectors that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A tensor with the keys that lead to it.

    Attributes:
        path: the keys, outermost first; empty for a file that is one bare tensor.
        tensor: its shape and type, not read yet.
    """

    path: tuple[str, ...]
    tensor: StoredTensor

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def parents(self) -> tuple[str, ...]:
        return self.path[:-1]

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def label(self) -> str | None:
        """The encoder key that its name, or else a wrapper's name, claims."""
        for name in reversed(self.path):
            found = labels.half(name) or labels.half(labels.numbered(name)[0])
            if found:
                return found
        return None

    @property
    def index(self) -> int:
        """Its place among numbered keys."""
        return labels.numbered(self.name)[1]


def leaves_of(tree: object) -> tuple[list[Leaf], dict[str, str]]:
    """The tensors of a tree, and its texts and numbers as metadata.

    Raises:
        UnreadableFile: the tree is nested beyond reason.
    """
    leaves: list[Leaf] = []
    texts: dict[str, str] = {}
    for path, node in walk(tree):
        if isinstance(node, StoredTensor):
            leaves.append(Leaf(path=_split_dots(path), tensor=node))
        elif len(path) == 1 and (text := _text(node)):
            texts[path[0]] = text
    return leaves, texts


def _text(node: object) -> str:
    """A text or number beside the vectors; empty for anything else, and for whole numbers that nobody counts to."""
    if isinstance(node, str):
        return writable(node[:MAX_TEXT])
    if isinstance(node, float) or (isinstance(node, int) and abs(node) < 2**63):
        return str(node)
    return ""


def _split_dots(path: tuple[str, ...]) -> tuple[str, ...]:
    """``hero.clip_l`` is a half of ``hero``; a dot in any other key is part of the name."""
    if not path:
        return path
    name = path[-1]
    tails: list[str] = []
    while True:
        head, _, tail = name.rpartition(".")
        if not head or not (labels.half(tail) or labels.output_half(tail) or tail in ("*", "emb_params")):
            return (*path[:-1], name, *reversed(tails))
        tails.append(tail)
        name = head.removesuffix(".string_to_param")


def concepts(leaves: list[Leaf]) -> dict[str, list[Leaf]]:
    """Name of each concept -> the tensors that make it up.

    Tensors that cannot be vectors (wrong type, no known width, optimiser state) are left out. Halves with known labels
    make one concept; without labels, tensors of different widths are halves of one, and tensors of one width are
    either numbered parts of one (``<cat>``, ``<cat>_1``) or several.
    """
    able = [leaf for leaf in leaves if _can_be_vectors(leaf)]
    by_owner: dict[tuple[str, ...], list[Leaf]] = {}
    for leaf in able:
        by_owner.setdefault(_owner(leaf), []).append(leaf)
    found: dict[str, list[Leaf]] = {}
    for owner, members in by_owner.items():
        for name, parts in _split(members).items():
            named = labels.placeholder(name) or not owner
            found.setdefault(name if named else ".".join(owner), []).extend(parts)
    return found


def _can_be_vectors(leaf: Leaf) -> bool:
    if labels.output_half(leaf.name) or any(labels.EXTRAS.search(key) for key in leaf.path):
        return False
    tensor = leaf.tensor
    return tensor.dtype.is_floating_point and tensor.numel > 0 and orient(tensor.shape, leaf.label) is not None


def _owner(leaf: Leaf) -> tuple[str, ...]:
    """The keys above a tensor that name something (wrappers, list positions and half labels do not)."""
    return tuple(
        key for key in leaf.parents if key.lower() not in labels.WRAPPERS and not key.isdigit() and not labels.half(key)
    )


def _split(members: list[Leaf]) -> dict[str, list[Leaf]]:
    labelled = [leaf for leaf in members if leaf.label]
    if labelled:
        taken = {_width(leaf) for leaf in labelled}
        others = [leaf for leaf in members if not leaf.label and _width(leaf) not in taken]
        return {"": _one_per_half(labelled) + (others if len(others) == 1 else [])}
    by_base: dict[str, list[Leaf]] = {}
    for leaf in members:
        by_base.setdefault(labels.numbered(leaf.name)[0], []).append(leaf)
    widths = [{_width(leaf) for leaf in parts} for parts in by_base.values()]
    if sum(map(len, widths)) == len(set().union(*widths)):
        return {members[0].name: members}
    return by_base


def _one_per_half(labelled: list[Leaf]) -> list[Leaf]:
    """Of several names for one half the plain one wins; numbered parts of one name stay together."""
    kept: list[Leaf] = []
    for width in dict.fromkeys(_width(leaf) for leaf in labelled):
        same = [leaf for leaf in labelled if _width(leaf) == width]
        right = [leaf for leaf in same if leaf.label and ENCODERS[leaf.label].width == width] or same
        plain = [leaf for leaf in right if leaf.name == leaf.label] or right
        base = labels.numbered(plain[0].name)[0]
        numbered = [leaf for leaf in same if labels.numbered(leaf.name)[0] == base and not labels.half(leaf.name)]
        kept += numbered if len(numbered) > 1 else plain[:1]
    return kept


def _width(leaf: Leaf) -> int:
    shape = orient(leaf.tensor.shape, leaf.label)
    if shape is None:
        raise UnreadableFile("malformed", f"the tensor {quoted(leaf.dotted)} has no usable shape.")
    return PAIR_WIDTH if shape.width == PAIR_WIDTH else shape.width
