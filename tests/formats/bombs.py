"""Files made by hand that want memory or time, and zips that contradict themselves."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib

import torch

from tests.formats.attacks import (
    BYTES,
    FLOATS,
    HEAD,
    ORDERED,
    TENSOR,
    blob,
    call,
    entries,
    get,
    legacy,
    number,
    numbers,
    put,
    safetensors,
    storage_id,
    tensor_file,
    tensor_pickle,
    text,
    zipped,
)


def laughs(first: bytes, twice: bytes, depth: int) -> bytes:
    """A container that holds the one before it twice, `depth` times over; only the last is left on the stack."""
    out = first + put(0) + b"0"
    for level in range(depth):
        out += twice.replace(b"<old>", get(level)) + put(level + 1) + b"0"
    return out + get(depth)


def copies(maker: bytes, big: bytes, times: int) -> bytes:
    """A call that copies one large argument, many times."""
    step = get(1) + b"(" + get(0) + b"tR"
    return big + put(0) + b"0" + maker + put(1) + b"0" + b"]" + b"(" + step * times + b"e"


def big_list(count: int) -> bytes:
    return b"](" + b"N" * count + b"e"


def nested_storages(depth: int) -> bytes:
    inner = HEAD + b"N."
    for _ in range(depth):
        inner = HEAD + call(BYTES, blob(inner)) + b"."
    return inner


def repeated_storages() -> bytes:
    """Each level opens the one below it hundreds of times."""
    inner = HEAD + b"N."
    for _ in range(4):
        opened = get(0) + b"(" + get(1) + b"tR0"
        inner = HEAD + BYTES + put(0) + b"0" + blob(inner) + put(1) + b"0" + opened * 300 + b"N."
    return inner


def _pickle_bombs() -> dict[str, bytes]:
    return {
        "memo slot 2**31": number(1) + b"r" + b"\xff\xff\xff\x7f",
        "memo slot in decimal": number(1) + b"p" + b"9" * 30 + b"\n",
        "a whole number of a million digits": b"I" + b"9" * 1_000_000 + b"\n",
        "a long of a million digits": b"L" + b"9" * 1_000_000 + b"L\n",
        "a number of 100,000 bytes": b"}"
        + text("step")
        + b"\x8b"
        + struct.pack("<i", 100_000)
        + b"\x7f" * 100_000
        + b"s",
        "a number of 100,000 bytes as a key": b"}\x8b" + struct.pack("<i", 100_000) + b"\x7f" * 100_000 + b"Ns",
        "bytearray of 2**62 bytes": b"\x96" + struct.pack("<Q", 2**62),
        "bytearray of 4 GB": b"\x96" + struct.pack("<Q", 2**32) + b"x",
        "bytes of 2**62": b"\x8e" + struct.pack("<Q", 2**62) + b"x",
        "text of 4 GB": b"X" + b"\xff\xff\xff\xff" + b"x",
        "a frame of 2**62 bytes": b"\x95" + struct.pack("<Q", 2**62) + b"N",
        "frames within frames": b"\x95" + struct.pack("<Q", 2**62) + b"\x95" * 9 * 5000 + b"N",
        "billion laughs of lists": laughs(b"]", b"](<old><old>e", 40),
        "billion laughs of tuples": laughs(b")", b"<old><old>\x86", 40),
        "billion laughs of tables": laughs(b"}", b"}(" + text("a") + b"<old>" + text("b") + b"<old>u", 40),
        "billion laughs as a key": b"}" + laughs(b")", b"<old><old>\x86", 60) + b"Ns",
        "billion laughs in a set": b"\x8f(" + laughs(b")", b"<old><old>\x86", 60) + b"\x90",
        "billion laughs in a frozen set": b"(" + laughs(b")", b"<old><old>\x86", 60) + b"\x91",
        "billion laughs as a storage's key": b"("
        + text("storage")
        + FLOATS
        + laughs(b"]", b"](<old><old>e", 60)
        + b"NNtQ",
        "billion laughs as text of a device": call(b"ctorch\ndevice\n", laughs(b"]", b"](<old><old>e", 60)),
        "billion laughs to be encoded": call(b"c_codecs\nencode\n", laughs(b"]", b"](<old><old>e", 60)),
        "billion laughs of held objects": laughs(
            b"ctorch.nn.modules.sparse\nEmbedding\n)R",
            b"ctorch.nn.modules.sparse\nEmbedding\n)R}(" + text("a") + b"<old>" + text("b") + b"<old>ub",
            40,
        ),
        "a deep tuple as a key": b"}" + b")" + b"\x85" * 100_000 + b"Ns",
        "deep lists": b"]" * 100_001 + b"a" * 100_000,
        "deep tuples": b")" + b"\x85" * 200_000,
        "deep tables": (b"}" + text("a")) * 50_000 + b"N" + b"s" * 50_000,
        "deep held objects": (b"ctorch.nn.modules.sparse\nEmbedding\n)R}" + text("a")) * 5000 + b"N" + b"sb" * 5000,
        "a list in itself": b"]" + put(0) + get(0) + b"a",
        "a table in itself": b"}" + put(0) + text("a") + get(0) + b"s",
        "a tuple in itself": b"]" + put(0) + get(0) + b"\x85" + put(1) + b"0" + get(1) + b"a",
        "a held object in itself": b"ctorch.nn.modules.sparse\nEmbedding\n)R"
        + put(0)
        + b"}"
        + text("a")
        + get(0)
        + b"sb",
        "two million nothings": b"(" + b"N" * 2_000_000 + b"t",
        "two million sets": b"\x8f" * 2_000_000,
        "a million calls": ORDERED * 150_000,
        "a list copied 20,000 times": copies(b"cbuiltins\nlist\n", b"(" + b"N" * 100_000 + b"t", 20_000),
        "a set copied 20,000 times": copies(b"cbuiltins\nset\n", b"(" + b"N" * 100_000 + b"t", 20_000),
        "a size copied 20,000 times": copies(b"ctorch\nSize\n", big_list(100_000), 20_000),
        "a text encoded 20,000 times": copies(b"c_codecs\nencode\n", text("x" * 1_000_000), 20_000),
        "a table copied 20,000 times": copies(
            b"ccollections\nOrderedDict\n",
            b"](" + b"".join(text(str(i)) + b"N\x86" for i in range(20_000)) + b"e",
            20_000,
        ),
        "arguments copied 20,000 times": b"(" + b"N" * 100_000 + b"t" + put(0) + b"0"
        b"cbuiltins\nobject\n" + put(1) + b"0](" + (get(1) + get(0) + b"R") * 20_000 + b"e",
        "a copy by way of from type": b"(" + b"N" * 100_000 + b"t" + put(0) + b"0" + get(0) + b"\x85" + put(2) + b"0"
        b"ctorch._tensor\n_rebuild_from_type_v2\n"
        + put(1)
        + b"0cbuiltins\nlist\n"
        + put(3)
        + b"0]("
        + (get(1) + b"(" + get(3) + b"N" + get(2) + b"tR") * 20_000
        + b"e",
        "one state of 20,000 objects": b"}("
        + b"".join(text(str(i)) + b"N" for i in range(20_000))
        + b"u"
        + put(0)
        + b"0]("
        + (b"ctorch.nn.modules.sparse\nEmbedding\n)R" + get(0) + b"b") * 20_000
        + b"e",
        "shape of 100,000 numbers": call(
            TENSOR, storage_id(768), number(0), b"(" + number(2**47) * 100_000 + b"t", numbers(1), b"\x89", ORDERED
        ),
        "storages in storages, deep": nested_storages(300)[2:-1],
        "storages in storages, wide": repeated_storages()[2:-1],
        "keys that collide": b"}(" + b"".join(number(i << 40) + b"N" for i in range(1, 100_000)) + b"u",
    }


def _zip_bombs() -> dict[str, bytes]:
    packed = zlib.compressobj(1, zlib.DEFLATED, -15)
    zeros = b"".join(packed.compress(bytes(2**20)) for _ in range(301)) + packed.flush()
    bomb = _one_record("x/data.pkl", zeros, 301 * 2**20, 8)
    claims = _one_record("x/data.pkl", zeros, 1000, 8)
    storage = tensor_pickle((2, 768), (60_000_000, 1), count=70_000_000)
    return {
        "zip: a pickle of 300 MB in 1 MB": bomb,
        "zip: a pickle of 300 MB that claims 1,000 bytes": claims,
        "zip: a tensor far out in a packed storage": _with_record(zipped(storage), "x/data/0", zeros, 301 * 2**20, 8),
        "zip: 150,000 records": _many_records(150_000),
        "zip: a table of 20 MB": _many_records(420_000),
    }


def _entry(name: str, packed: int, size: int, method: int, at: int, flags: int = 0, crc: int = 0) -> bytes:
    fields = (20, 20, flags, method, 0, 0, crc, packed, size, len(name), 0, 0, 0, 0, 0, at)
    return b"PK\x01\x02" + struct.pack("<6H3L5H2L", *fields) + name.encode()


def _local(name: str, packed: int, size: int, method: int, flags: int = 0) -> bytes:
    return (
        b"PK\x03\x04" + struct.pack("<5H3L2H", 20, flags, method, 0, 0, 0, packed, size, len(name), 0) + name.encode()
    )


def _end(count: int, size: int, at: int) -> bytes:
    return b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, count & 0xFFFF, count & 0xFFFF, size, at, 0)


def _one_record(name: str, data: bytes, size: int, method: int, flags: int = 0) -> bytes:
    body = _local(name, len(data), size, method, flags) + data
    table = _entry(name, len(data), size, method, 0, flags)
    return body + table + _end(1, len(table), len(body))


def _with_record(archive: bytes, name: str, data: bytes, size: int, method: int) -> bytes:
    """A zip with one more record, its data put in front of the table."""
    end = archive.rindex(b"PK\x05\x06")
    count, table_size, table_at = struct.unpack("<H2L", archive[end + 10 : end + 20])
    body = archive[:table_at] + _local(name, len(data), size, method) + data
    table = archive[table_at : table_at + table_size] + _entry(name, len(data), size, method, table_at)
    return body + table + _end(count + 1, len(table), len(body))


def _many_records(count: int) -> bytes:
    body = _local("x/data.pkl", 0, 0, 0)
    table = b"".join(_entry(f"{i:x}", 0, 0, 0, 0) for i in range(count))
    return body + table + _end(count, len(table), len(body))


def _tensor_bombs() -> dict[str, bytes]:
    return {
        "stride 0, a billion rows": tensor_file((10**9, 768), (0, 1)),
        "stride 0, 40,000 rows": tensor_file((40_000, 768), (0, 1)),
        "stride 0, 4,096 rows of T5": zipped(tensor_pickle((4096, 4096), (0, 0)), {"0": bytes(768 * 4)}),
        "stride 0 of a 2**47": tensor_file((2**47, 2**47), (0, 0)),
        "8 dimensions of 2**47": tensor_file((2**47,) * 8, (0,) * 8),
        "negative stride": tensor_file((2, 384), (-384, 1), 384),
        "negative offset": tensor_file((1, 768), (768, 1), -768),
        "negative shape": tensor_file((-1, 768), (768, 1)),
        "a stride that overflows": tensor_file((2, 768), (2**62, 1)),
        "an offset beyond": tensor_file((1, 768), (768, 1), 1),
        "an offset of 2**63": tensor_file((1, 768), (768, 1), 2**63),
        "strides for another shape": tensor_file((1, 768), (768,)),
        "no numbers of 2**47": tensor_file((0, 2**47, 2**47, 2**47), (1, 1, 1, 1)),
        "a storage that is too short": zipped(tensor_pickle((1, 768), (768, 1)), {"0": bytes(767 * 4)}),
        "no storage": zipped(tensor_pickle((1, 768), (768, 1))),
        "legacy: a trillion numbers announced": legacy(
            tensor_pickle((1, 768), (768, 1), count=10**12), ("0", 10**12, b"")
        ),
        "legacy: 2**62 numbers announced": legacy(tensor_pickle((1, 768), (768, 1), count=2**62), ("0", 2**62, b"")),
        "legacy: less there than announced": legacy(tensor_pickle((1, 768), (768, 1)), ("0", 768, bytes(100))),
        "legacy: another count than announced": legacy(tensor_pickle((1, 768), (768, 1)), ("0", 2**63, bytes(3072))),
        "legacy: numbers never given": legacy(tensor_pickle((1, 768), (768, 1))),
        "legacy: numbers of an unknown key": legacy(tensor_pickle((1, 768), (768, 1)), ("1", 768, bytes(3072))),
        "legacy: one storage of two types": legacy(
            HEAD + b"]" + storage_id(768) + b"a" + storage_id(768, kind=b"ctorch\nDoubleStorage\n") + b"a.",
            ("0", 768, bytes(6144)),
        ),
    }


def _header_bombs() -> dict[str, bytes]:
    half = {"dtype": "F16", "shape": [1, 768], "data_offsets": [0, 1536]}
    return {
        "safetensors: 100,000 tensors": entries(100_000, lambda i: f"t{i}", 1),
        "safetensors: 10,000 concepts": entries(10_000, lambda i: f"<concept {i} of many>"),
        "safetensors: 10,000 parts of one": entries(10_000, lambda i: f"<cat>_{i}"),
        "safetensors: 10,000 keys of digits": entries(10_000, lambda i: f"{i}{'1' * 480}x"),
        "safetensors: a key of a million digits": entries(1, lambda _: "1" * 1_000_000 + "x"),
        "safetensors: a key of a million dots": safetensors(
            json.dumps({"a" + ".clip_l" * 150_000: half}).encode(), bytes(1536)
        ),
        "safetensors: 70 halves in one key": safetensors(
            json.dumps({"a" + ".clip_l" * 70: half}).encode(), bytes(1536)
        ),
        "safetensors: a header of lists": safetensors(b'{"a":[' + b"[]," * 5_000_000 + b"0]}"),
        "safetensors: a header of words": safetensors(
            b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(900_000)) + b"}}"
        ),
        "safetensors: a number of 10 million digits": safetensors(b'{"a":' + b"9" * 10_000_000 + b"}"),
        "safetensors: deep": safetensors(b'{"a":' + b"[" * 5_000_000 + b"}"),
    }


def bombs() -> dict[str, bytes]:
    """Files that want memory or time."""
    made = {f"pickle: {name}": zipped(HEAD + body + b".", {"0": bytes(3072)}) for name, body in _pickle_bombs().items()}
    made |= {f"{name}, bare": HEAD + body + b"." for name, body in _pickle_bombs().items() if len(body) > 1_900_000}
    made |= {f"tensor: {name}": data for name, data in _tensor_bombs().items()}
    return made | _zip_bombs() | _header_bombs()


# --- lies -------------------------------------------------------------------------------------------------------------


def honest_zip() -> bytes:
    out = io.BytesIO()
    torch.save({"string_to_param": {"*": torch.ones(1, 768)}, "name": "hero"}, out)
    return out.getvalue()


def zip_lies() -> dict[str, bytes]:
    """Zips that contradict themselves."""
    good = tensor_pickle((1, 768), (768, 1))
    stored = zipped(good, {"0": bytes(3072)})
    end = stored.rindex(b"PK\x05\x06")
    (table_at,) = struct.unpack("<L", stored[end + 16 : end + 20])
    lzma = zipped(good, {"0": bytes(3072)}, zipfile.ZIP_LZMA)
    twice = _with_record(stored, "x/data.pkl", good, len(good), 0)
    far = stored[:table_at] + stored[table_at:].replace(b"PK\x01\x02", b"PK\x01\x09", 1)
    return {
        "two records of one name": twice,
        "encrypted": _one_record("x/data.pkl", good, len(good), 0, flags=1),
        "LZMA": lzma,
        "a method that does not exist": _one_record("x/data.pkl", good, len(good), 77),
        "a stored record of another size": _one_record("x/data.pkl", good, len(good) + 5, 0),
        "a packed record that is no deflate": _one_record("x/data.pkl", b"\xff" * 50, 50, 8),
        "a record beyond the end": stored[:table_at] + _entry("x/data.pkl", 9, 9, 0, 2**31) + _end(1, 56, table_at),
        "a table beyond the end": stored[:end] + _end(4, 2**20, 2**20),
        "a table that is none": far,
        "a table of zip64 without one": stored[:end] + _end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        "zip64 that points outside": stored[:end]
        + b"PK\x06\x07"
        + struct.pack("<LQL", 0, 2**63, 1)
        + _end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        "zip64 that points at itself": stored[:end]
        + b"PK\x06\x07"
        + struct.pack("<LQL", 0, end, 1)
        + _end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        "sizes in a zip64 field that is not there": _one_record("x/data.pkl", good, 0xFFFFFFFF, 0),
        "no pickle": _one_record("x/readme.txt", b"hi", 2, 0),
        "an empty pickle": _one_record("x/data.pkl", b"", 0, 0),
        "a record named ..": _one_record("../../data.pkl", b"\x80\x02}.", 4, 0),
    }
