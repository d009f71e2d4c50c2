"""Every function and class that a pickle may name, and what stands for each. Nothing else is ever called for a file."""

from __future__ import annotations

from typing import Any

import torch

from ti_fix.errors import MALWARE, UnreadableFile
from ti_fix.formats import builders
from ti_fix.formats.builders import Builder, call

_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64 float32 float16 bfloat16 double float half float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
        "int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool long int short complex64 complex128"
    ).split()
    if hasattr(torch, name)
}
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
    "TypedStorage": torch.uint8,
}


def _refused(*_: Any) -> None:
    raise UnreadableFile("unsafe-pickle", f"it calls something that is not allowed in an embedding; {MALWARE}")


FROM_TYPE = Builder(_refused)
"""torch._tensor._rebuild_from_type_v2(function, type, arguments, state): the machine makes the inner call itself."""

FROM_BYTES = Builder(_refused)
"""torch.storage._load_from_bytes(data): the machine opens the legacy file inside the pickle itself."""

_ALLOWED: dict[tuple[str, str], Builder] = {
    ("torch._utils", "_rebuild_tensor"): Builder(builders.tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Builder(builders.tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Builder(builders.tensor_v3),
    ("torch._utils", "_rebuild_parameter"): Builder(builders.first),
    ("torch._utils", "_rebuild_parameter_with_state"): Builder(builders.first),
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): Builder(builders.first),
    ("torch._tensor", "_rebuild_from_type_v2"): FROM_TYPE,
    ("torch.nn.parameter", "Parameter"): Builder(builders.first),
    ("torch", "Tensor"): Builder(builders.held("type")),
    ("torch", "Size"): Builder(lambda sizes=(), *_: tuple(builders.listed(sizes))),
    ("torch", "device"): Builder(builders.device),
    ("torch.nn.modules.container", "ParameterDict"): Builder(builders.held("module")),
    ("torch.nn.modules.container", "ModuleDict"): Builder(builders.held("module")),
    ("torch.nn.modules.sparse", "Embedding"): Builder(builders.held("module")),
    ("torch.storage", "_load_from_bytes"): FROM_BYTES,
    ("collections", "OrderedDict"): Builder(builders.mapping),
    ("collections", "defaultdict"): Builder(lambda *_: {}),
    ("builtins", "dict"): Builder(builders.mapping),
    ("builtins", "set"): Builder(builders.listed),
    ("builtins", "frozenset"): Builder(builders.listed),
    ("builtins", "list"): Builder(builders.listed),
    ("builtins", "object"): Builder(builders.held("object")),
    ("builtins", "bytes"): Builder(builders.raw),
    ("builtins", "bytearray"): Builder(builders.raw),
    ("builtins", "slice"): Builder(lambda *_: None),
    ("copyreg", "_reconstructor"): Builder(lambda kind, *_: call(kind, ())),
    ("_codecs", "encode"): Builder(builders.encoded),
    ("numpy", "ndarray"): Builder(builders.held("ndarray")),
    ("numpy", "dtype"): Builder(builders.numpy_dtype),
}
_ALLOWED |= {("torch", name): Builder(_refused, dtype) for name, dtype in _DTYPES.items()}
for _module in ("torch", "torch.cuda", "torch.storage"):
    _ALLOWED |= {(_module, name): Builder(_refused, dtype) for name, dtype in _STORAGES.items()}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = Builder(builders.held("ndarray"))
    _ALLOWED[f"{_core}.multiarray", "scalar"] = Builder(builders.held("scalar"))
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = Builder(builders.array)
for _old, _new in (("__builtin__", "builtins"), ("copy_reg", "copyreg")):
    _ALLOWED |= {(_old, name): builder for (module, name), builder in _ALLOWED.items() if module == _new}


def find(module: str, name: str) -> Builder:
    """The builder that stands for a global.

    Raises:
        UnreadableFile: it is not allowed.
    """
    try:
        return _ALLOWED[module, name]
    except KeyError:
        what = f"{module}.{name}"
        raise UnreadableFile("unsafe-pickle", _not_allowed(what)) from None


def _not_allowed(what: str) -> str:
    shown = what if len(what) <= 80 else f"{what[:79]}…"
    return f"opening it would run {shown}, which is not allowed in an embedding; {MALWARE}"
