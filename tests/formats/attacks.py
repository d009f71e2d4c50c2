"""Files made to harm, by hand: some would run something, some want memory or time, some contradict themselves."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable

import torch

HEAD = b"\x80\x02"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
ORDERED = b"ccollections\nOrderedDict\n)R"
FLOATS = b"ctorch\nFloatStorage\n"
BYTES = b"ctorch.storage\n_load_from_bytes\n"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def blob(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return pickle.dumps(value, protocol=2)[2:-1]


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def put(slot: int) -> bytes:
    return b"r" + struct.pack("<I", slot)


def get(slot: int) -> bytes:
    return b"j" + struct.pack("<I", slot)


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + b"(" + b"".join(arguments) + b"tR"


# --- files round a pickle ---------------------------------------------------------------------------------------------


def zipped(pickled: bytes, storages: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """A torch zip with this ``data.pkl``."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/version", "3\n")
        for key, data in (storages or {}).items():
            archive.writestr(f"x/data/{key}", data)
    return out.getvalue()


def legacy(pickled: bytes, *blocks: tuple[str, int, bytes]) -> bytes:
    """A torch file of the old form; blocks are (key, announced count, numbers)."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    keys = pickle.dumps([key for key, _, _ in blocks], protocol=2)
    data = b"".join(struct.pack("<Q", count) + values for _, count, values in blocks)
    return b"".join(pickle.dumps(part, protocol=2) for part in head) + pickled + keys + data


def storage_id(count: int, key: str = "0", kind: bytes = FLOATS) -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(count) + b"tQ"


def tensor_pickle(shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, count: int = 768) -> bytes:
    built = call(TENSOR, storage_id(count), number(offset), numbers(*shape), numbers(*stride), b"\x89", ORDERED)
    return HEAD + b"}" + text("emb_params") + built + b"s."


def tensor_file(shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> bytes:
    """A zip whose one tensor lies in a storage of 768 numbers."""
    return zipped(tensor_pickle(shape, stride, offset), {"0": bytes(768 * 4)})


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def entries(count: int, name: Callable[[int], str], width: int = 768) -> bytes:
    """Safetensors with many tensors."""
    size = width * 2
    table = {
        name(i): {"dtype": "F16", "shape": [1, width], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)
    }
    return safetensors(json.dumps(table).encode(), bytes(size * count))


# --- code -------------------------------------------------------------------------------------------------------------


def code(canary: str) -> dict[str, bytes]:
    """Pickles that would make the folder `canary`, or reach for something with which they could."""
    command, python = text(f"mkdir {canary}"), text(f"__import__('os').mkdir({canary!r})")
    make = text(canary)
    system = b"cos\nsystem\n"
    getter = b"cbuiltins\ngetattr\n"
    return {
        "os.system": call(system, command),
        "posix.system": call(b"cposix\nsystem\n", command),
        "os.mkdir": call(b"cos\nmkdir\n", make),
        "builtins.eval": call(b"cbuiltins\neval\n", python),
        "__builtin__.eval": call(b"c__builtin__\neval\n", python),
        "builtins.exec": call(b"cbuiltins\nexec\n", python),
        "builtins.compile": call(b"cbuiltins\ncompile\n", python, text("x"), text("exec")),
        "builtins.print": call(b"cbuiltins\nprint\n", text("hello")),
        "builtins.open": call(b"cbuiltins\nopen\n", make, text("w")),
        "builtins.__import__": call(b"cbuiltins\n__import__\n", text("antigravity")),
        "getattr chain": call(call(getter, b"cos\npath\n", text("os.system")), command),
        "getattr of a builder": call(call(getter, b"ccollections\nOrderedDict\n", text("__init__")), command),
        "operator.attrgetter": call(call(b"coperator\nattrgetter\n", text("system")), b"cos\npath\n"),
        "functools.partial": call(call(b"cfunctools\npartial\n", system, command)),
        "subprocess.Popen": call(b"csubprocess\nPopen\n", b"]" + text("mkdir") + b"a" + make + b"a"),
        "runpy": call(b"crunpy\n_run_code\n", python),
        "importlib": call(b"cimportlib\nimport_module\n", text("antigravity")),
        "pickle.loads": call(b"cpickle\nloads\n", blob(HEAD + call(system, command) + b".")),
        "torch.load": call(b"ctorch\nload\n", make),
        "torch.serialization.load": call(b"ctorch.serialization\nload\n", make),
        "torch.hub.load": call(b"ctorch.hub\nload\n", text("a/b"), text("c")),
        "torch.storage with a pickle of code": call(BYTES, blob(HEAD + call(system, command) + b".")),
        "numpy.load": call(b"cnumpy\nload\n", make),
        "numpy's runstring": call(b"cnumpy.testing._private.utils\nrunstring\n", python, b"}"),
        "a dotted name": b"\x95"
        + bytes(8)
        + text("torch")
        + text("serialization.os.system")
        + b"\x93"
        + b"("
        + command
        + b"tR",
        "stack global": text("os") + text("system") + b"\x93(" + command + b"tR",
        "inst": b"(" + command + b"ios\nsystem\n",
        "obj": b"(" + system + command + b"o",
        "newobj": system + b"(" + command + b"t\x81",
        "newobj of a class": b"csubprocess\nPopen\n(" + command + b"t\x81",
        "newobj_ex": b"ccollections\nOrderedDict\n)}\x92",
        "ext1": b"\x82\x01",
        "ext4": b"\x84" + struct.pack("<i", 240),
        "buffers": b"\x97\x98",
        "reduce of a number": call(number(5), command),
        "reduce of a text": call(text("os.system"), command),
        "reduce of a dtype": call(b"ctorch\nfloat32\n", command),
        "reduce of a storage class": call(FLOATS, command),
        "reduce without a tuple": system + command + b"R",
        "from type of something else": call(
            b"ctorch._tensor\n_rebuild_from_type_v2\n", command, command, b"(" + command + b"t"
        ),
        "from type of bytes that hold code": call(
            b"ctorch._tensor\n_rebuild_from_type_v2\n",
            BYTES,
            b"N",
            b"(" + blob(HEAD + call(system, command) + b".") + b"t",
            b"N",
        ),
        "state of a function": system + b"}" + text("x") + number(1) + b"sb",
        "state of a builder": b"ctorch.nn.parameter\nParameter\n}" + text("make") + system + b"sb",
        "state of a builder, in slots": b"ctorch.nn.parameter\nParameter\nN}" + text("make") + number(1) + b"s\x86b",
        "state of a tensor type": b"ctorch\nfloat32\n}" + text("dtype") + number(1) + b"sb",
        "items of a builder": b"ctorch.nn.parameter\nParameter\n" + text("make") + number(1) + b"s",
        "append to a builder": b"ctorch.nn.parameter\nParameter\n" + number(1) + b"a",
        "persistent id with a function": b"(" + text("storage") + system + text("0") + text("cpu") + number(1) + b"tQ",
        "persistent id that is text": b"Pos.system\n",
        "control characters in a name": b"c\x1b[2J\x1b]0;owned\x07os\nsystem\r\x1b[31mhero.pt: load\n",
        "line ends in a name": text("os\nhero.pt: load") + text("x") + b"\x93",
        "a name of a million characters": text("o" * 1_000_000) + text("system") + b"\x93",
    }


# --- memory and time --------------------------------------------------------------------------------------------------


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
        "a deep tuple as a key": b"}" + b")" + b"\x85" * 200_000 + b"Ns",
        "deep lists": b"]" * 100_001 + b"a" * 100_000,
        "deep tuples": b")" + b"\x85" * 500_000,
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
        "a million calls": ORDERED * 300_000,
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
    made |= {f"{name}, bare": HEAD + body + b"." for name, body in _pickle_bombs().items() if len(body) > 2**20}
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
