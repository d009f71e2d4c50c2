"""From a tree of tensors to an `Embedding`: every key spelling and nesting that a tool has written.

Halves are told apart by width, never by label or order; labels only decide which of several tensors is meant, and a
label that contradicts its width is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ti_fix.embedding import BY_WIDTH, CLIP_G, CLIP_L, ENCODERS, Finding
from ti_fix.errors import OTHER_KIND, UnreadableFile, printable, quoted
from ti_fix.formats import foreign, labels
from ti_fix.formats.added import MAX_ROWS, read_added
from ti_fix.formats.concepts import Leaf, concepts, leaves_of
from ti_fix.formats.resized import without_vocabulary
from ti_fix.formats.shapes import PAIR_WIDTH, Orientation, orient
from ti_fix.formats.stored import MAX_TENSOR_BYTES, Container, StoredTensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What a container means.

    Attributes:
        vectors: encoder key -> (rows, width), empty if it is no usable embedding.
        layout: name of the way it was stored.
        placeholder: the token that the file names, empty where none.
        metadata: free text from the header and beside the vectors.
        findings: what was noticed and mended on the way.
    """

    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    layout: str = ""
    placeholder: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def interpret(container: Container) -> Reading:
    """The embedding in a container, or the finding that says what the container is instead.

    Raises:
        UnreadableFile: a tensor's data is damaged.
    """
    native = _native(container)
    if native is not None:
        return native
    leaves, texts = leaves_of(container.tree)
    metadata = {**container.metadata, **texts}
    added = _added(leaves, metadata)
    if added is not None:
        return added
    stranger = foreign.recognise([leaf.dotted for leaf in leaves])
    if stranger is not None:
        return Reading(metadata=metadata, findings=(stranger,))
    found = concepts(leaves)
    if not found:
        return Reading(metadata=metadata, findings=(_nothing(leaves),))
    if len(found) > 1:
        return Reading(metadata=metadata, findings=(_several(list(found)),))
    (name, parts), *_ = found.items()
    return _assemble(container, name, parts, leaves, metadata)


def interpret_all(container: Container) -> list[Reading]:
    """Each embedding of a file that holds several: a LoRA's bundled ones, or several placeholders."""
    leaves, texts = leaves_of(container.tree)
    metadata = {**container.metadata, **texts}
    bundled = [leaf for leaf in leaves if leaf.dotted.startswith(foreign.BUNDLE)]
    if bundled:
        leaves = [Leaf(path=(*foreign.bundle_key(leaf.dotted),), tensor=leaf.tensor) for leaf in bundled]
    elif foreign.recognise([leaf.dotted for leaf in leaves]):
        return []  # matrices of a LoRA can have the width of an embedding
    found = concepts(leaves)
    numbers = sum(leaf.tensor.numel for parts in found.values() for leaf in parts)
    if numbers * 4 > MAX_TENSOR_BYTES:
        raise UnreadableFile("too-large", f"its {len(found):,} embeddings hold {numbers:,} numbers; {OTHER_KIND}")
    return [_assemble(container, name, parts, parts, metadata) for name, parts in found.items()]


def _native(container: Container) -> Reading | None:
    """The fast way for the plain SDXL form, which is nearly every file of a healthy folder."""
    tree = container.tree
    if not isinstance(tree, dict) or len(tree) != 2:
        return None
    left, right = tree.get(CLIP_L.key), tree.get(CLIP_G.key)
    if not isinstance(left, StoredTensor) or not isinstance(right, StoredTensor):
        return None
    parts = {CLIP_L.key: left, CLIP_G.key: right}
    for key, part in parts.items():
        if len(part.shape) != 2 or part.shape[1] != ENCODERS[key].width or not 0 < part.shape[0] <= MAX_ROWS:
            return None
        if not part.dtype.is_floating_point:
            return None
    return Reading(
        vectors={key: part.read() for key, part in parts.items()},
        layout="clip_l/clip_g",
        metadata=container.metadata,
        findings=_precision(parts.values()),
    )


def _added(leaves: list[Leaf], metadata: dict[str, str]) -> Reading | None:
    """What a layout of another extension makes of it; None where none knows it."""
    found = read_added(leaves)
    if found is None:
        return None
    name = printable(found[0], 80)
    message = f"It is stored as {name}, which another extension reads."
    note = _mended("added-layout", message, "Read it as that extension does.")
    return Reading(vectors=found[1], layout=name, metadata=metadata, findings=(note,))


