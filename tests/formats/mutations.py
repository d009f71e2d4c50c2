"""Ways to spoil a file: blindly, or knowing its format well enough to reach deep."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.formats import attacks
from tests.formats import picture_maker as make

LONGEST = 1_200_000
"""Bytes of a spoiled file."""


# --- blind mutations --------------------------------------------------------------------------------------------------

ODD_NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    768,
    1280,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**47,
    2**62,
    2**63,
    2**64 - 1,
)


def flip(random: Random, data: bytes) -> bytes:
    """Some bytes changed; half the time among the first 400, where the structure is."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        end = min(len(out), 400) if random.random() < 0.5 else len(out)
        if end:
            out[random.randrange(end)] ^= random.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
    return bytes(out)


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def drop(random: Random, data: bytes) -> bytes:
    at, length = random.randrange(len(data) + 1), random.choice((1, 2, 4, 8, 64, 1000))
    return data[:at] + data[at + length :]


def repeat(random: Random, data: bytes) -> bytes:
    at, length = random.randrange(len(data) + 1), random.choice((1, 4, 16, 200))
    return data[: at + length] + data[at : at + length] * random.choice((1, 2, 50)) + data[at + length :]


def overwrite(random: Random, data: bytes) -> bytes:
    """A number that programs stumble over, in some width and byte order."""
    width = random.choice((1, 2, 4, 8))
    number = random.choice(ODD_NUMBERS) % 256**width
    at = random.randrange(min(len(data), 600) if random.random() < 0.7 else len(data)) if data else 0
    return data[:at] + number.to_bytes(width, random.choice(("little", "big"))) + data[at + width :]


def noise(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 8, 300))) + data[at:]


BLIND: tuple[Callable[[Random, bytes], bytes], ...] = (flip, flip, cut, drop, repeat, overwrite, noise)


# --- mutations that know the format -----------------------------------------------------------------------------------


_ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS,
    *(None, True, -1, 1.5, float("nan"), float("inf"), "", "x" * 5000, "\x1b[2J", "\ud800", [], {}, [[]], {"a": 1}),
)


def mutate_tree(random: Random, node: Any, depth: int = 0) -> Any:
    """One place of a JSON tree changed."""
    if isinstance(node, dict) and node and (depth < 1 or random.random() < 0.8):
        key = random.choice(list(node))
        way = random.randrange(6)
        if way == 0:
            return {k: v for k, v in node.items() if k != key}
        if way == 1:
            names = (
                "clip_l",
                "clip_g",
                "emb_params",
                "*",
                "\x1b[2J\n",
                "",
                "a" * 600,
                f"{key}.clip_l",
                f"{key}_2",
                "\udc80",
            )
            return {(random.choice(names) if k == key else k): v for k, v in node.items()}
        return {k: (mutate_tree(random, v, depth + 1) if k == key else v) for k, v in node.items()}
    if isinstance(node, list) and node and random.random() < 0.8:
        at = random.randrange(len(node))
        if random.random() < 0.2:
            return node[:at] + node[at + 1 :]
        return [*node[:at], mutate_tree(random, node[at], depth + 1), *node[at + 1 :]]
    if isinstance(node, int) and random.random() < 0.5:
        return node + random.choice((-1, 1, 4, 8, 768))
    if isinstance(node, str) and random.random() < 0.5:
        return random.choice(("F32", "F16", "BF16", "F64", "F8_E4M3", "I64", "BOOL", "F4", node.lower()))
    return random.choice(_ODD_VALUES)


def safetensors_header(random: Random, data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    tree = json.loads(data[8 : 8 + length])
    for _ in range(random.choice((1, 1, 2, 3))):
        tree = mutate_tree(random, tree)
    text = json.dumps(tree, ensure_ascii=random.random() < 0.9).encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        text = flip(random, text)
    claimed = len(text) if random.random() < 0.9 else random.choice(ODD_NUMBERS)
    return struct.pack("<Q", claimed) + text + data[8 + length :]


_GLOBALS = """torch._utils _rebuild_tensor_v2, torch._utils _rebuild_tensor_v3, torch._utils _rebuild_parameter,
torch._tensor _rebuild_from_type_v2, torch.storage _load_from_bytes, torch FloatStorage, torch.storage UntypedStorage,
torch float8_e4m3fn, torch float64, torch Size, torch device, collections OrderedDict, collections defaultdict,
builtins list, torch.nn.modules.sparse Embedding, copyreg _reconstructor, _codecs encode, numpy ndarray, numpy dtype,
numpy.core.multiarray _reconstruct, numpy._core.numeric _frombuffer, os system"""
_POOL = [
    *(bytes([code]) for code in range(256)),
    *(f"c{module}\n{name}\n".encode() for module, name in (line.split() for line in _GLOBALS.split(","))),
    *(bytes([code]) for code in b")}]N(\x85\x86\x87Rbsuea02Q\x8f\x90"),
    *(attacks.number(n) for n in (-1, 0, 1, 2, 768, 2**31, 2**47, 2**62, 2**63)),
    *(attacks.text(t) for t in ("", "storage", "cpu", "0", "clip_l", "\x1b[2J", "x" * 3000)),
]
"""Instructions to put into pickles; those of everyday come twice."""


def instructions(data: bytes) -> list[bytes]:
    """The instructions of the pickle at the start of some bytes, as far as it is one."""
    starts: list[int] = []
    with contextlib.suppress(Exception):  # broken already: what came before the damage is enough
        starts.extend(at for _, _, at in pickletools.genops(data) if at is not None)
    ends = [*starts[1:], data.find(b".", starts[-1]) + 1 if starts else 0]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def pickle_instructions(random: Random, data: bytes) -> bytes:
    parts = instructions(data)
    if not parts:
        return flip(random, data)
    rest = data[sum(map(len, parts)) :]
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(parts))
        way = random.randrange(5)
        if way == 0:
            del parts[at]
        elif way == 1:
            parts.insert(at, random.choice(_POOL))
        elif way == 2:
            parts[at] = random.choice(_POOL)
        elif way == 3:
            parts.insert(at, random.choice(parts))
        else:
            parts[at] = flip(random, parts[at])
        if not parts:
            break
    return b"".join(parts) + rest


