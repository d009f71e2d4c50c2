"""Safetensors files as the safetensors library reads them; and what it refuses and we mend or name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ti_fix.embedding import CLIP_G, CLIP_L
from ti_fix.errors import UnreadableFile
from ti_fix.formats import read
from ti_fix.formats.container import open_container
from ti_fix.formats.safetensors_file import MAX_HEADER
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container, StoredTensor

RANDOM = torch.randn(4, 768, generator=torch.Generator().manual_seed(7))
DTYPES = [
    getattr(torch, name)
    for name in (
        "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz int64 int32 int16 "
        "int8 uint8 uint16 uint32 uint64 bool complex64"
    ).split()
    if hasattr(torch, name)
]


def opened(data: bytes) -> Container:
    return open_container(Source(data), "file.safetensors")


def built(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin: int, end: int, **change: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end], **change}


FOUR = struct.pack("<4f", 1, 2, 3, 4)


def same(container: Container, theirs: dict[str, torch.Tensor]) -> None:
    assert isinstance(container.tree, dict)
    assert set(container.tree) == set(theirs)
    for key, tensor in theirs.items():
        ours: StoredTensor = container.tree[key]
        values = ours.load()
        assert (ours.dtype, ours.shape, values.dtype) == (tensor.dtype, tuple(tensor.shape), tensor.dtype)
        assert values.shape == tensor.shape
        assert torch.equal(values.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_type(dtype: torch.dtype) -> None:
    whole = RANDOM.mul(50).to(torch.int32).to(dtype)
    values = RANDOM.to(dtype) if dtype.is_floating_point else whole
    content = {"emb": values, "row": values[0].clone(), "cube": values.reshape(2, 2, 768).clone()}
    data = safetensors.torch.save(content, metadata={"name": "héro"})
    same(opened(data), safetensors.torch.load(data))
    assert opened(data).metadata == {"name": "héro"}


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda n: n != "__metadata__")
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(
    st.dictionaries(names, shapes, min_size=1, max_size=6),
    st.none() | st.dictionaries(names, st.text(max_size=20), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_any_names_shapes_and_metadata(content: dict[str, tuple[int, ...]], metadata: dict[str, str] | None) -> None:
    tensors = {name: torch.randn(shape) for name, shape in content.items()}
    try:
        data = safetensors.torch.save(tensors, metadata)
    except UnicodeEncodeError:  # lone surrogates: the library does not write them either
        return
    container = opened(data)
    same(container, safetensors.torch.load(data))
    assert container.metadata == (metadata or {})
    assert not container.findings


def test_large_files_are_read_in_parts(tmp_path: Path) -> None:
    content = {"table": torch.arange(3_000_000, dtype=torch.float32), "emb": RANDOM}
    safetensors.torch.save_file(content, tmp_path / "large.safetensors")
    same(open_container(Source(tmp_path / "large.safetensors"), "large.safetensors"), content)


@pytest.mark.parametrize("length", [640, 896, 1152, 1408, 2815, 19778])
def test_header_lengths_that_look_like_another_format(length: int, tmp_path: Path) -> None:
    """The first bytes of a pickle of each protocol, of a JPEG XL picture and of a BMP."""
    left, right = torch.randn(2, CLIP_L.width), torch.randn(2, CLIP_G.width)
    data = safetensors.torch.save({"clip_l": left, "clip_g": right})
    start = 8 + struct.unpack("<Q", data[:8])[0]
    path = tmp_path / "hero.safetensors"
    path.write_bytes(built(data[8:start].rstrip().ljust(length), data[start:]))
    same(opened(path.read_bytes()), safetensors.torch.load(path.read_bytes()))
    parsed = read(path)
    assert parsed.embedding is not None
    assert torch.equal(parsed.embedding.vectors["clip_g"], right)
    assert not parsed.findings


READ: dict[str, tuple[bytes, dict[str, list[float]]]] = {
    "names in another order than the data": (
        built({"b": entry(8, 16), "a": entry(0, 8)}, FOUR),
        {"a": [1, 2], "b": [3, 4]},
    ),
    "fields that nobody knows": (built({"a": entry(0, 16, note="x")}, FOUR), {"a": [1, 2, 3, 4]}),
    "no metadata": (built({"__metadata__": None, "a": entry(0, 16)}, FOUR), {"a": [1, 2, 3, 4]}),
    "white space in the header": (
        built(b"{ " + json.dumps({"a": entry(0, 16)}).encode()[1:] + b"  ", FOUR),
        {"a": [1, 2, 3, 4]},
    ),
    "an empty name": (built({"": entry(0, 16)}, FOUR), {"": [1, 2, 3, 4]}),
    "nothing": (built({}, b""), {}),
}


@pytest.mark.parametrize("how", READ)
def test_what_the_library_reads(how: str) -> None:
    data, expected = READ[how]
    theirs = safetensors.torch.load(data)
    assert {key: tensor.tolist() for key, tensor in theirs.items()} == expected
    same(opened(data), theirs)
    assert not opened(data).findings


MENDED: dict[str, tuple[bytes, str, dict[str, list[float]]]] = {
    "bytes behind the data": (built({"a": entry(0, 16)}, FOUR + b"xyz"), "spare-bytes", {"a": [1, 2, 3, 4]}),
    "bytes between tensors": (
        built({"a": entry(0, 4), "b": entry(8, 16)}, FOUR),
        "spare-bytes",
        {"a": [1], "b": [3, 4]},
    ),
    "bytes before the first": (built({"a": entry(4, 16)}, FOUR), "spare-bytes", {"a": [2, 3, 4]}),
    "numbers in the metadata": (
        built({"__metadata__": {"steps": 500}, "a": entry(0, 16)}, FOUR),
        "metadata-form",
        {"a": [1, 2, 3, 4]},
    ),
    "a list as metadata": (
        built({"__metadata__": ["x"], "a": entry(0, 16)}, FOUR),
        "metadata-form",
        {"a": [1, 2, 3, 4]},
    ),
    "NaN in the metadata": (
        built(b'{"__metadata__":{"loss":NaN},"a":' + json.dumps(entry(0, 16)).encode() + b"}", FOUR),
        "metadata-form",
        {"a": [1, 2, 3, 4]},
    ),
}


@pytest.mark.parametrize("how", MENDED)
def test_what_the_library_refuses_and_we_mend(how: str) -> None:
    data, code, expected = MENDED[how]
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load(data)
    container = opened(data)
    same(container, {key: torch.tensor(values, dtype=torch.float32) for key, values in expected.items()})
    (finding,) = container.findings
    assert (finding.code, finding.severity) == (code, "note")
    assert finding.repaired


REFUSED: dict[str, tuple[bytes, str]] = {
    "overlapping tensors": (built({"a": entry(0, 8), "b": entry(4, 16)}, FOUR), "bad-header"),
    "two names of one tensor's bytes": (built({"a": entry(0, 16), "b": entry(0, 16)}, FOUR), "bad-header"),
    "end before begin": (built({"a": entry(8, 4, shape=[1])}, FOUR), "bad-header"),
    "negative offset": (built({"a": entry(-4, 0, shape=[1])}, FOUR), "bad-header"),
    "negative size": (built({"a": entry(0, 16, shape=[-2, -2])}, FOUR), "bad-header"),
    "offsets that are floats": (built({"a": entry(0, 4, data_offsets=[0.0, 4.0])}, FOUR), "bad-header"),
    "offsets that are booleans": (built({"a": entry(0, 0, shape=[0], data_offsets=[False, False])}, b""), "bad-header"),
    "a size that is a boolean": (built({"a": entry(0, 4, shape=[True])}, FOUR), "bad-header"),
    "offsets beyond 64 bits": (built({"a": entry(0, 4, data_offsets=[2**64, 2**64 + 4])}, FOUR), "bad-header"),
    "three offsets": (built({"a": entry(0, 4, data_offsets=[0, 4, 8])}, FOUR), "bad-header"),
    "no offsets": (built({"a": {"dtype": "F32", "shape": [1]}}, FOUR), "bad-header"),
    "a number for a tensor": (built({"a": 5}, FOUR), "bad-header"),
    "a list for a tensor": (built({"a": ["F32", [1], [0, 4]]}, FOUR), "bad-header"),
    "an unknown number type": (built({"a": entry(0, 4, dtype="F33")}, FOUR), "bad-header"),
    "a list for a number type": (built({"a": entry(0, 4, dtype=["F32"])}, FOUR), "bad-header"),
    "NaN as a size": (built(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', FOUR), "bad-header"),
    "sizes whose product overflows 64 bits": (built({"a": entry(0, 0, shape=[2**32, 2**32])}, b""), "bad-header"),
    "sizes whose product is beyond all bounds": (built({"a": entry(0, 0, shape=[2**47] * 8)}, b""), "bad-header"),
    "too many dimensions": (built({"a": entry(0, 4, shape=[1] * 9)}, FOUR), "bad-header"),
    "text for sizes": (built({"a": entry(0, 4, shape="1")}, FOUR), "bad-header"),
    "one name twice": (built(b'{"a":%b,"a":%b}' % ((json.dumps(entry(0, 16)).encode(),) * 2), FOUR), "bad-header"),
    "UTF-16": (built(json.dumps({"a": entry(0, 16)}).encode("utf-16-le"), FOUR), "bad-header"),
    "bytes that are no UTF-8": (built(b'{"\xff":1}', b""), "bad-header"),
    "a list": (struct.pack("<Q", 4) + b"[{}]" + FOUR, "bad-header"),
    "deep JSON": (built(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""), "bad-header"),
    "a number of a million digits": (built(b'{"a":' + b"9" * 1_000_000 + b"}", b""), "bad-header"),
    "a header that ends in zero bytes": (built(json.dumps({"a": entry(0, 16)}).encode() + b"\0\0", FOUR), "bad-header"),
    "a header longer than the file": (struct.pack("<Q", 10_000) + b'{"a":', "truncated"),
    "a header longer than memory": (struct.pack("<Q", 2**63) + b'{"a":' + FOUR, "bad-header"),
    "a header of 32 MB of nothing": (built(b"{" + b" " * 32 * 2**20 + b"}", b""), "bad-header"),
    "a header full of lists": (built(b'{"a":[' + b"[]," * (MAX_HEADER // 3 - 9) + b"0]}", b""), "too-large"),
    "data cut off": (built({"a": entry(0, 16)}, FOUR[:-1]), "truncated"),
    "data beyond the end": (built({"a": entry(2**40, 2**40 + 4)}, FOUR), "truncated"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_refused(how: str, tmp_path: Path) -> None:
    data, code = REFUSED[how]
    path = tmp_path / "hero.safetensors"
    path.write_bytes(data)
    parsed = read(path)
    (finding,) = parsed.findings
    assert parsed.embedding is None
    assert (finding.code, finding.severity) == (code, "error")
    assert len(finding.message) < 600


CUTS: list[Callable[[bytes], bytes]] = [lambda d: d[:-1], lambda d: d[: len(d) // 2], lambda d: d[:20], lambda d: d[:9]]


@pytest.mark.parametrize("cut", CUTS)
def test_truncated(cut: Callable[[bytes], bytes]) -> None:
    data = safetensors.torch.save({"clip_l": RANDOM})
    with pytest.raises(UnreadableFile) as caught:
        opened(cut(data))
    assert caught.value.code == "truncated"


def test_lone_surrogates_are_replaced() -> None:
    data = built(b'{"\\ud800x":' + json.dumps(entry(0, 16)).encode() + b',"__metadata__":{"by":"\\udfff"}}', FOUR)
    container = opened(data)
    assert container.metadata == {"by": "?"}
    assert isinstance(container.tree, dict)
    assert list(container.tree) == ["?x"]
