"""Pickles made by hand, the files to put them into, and those that would run something."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable

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