def _assemble(
    container: Container, name: str, parts: list[Leaf], leaves: list[Leaf], metadata: dict[str, str]
) -> Reading:
    blocks: dict[str, list[tuple[Leaf, Orientation]]] = {}
    for leaf in parts:
        shape = orient(leaf.tensor.shape, leaf.label)
        assert shape is not None  # concepts() keeps only what can be oriented
        keys = (CLIP_L.key, CLIP_G.key) if shape.width == PAIR_WIDTH else (BY_WIDTH[shape.width].key,)
        for key in keys:
            blocks.setdefault(key, []).append((leaf, shape))
    blocks, notes = without_vocabulary(blocks)
    over = [o for members in blocks.values() if (o := _too_many(members))]
    if over:
        return Reading(layout=_layout(container, parts), metadata=metadata, findings=(over[0],))
    vectors = {key: _stack(key, members, notes) for key, members in sorted(blocks.items(), key=_encoder_order)}
    notes += _label_findings(parts)
    notes += _structure_findings(container, parts, leaves, metadata)
    if not any(block.shape[0] for block in vectors.values()):
        vectors, notes = {}, [_no_vectors()]
    return Reading(
        vectors=vectors,
        layout=_layout(container, parts),
        placeholder=_placeholder(name, parts) or _inner_name(metadata),
        metadata=metadata,
        findings=(*notes, *_precision(leaf.tensor for leaf in parts)),
    )


def _encoder_of(leaf: Leaf) -> int:
    return list(ENCODERS).index(leaf.label) if leaf.label else len(ENCODERS)


def _encoder_order(item: tuple[str, object]) -> int:
    return list(ENCODERS).index(item[0])


def _too_many(members: list[tuple[Leaf, Orientation]]) -> Finding | None:
    rows = sum(shape.rows for _, shape in members)
    if rows <= MAX_ROWS:
        return None
    return Finding(
        code="token-table",
        severity="error",
        message=f"It holds {rows:,} vectors, a whole token table or text-encoder weights, not an embedding.",
    )


def _stack(key: str, members: list[tuple[Leaf, Orientation]], notes: list[Finding]) -> Tensor:
    """One block from the tensors of one encoder, in the order of their numbers."""
    members = sorted(members, key=lambda m: m[0].index)
    blocks = []
    for leaf, shape in members:
        rows = shape.read(leaf.tensor)
        if shape.width == PAIR_WIDTH:
            rows = rows[:, : CLIP_L.width] if key == CLIP_L.key else rows[:, CLIP_L.width :]
        blocks.append(rows.contiguous())
        notes += _shape_findings(key, leaf, shape)
    if len(blocks) > 1:
        names = ", ".join(quoted(leaf.name) for leaf, _ in members[:4])
        notes.append(
            _mended(
                "stacked",
                f"{key}: the vectors lie under {len(members)} keys ({names}).",
                "Stacked the vectors in the order of their numbers.",
            )
        )
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _shape_findings(key: str, leaf: Leaf, shape: Orientation) -> list[Finding]:
    stored = list(leaf.tensor.shape)
    found = []
    if shape.width == PAIR_WIDTH and key == CLIP_L.key:
        message = f"Both halves lie side by side in one tensor of {stored}."
        found.append(_mended("concatenated", message, "Split the tensor into clip_l and clip_g."))
    if shape.mend == "1-D" and leaf.label is None:
        return found  # how diffusers writes one vector; the hosts read it so too
    if shape.mend:
        how = {
            "1-D": f"Read {key} as one row.",
            "3-D": f"Removed the extra dimension of {key}.",
            "transposed": f"Turned {key} back.",
        }
        words = {"1-D": "1-D", "3-D": "3-D", "transposed": "transposed (numbers down, vectors across)"}
        message = f"{key} is {words.get(shape.mend, 'flattened')}, stored as {stored}."
        found.append(_mended(shape.mend.lower(), message, how.get(shape.mend, f"Cut {key} into {shape.rows} rows.")))
    return found


def _label_findings(parts: list[Leaf]) -> list[Finding]:
    """Labels that contradict the widths, and labels that the hosts do not know."""
    wrong = []
    for leaf in parts:
        shape = orient(leaf.tensor.shape, leaf.label)
        if leaf.label and shape and shape.width in BY_WIDTH and BY_WIDTH[shape.width].key != leaf.label:
            wrong.append((leaf.name, BY_WIDTH[shape.width]))
    if len(wrong) > 1:
        return [
            _mended(
                "swapped-halves",
                "The labels of the two halves are swapped.",
                "Swapped the halves back, by their widths.",
            )
        ]
    if wrong:
        name, spec = wrong[0]
        message = f"{quoted(name)} is {spec.width} wide, so it speaks to {spec.title}, not to what its label says."
        return [_mended("wrong-label", message, f"Put it under {spec.key}, by its width.")]
    named = [leaf.name for leaf in parts if leaf.label and leaf.name != leaf.label]
    if named:
        what = " and ".join(map(quoted, named[:4]))
        return [
            _mended("renamed-keys", f"The halves are called {what}.", "Renamed the keys to those that WebUIs know.")
        ]
    return []