def zip_records(random: Random, data: bytes) -> bytes:
    """The same zip written again with one record changed, dropped, doubled or packed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = [(name, archive.read(name)) for name in archive.namelist()]
    at = random.randrange(len(records))
    if random.random() < 0.7:
        at = next((i for i, (name, _) in enumerate(records) if name.endswith("data.pkl")), at)
    name, content = records[at]
    way = random.randrange(8)
    if name.endswith("data.pkl") and way < 6:
        records[at] = (name, pickle_instructions(random, content))
    elif way == 0:
        del records[at]
    elif way == 1:
        records[at] = (random.choice(("x/data/9", "../../data.pkl", "", "x/byteorder")), content)
    else:
        records[at] = (name, random.choice(BLIND)(random, content))
    if random.random() < 0.05:
        records = [
            (("x/byteorder", b"big") if name.endswith("byteorder") else (name, content)) for name, content in records
        ]
    out = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in dict(records).items():
            archive.writestr(name, content)
    return out.getvalue()


def legacy_pickles(random: Random, data: bytes) -> bytes:
    """One of the pickles at the start of a legacy file changed."""
    sizes = []
    rest = data
    for _ in range(random.choice((1, 2, 3, 4, 4, 4, 5))):
        parts = instructions(rest)
        sizes.append(sum(map(len, parts)))
        rest = rest[sizes[-1] :]
    at = sum(sizes[:-1])
    return data[:at] + pickle_instructions(random, data[at:])


def png_chunks(random: Random, data: bytes) -> bytes:
    """Chunks changed, moved, dropped or doubled, with right checksums; JSON inside of them changed as JSON."""
    chunks: list[tuple[bytes, bytes]] = []
    at = 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return flip(random, data)
    at = random.randrange(len(chunks))
    kind, content = chunks[at]
    way = random.randrange(6)
    if content.startswith(b"sd-ti-embedding\0") and kind == b"tEXt" and way < 4:
        chunks[at] = (
            kind,
            b"sd-ti-embedding\0" + base64.b64encode(_spoiled_json(random, base64.b64decode(content[16:]))),
        )
    elif kind == b"IDAT" and way < 3:
        raw = zlib.decompress(content) if len([k for k, _ in chunks if k == b"IDAT"]) == 1 else content
        chunks[at] = (kind, zlib.compress(random.choice(BLIND)(random, raw)))
    elif way == 3:
        del chunks[at]
    elif way == 4:
        chunks.insert(random.randrange(len(chunks)), (kind, content))
    else:
        chunks[at] = (kind, random.choice(BLIND)(random, content))
    return data[:8] + b"".join(make.chunk(kind, content) for kind, content in chunks)


def _spoiled_json(random: Random, text: bytes) -> bytes:
    try:
        tree = mutate_tree(random, json.loads(text))
    except ValueError:
        return flip(random, text)
    return json.dumps(tree).encode()


def knowing(random: Random, data: bytes) -> bytes:
    """A mutation that fits the format; a blind one where there is none."""
    with contextlib.suppress(Exception):  # a file that is broken too much to be changed with care
        if data[8:9] == b"{":
            return safetensors_header(random, data)
        if data[:2] == b"PK":
            return zip_records(random, data)
        if data[:4] == b"\x89PNG":
            return png_chunks(random, data)
        if data[:1] == b"\x80":
            return legacy_pickles(random, data)
    return random.choice(BLIND)(random, data)


def mutated(random: Random, data: bytes, other: bytes) -> bytes:
    """The file spoiled in one to three steps."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        way = random.random()
        if way < 0.6:
            data = knowing(random, data)
        elif way < 0.95:
            data = random.choice(BLIND)(random, data)
        else:
            at, there = random.randrange(len(data) + 1), random.randrange(len(other) + 1)
            data = data[:at] + other[there:]
    return data[:LONGEST]
