"""torch's own files, as torch itself reads them: every number type, form of tensor, form of file and protocol."""

from __future__ import annotations

import io
import pickle
import struct
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from ti_fix.formats.container import open_container
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container, StoredTensor

RANDOM = torch.randn(6, 768, generator=torch.Generator().manual_seed(5))
DTYPES = [
    getattr(torch, name)
    for name in (
        "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz int64 int32 int16 "
        "int8 uint8 uint16 uint32 uint64 bool complex64 complex128"
    ).split()
    if hasattr(torch, name)
]
FORMS = {"zip": True, "legacy": False}


def saved(content: Any, form: str, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, pickle_protocol=protocol, _use_new_zipfile_serialization=FORMS[form])
    return stream.getvalue()


def opened(data: bytes) -> Container:
    return open_container(Source(data), "file.pt")


def same(ours: Any, theirs: Any) -> None:
    """The same tree, every tensor of the same type, shape and bits."""
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, StoredTensor)
        read = ours.load()
        assert (ours.dtype, ours.shape) == (read.dtype, tuple(read.shape)) == (theirs.dtype, tuple(theirs.shape))
        theirs = theirs.detach().contiguous()
        assert bits(read.contiguous()) == bits(theirs)
        if theirs.dtype.is_floating_point:
            assert torch.equal(ours.read(), theirs.float())
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            same(ours[key], value)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert ours == theirs


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def as_torch_reads(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def check(data: bytes) -> None:
    same(opened(data).tree, as_torch_reads(data))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_type(dtype: torch.dtype, form: str) -> None:
    values = RANDOM.to(dtype) if dtype.is_floating_point else RANDOM.mul(50).to(torch.int32).to(dtype)
    content = {"emb": values, "odd": values[0, :3]}
    same(opened(saved(content, form)).tree, content)
    if form == "zip":  # torch itself cannot read the youngest types from the old form
        check(saved(content, form))


VIEWS = {
    "rows of a larger table": RANDOM[2:4],
    "columns": RANDOM[:, 10:20],
    "every other column": RANDOM[:, ::2],
    "transposed": RANDOM.T,
    "expanded": RANDOM[:1].expand(5, 768),
    "turned and cut": RANDOM.T[3:9, 1:],
    "one row": RANDOM[3],
    "one number": RANDOM[3, 5],
    "no rows": RANDOM[:0],
    "3-D": RANDOM.reshape(2, 3, 768),
    "overlapping windows": RANDOM.reshape(-1).as_strided((4, 768), (100, 1), 7),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", VIEWS)
def test_views(how: str, form: str) -> None:
    check(saved({"emb": VIEWS[how]}, form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_protocols_and_plain_data(protocol: int, form: str) -> None:
    content = {
        "string_to_token": {"*": 265},
        "string_to_param": OrderedDict([("*", RANDOM[:2])]),
        "name": "héro 🐱",
        "step": 2**40,
        "loss": 0.25,
        "done": True,
        "nothing": None,
        7: [1, (2, b"bytes"), RANDOM[0]],
        "size": torch.Size([2, 768]),
    }
    check(saved(content, form, protocol))


@pytest.mark.parametrize("form", FORMS)
def test_tensors_that_share_one_storage(form: str) -> None:
    data = saved({"left": RANDOM[:, :384], "right": RANDOM[:, 384:], "again": RANDOM}, form)
    check(data)
    assert len(data) < 2 * RANDOM.numel() * 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trainable", [False, True])
def test_parameters(trainable: bool, form: str) -> None:
    parameter = torch.nn.Parameter(RANDOM[:2].clone(), requires_grad=trainable)
    marked = torch.nn.Parameter(RANDOM[2:3].clone())
    marked.note = "set by a trainer"  # type: ignore[attr-defined]
    check(saved({"emb": parameter, "marked": marked}, form))


@pytest.mark.parametrize("form", FORMS)
def test_modules(form: str) -> None:
    layer = torch.nn.Embedding(3, 768)
    parameters = torch.nn.ParameterDict({"*": torch.nn.Parameter(RANDOM[:2].clone())})
    data = saved({"state": layer.state_dict(), "layer": layer, "string_to_param": parameters}, form)
    tree, theirs = opened(data).tree, as_torch_reads(data)
    assert isinstance(tree, dict)
    same(tree["state"], theirs["state"])
    same(tree["layer"], {"weight": theirs["layer"].weight})
    same(tree["string_to_param"], dict(theirs["string_to_param"]))


@pytest.mark.parametrize("form", FORMS)
def test_numpy_arrays_beside_tensors(form: str) -> None:
    content = {"emb": RANDOM[:2], "array": RANDOM[2:4].numpy(), "count": RANDOM.numpy().sum()}
    tree = opened(saved(content, form)).tree
    assert isinstance(tree, dict)
    same({"emb": tree["emb"], "array": tree["array"]}, {"emb": RANDOM[:2], "array": RANDOM[2:4]})


@pytest.mark.parametrize("form", FORMS)
def test_tensors_of_a_graphics_card(form: str) -> None:
    for where in (b"cuda:0", b"mps:00"):
        tagged = _tagged(saved({"emb": RANDOM[:2]}, form), where)
        assert where in tagged
        same(opened(tagged).tree, {"emb": RANDOM[:2]})


def _tagged(data: bytes, where: bytes) -> bytes:
    """The file as if the tensors had lived elsewhere: the location tag of each storage replaced."""
    old, new = b"X\x03\x00\x00\x00cpu", b"X" + struct.pack("<I", len(where)) + where
    if data[:2] != b"PK":
        return data.replace(old, new)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(old, new))
    return out.getvalue()


def _rezipped(data: bytes, change: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", method) as target:
        for name in source.namelist():
            target.writestr(name, change.get(name.split("/", 1)[1], source.read(name)))
    return out.getvalue()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.complex64, torch.uint8], ids=str)
def test_zip_of_a_big_endian_machine(dtype: torch.dtype) -> None:
    values = RANDOM.mul(50).to(dtype)
    numbers = values.numpy()
    data = _rezipped(saved({"emb": values}, "zip"), {"byteorder": b"big", "data/0": numbers.byteswap().tobytes()})
    check(data)
    same(opened(data).tree, {"emb": values})


def test_legacy_file_of_a_big_endian_machine_holds_little_endian_numbers() -> None:
    data = saved({"emb": RANDOM}, "legacy")
    flag = b"little_endianq\x02\x88"
    assert flag in data
    check(data.replace(flag, flag[:-1] + b"\x89"))


def test_legacy_storage_that_is_part_of_another() -> None:
    """torch 0.1 to 0.3 stored a slice of a storage as (key of the slice, first element, length)."""
    data = saved({"emb": RANDOM[:1]}, "legacy")
    whole = RANDOM.numel()
    end_of_id = b"M" + struct.pack("<H", whole) + b"Nt"
    assert end_of_id in data
    part = b"M" + struct.pack("<H", whole) + b"(X\x01\x00\x00\x00vM\x00\x03M\x00\x06tt"
    check(data.replace(end_of_id, part))
    same(opened(data.replace(end_of_id, part)).tree, {"emb": RANDOM[1:2]})


def test_zip_packed_again_by_hand() -> None:
    check(_rezipped(saved({"emb": RANDOM}, "zip"), {}, zipfile.ZIP_DEFLATED))


def test_zip_without_checksums_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        data = saved({"emb": RANDOM}, "zip")
    finally:
        torch.serialization.set_crc32_options(before)
    check(data)
    assert not opened(data).findings


def test_a_wrong_checksum_is_told_and_the_rest_read() -> None:
    data = saved({"emb": RANDOM}, "zip")
    at = data.index(RANDOM.numpy().tobytes()) + 40
    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    check(data)
    (finding,) = opened(data).findings
    assert (finding.code, finding.severity) == ("checksum", "warning")


def test_large_files_are_read_in_parts(tmp_path: Path) -> None:
    table = torch.arange(3_000_000, dtype=torch.float32).reshape(-1, 1000)
    for form in FORMS:
        path = tmp_path / f"{form}.pt"
        path.write_bytes(saved({"table": table, "emb": RANDOM}, form))
        same(open_container(Source(path), path.name).tree, {"table": table, "emb": RANDOM})


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_pickled_without_torch_save(protocol: int) -> None:
    content = {"emb": RANDOM[:2], "half": RANDOM[2:].half(), "fp8": RANDOM[:1].to(torch.float8_e5m2)}
    content["parameter"] = torch.nn.Parameter(RANDOM[:1].clone())
    same(opened(pickle.dumps(content, protocol=protocol)).tree, content)