def _structure_findings(
    container: Container, parts: list[Leaf], leaves: list[Leaf], metadata: dict[str, str]
) -> list[Finding]:
    found = []
    labelled = any(leaf.label for leaf in parts)
    webui = all(leaf.parents == ("string_to_param",) for leaf in parts)
    flat = all(not leaf.parents for leaf in parts)
    if not (flat or webui):
        where = quoted(".".join(parts[0].parents))
        message = f"The vectors lie inside a list or deeper in the file (under {where})."
        found.append(_mended("nested", message, "Took the vectors out."))
    if container.kind == "picture" and not webui:
        message = "The picture holds a form that WebUIs do not read from pictures."
        found.append(_mended("picture-form", message, "Read the picture's data."))
    encoders = {orient(leaf.tensor.shape, leaf.label) for leaf in parts}
    if flat and not labelled and len({o.width for o in encoders if o}) > 1:
        found.append(_mended("unlabelled", "The halves have no known names.", "Assigned the halves by width."))
    used = {leaf.path for leaf in parts}
    rest = [leaf for leaf in leaves if leaf.path not in used]
    found += _output_findings(rest)
    extras = list(dict.fromkeys(leaf.path[0] for leaf in rest if not labels.output_half(leaf.name) and leaf.path))
    if not webui:
        extras += [k for k in metadata if k not in container.metadata and k not in extras]
    if extras and flat and container.kind != "picture":
        message = f"Beside the vectors the file holds {_listed(extras)}, which WebUIs stumble over."
        found.append(_mended("extra-keys", message, "Left out what is not a vector."))
    return found


def _output_findings(rest: list[Leaf]) -> list[Finding]:
    outputs = [leaf.name for leaf in rest if labels.output_half(leaf.name)]
    if not outputs:
        return []
    message = (
        f"It also holds an output embedding ({_listed(outputs)}), added behind the text encoder, which no "
        "WebUI can apply; pictures will differ from the trainer's previews."
    )
    return [
        Finding(code="output-embedding", severity="warning", message=message, repaired="Kept only the input vectors.")
    ]


def _layout(container: Container, parts: list[Leaf]) -> str:
    first = parts[0]
    if any(leaf.parents == ("string_to_param",) for leaf in parts):
        layout = "string_to_param"
    elif any(leaf.label for leaf in parts):
        layout = printable("/".join(dict.fromkeys(leaf.name for leaf in sorted(parts, key=_encoder_of))), 80)
    elif not first.path:
        layout = "bare tensor"
    elif first.name == "emb_params" or (len(parts) == 1 and first.name == "*"):
        layout = first.name
    else:
        layout = "token dict"
    if container.kind == "picture":
        return f"picture ({layout})"
    return f"nested {layout}" if first.parents not in ((), ("string_to_param",)) else layout


def _placeholder(name: str, parts: list[Leaf]) -> str:
    """The token that the keys name; keys that differ in more than a number name none."""
    bases = {labels.numbered(leaf.name)[0] for leaf in parts if not leaf.label}
    return labels.placeholder(name) if len(bases) <= 1 else ""


def _inner_name(metadata: dict[str, str]) -> str:
    name = metadata.get("name", "").strip()
    return "" if name in ("", "*") else name


def _precision(parts: object) -> tuple[Finding, ...]:
    small = sorted({str(p.dtype)[6:] for p in parts if p.dtype.itemsize == 1})  # type: ignore[attr-defined]
    if not small:
        return ()
    message = f"It is stored in {small[0]} (fp8: low precision); it is used as float32."
    return (Finding(code="low-precision", severity="note", message=message),)


def _no_vectors() -> Finding:
    return Finding(
        code="no-vectors", severity="error", message="It holds no vectors (zero rows); train or download it again."
    )


def _nothing(leaves: list[Leaf]) -> Finding:
    if not leaves:
        return _no_vectors()
    if all(leaf.tensor.numel == 0 for leaf in leaves):
        return _no_vectors()
    outputs = [leaf.name for leaf in leaves if labels.output_half(leaf.name)]
    if outputs:
        message = (
            f"It holds only an output embedding ({_listed(outputs)}), which no WebUI can apply; export the input "
            "vectors from the trainer."
        )
        return Finding(code="output-embedding", severity="error", message=message)
    shown = ", ".join(f"{printable(leaf.dotted, 60) or 'a tensor'} {list(leaf.tensor.shape)}" for leaf in leaves[:6])
    more = f" and {len(leaves) - 6} more" if len(leaves) > 6 else ""
    message = f"It is no embedding of a known kind; it holds {shown}{more}. No vectors 768 or 1280 wide are in it."
    return Finding(code="unknown-layout", severity="error", message=message)


def _several(names: list[str]) -> Finding:
    message = (
        f"It holds {len(names):,} embeddings ({_listed(names)}); take them apart (Extract on the Files page, or ti-fix "
        "repair --extract)."
    )
    return Finding(code="several-embeddings", severity="error", message=message)


def _listed(names: list[str]) -> str:
    """The first five names, in quotes."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(quoted, names[:5])) + more


def _mended(code: str, message: str, how: str) -> Finding:
    return Finding(code=code, severity="note", message=f"{message} {how}", repaired=how)
