"""A pickle machine that can build tensors and plain data, and nothing else.

Two walls. Only the opcodes of plain data, calls and state are run (no class construction by name, no extension
registry, no opcode that allocates by a number in the file), and each global that a pickle names is looked up in a
fixed table of our own builders: nothing is imported and no function of torch, numpy or Python is ever called by a
file. The pure-Python machine of the standard library is used on purpose: the C one allocates gigabytes when a
thirty-byte pickle asks for memo slot 2**31.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ti_fix.errors import UnreadableFile
from ti_fix.formats.stored import MAX_TENSOR_BYTES, StoredTensor

MAX_EXPANSION = 2**24
"""Elements that a tensor may have beyond those in its storage (stride 0 repeats a row)."""

MAX_NESTING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A block of numbers beside the pickle.

    Attributes:
        dtype: of the elements.
        size: number of elements that are really there.
        load: start, count -> 1-D tensor of that part.
    """

    dtype: torch.dtype
    size: int
    load: Callable[[int, int], Tensor]


class RestrictedUnpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Reads one pickle from a stream.

    Args:
        stream: positioned at the pickle; left behind it.
        storage: persistent id -> the storage it means.

    Raises (from `load`):
        UnreadableFile: the pickle is damaged or names something that is not allowed.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def __init__(self, stream: io.BufferedIOBase | io.BytesIO, storage: Callable[[Any], Storage]) -> None:
        super().__init__(stream, encoding="latin1")
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        """One of our own builders, never the thing itself."""
        dtype = _dtype_named(module, name)
        if dtype is not None:
            return dtype
        try:
            return _ALLOWED[module, name]
        except KeyError:
            what = f"{module}.{name}"[:120]
            raise UnreadableFile(
                "unsafe-pickle", f"it asks for {what}, which is not allowed in an embedding; do not load it."
            ) from None

    def persistent_load(self, saved_id: Any) -> Storage:
        return self._storage(saved_id)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        builder = self.stack.pop()
        self.append(_call(builder, arguments))

    def _newobj(self) -> None:
        self._reduce()

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, _Held):
            target.set_state(state)
        elif isinstance(target, dict) and isinstance(state, dict):
            pass  # attributes that were set on an OrderedDict: nothing to read there
        else:
            raise UnreadableFile("malformed", "its pickle sets state on something that has none.")


def _refuse(self: RestrictedUnpickler) -> None:
    raise UnreadableFile("unsafe-pickle", "its pickle uses an instruction that is not allowed in an embedding.")


_D = RestrictedUnpickler.dispatch
_D[pickle.REDUCE[0]] = RestrictedUnpickler._reduce
_D[pickle.NEWOBJ[0]] = RestrictedUnpickler._newobj
_D[pickle.BUILD[0]] = RestrictedUnpickler._build
for _code in ("INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"):
    _D[getattr(pickle, _code)[0]] = _refuse


def load_pickle(stream: io.BufferedIOBase | io.BytesIO, storage: Callable[[Any], Storage]) -> Any:
    """One pickle as plain data with `StoredTensor` leaves.

    Raises:
        UnreadableFile: damaged, unsafe or larger than its file allows.
    """
    try:
        return _Opener().open(RestrictedUnpickler(stream, storage).load())
    except UnreadableFile:
        raise
    except EOFError:
        raise UnreadableFile("truncated", "truncated: its pickle ends too early; download it again.") from None
    except (RecursionError, MemoryError, OverflowError):
        raise UnreadableFile("malformed", "its pickle is built to exhaust memory; do not load it.") from None
    except Exception as error:  # the machine raises whatever Python does on damaged instructions
        kind = type(error).__name__
        raise UnreadableFile("malformed", f"its pickle is damaged ({kind}); download it again.") from None


# --- builders ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Held:
    """Stands for an object of a known class: its state is kept, its code never runs."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def set_state(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:  # SETITEMS on a dict-like class
        self.items[key] = value

    def plain(self) -> Any:
        """The data that the object would have held."""
        if self.kind == "ndarray":
            return _array(self.state)
        if self.kind == "scalar":
            return None
        parts = self.state if isinstance(self.state, dict) else {}
        content = {**parts.get("_parameters", {}), **self.items} if isinstance(parts.get("_parameters", {}), dict) else {}
        return content or {k: v for k, v in parts.items() if not str(k).startswith("_")}


def _held(kind: str) -> Callable[..., _Held]:
    return lambda *arguments: _Held(kind=kind, arguments=arguments)


def _call(builder: Any, arguments: Any) -> Any:
    if not isinstance(builder, _Builder) or not isinstance(arguments, tuple):
        raise UnreadableFile("unsafe-pickle", "its pickle calls something that is not allowed; do not load it.")
    return builder.make(*arguments)


@dataclass(frozen=True, slots=True)
class _Builder:
    """What stands for an allowed global; without a `__dict__`, so that no pickle can leave anything on it."""

    make: Callable[..., Any]
    dtype: torch.dtype | None = None


def _tensor(storage: Any, offset: int, shape: Any, stride: Any, *_: Any) -> StoredTensor:
    """torch._utils._rebuild_tensor_v2, with every number checked against the storage."""
    shape, stride = tuple(shape), tuple(stride)
    if not isinstance(storage, Storage) or not _counts((offset, *shape, *stride)) or len(shape) != len(stride):
        raise UnreadableFile("malformed", "its pickle describes a tensor wrongly; download it again.")
    numel = math.prod(shape)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if numel else 0
    if len(shape) > 8 or offset + span > storage.size:
        raise UnreadableFile("truncated", "truncated: a tensor reaches beyond its data; download it again.")
    if numel > storage.size + MAX_EXPANSION or numel * 4 > MAX_TENSOR_BYTES and numel > storage.size:
        raise UnreadableFile("too-large", f"it unfolds a few numbers into a tensor of {list(shape)}; do not load it.")

    def load() -> Tensor:
        return torch.as_strided(storage.load(offset, span), shape, stride) if numel else torch.empty(
            shape, dtype=storage.dtype
        )

    return StoredTensor(shape=shape, dtype=storage.dtype, load=load)


def _tensor_v3(storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, kind: Any, *_: Any) -> Any:
    """torch._utils._rebuild_tensor_v3: the type beside an untyped storage (float8 is stored so)."""
    dtype = storage_dtype(kind)
    if dtype is None or not isinstance(storage, Storage):
        raise UnreadableFile("malformed", "its pickle describes a tensor wrongly; download it again.")
    size = storage.size * storage.dtype.itemsize // dtype.itemsize
    raw, per_item = storage, max(1, dtype.itemsize // storage.dtype.itemsize)

    def load(start: int, count: int) -> Tensor:
        return raw.load(start * per_item, count * per_item).view(dtype)

    return _tensor(Storage(dtype=dtype, size=size, load=load), offset, shape, stride)


def _counts(numbers: tuple[Any, ...]) -> bool:
    return all(type(n) is int and 0 <= n < 2**48 for n in numbers)


def _first(value: Any, *_: Any) -> Any:
    """A wrapper (Parameter, from_type_v2) around a tensor: the tensor."""
    return value


def _from_type(_function: Any, _kind: Any, arguments: Any, *_: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2(func, type, args, state)."""
    return _call(_function, arguments)


def _ordered(pairs: Any = (), *_: Any) -> dict[Any, Any]:
    return {k: v for k, v in pairs}


def _encode(text: Any, *_: Any) -> bytes:
    """_codecs.encode(text, "latin1"): how protocol 2 stores bytes."""
    return str(text).encode("latin1", "replace")


def _from_bytes(data: Any) -> Any:
    """torch.storage._load_from_bytes: a whole legacy file inside the pickle of a storage."""
    from ti_fix.formats.torch_file import read_legacy_storage

    return read_legacy_storage(data)


def _numpy_dtype(name: Any, *_: Any) -> _Held:
    return _Held(kind="dtype", arguments=(str(name),))


_NUMPY = {"f2": torch.float16, "f4": torch.float32, "f8": torch.float64}


def _array(state: Any) -> StoredTensor | None:
    """numpy.ndarray.__setstate__: (version, shape, dtype, fortran order, bytes)."""
    try:
        _, shape, held, fortran, data = state
        name = held.arguments[0]
        order = held.state[1] if isinstance(held.state, tuple) else "<"
    except (TypeError, ValueError, AttributeError, IndexError):
        return None
    if name not in _NUMPY or not isinstance(data, bytes) or not _counts(tuple(shape)) or len(shape) > 8:
        return None
    dtype = _NUMPY[name]
    if math.prod(shape) * dtype.itemsize != len(data):
        raise UnreadableFile("malformed", "its pickle describes an array wrongly; download it again.")

    def load() -> Tensor:
        import numpy as np

        array = np.frombuffer(data, dtype=f"{order if order in '<>' else '='}{name}")
        array = array.reshape(tuple(shape), order="F" if fortran else "C")
        return torch.from_numpy(array.astype(name))

    return StoredTensor(shape=tuple(shape), dtype=dtype, load=load)


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
    "UntypedStorage": torch.uint8,
    "TypedStorage": torch.uint8,
}
_DTYPE_NAMES = frozenset(
    "float64 float32 float16 bfloat16 double float half int64 int32 int16 int8 uint8 bool long int short".split()
) | {n for n in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, n)}


def storage_dtype(kind: Any) -> torch.dtype | None:
    """The element type that a storage class or dtype named in a pickle stands for."""
    return kind.dtype if isinstance(kind, _Builder) else None


def _dtype_named(module: str, name: str) -> _Builder | None:
    if module == "torch" and name in _DTYPE_NAMES:
        return _Builder(_never, dtype=getattr(torch, name))
    if module in ("torch", "torch.cuda", "torch.storage") and name in _STORAGES:
        return _Builder(_never, dtype=_STORAGES[name])
    return None


def _never(*_: Any) -> None:
    raise UnreadableFile("unsafe-pickle", "its pickle calls a number type; do not load it.")


_RECONSTRUCT = _Builder(lambda kind, *_: _call(kind, ()))
_PARAMETER_DICT = _Builder(_held("module"))
_ALLOWED: dict[tuple[str, str], _Builder] = {
    ("torch._utils", "_rebuild_tensor"): _Builder(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): _Builder(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): _Builder(_tensor_v3),
    ("torch._utils", "_rebuild_parameter"): _Builder(_first),
    ("torch._utils", "_rebuild_parameter_with_state"): _Builder(_first),
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _Builder(_first),
    ("torch._tensor", "_rebuild_from_type_v2"): _Builder(_from_type),
    ("torch.nn.parameter", "Parameter"): _Builder(lambda value=None, *_: value),
    ("torch", "Tensor"): _Builder(_held("type")),
    ("torch", "Size"): _Builder(lambda sizes=(), *_: tuple(sizes)),
    ("torch", "device"): _Builder(lambda *parts: ":".join(map(str, parts))),
    ("torch.nn.modules.container", "ParameterDict"): _PARAMETER_DICT,
    ("torch.nn.modules.container", "ModuleDict"): _PARAMETER_DICT,
    ("torch.nn.modules.sparse", "Embedding"): _PARAMETER_DICT,
    ("torch.storage", "_load_from_bytes"): _Builder(_from_bytes),
    ("collections", "OrderedDict"): _Builder(_ordered),
    ("collections", "defaultdict"): _Builder(lambda *_: {}),
    ("builtins", "dict"): _Builder(_ordered),
    ("builtins", "set"): _Builder(lambda items=(), *_: list(items)),
    ("builtins", "list"): _Builder(lambda items=(), *_: list(items)),
    ("builtins", "object"): _Builder(_held("object")),
    ("builtins", "slice"): _Builder(lambda *_: None),
    ("copyreg", "_reconstructor"): _RECONSTRUCT,
    ("_codecs", "encode"): _Builder(_encode),
    ("numpy", "ndarray"): _Builder(_held("ndarray")),
    ("numpy", "dtype"): _Builder(_numpy_dtype),
}
for _core in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _ALLOWED[_core, "_reconstruct"] = _Builder(_held("ndarray"))
    _ALLOWED[_core, "scalar"] = _Builder(_held("scalar"))
for _old, _new in (("__builtin__", "builtins"), ("copy_reg", "copyreg")):
    _ALLOWED.update({(_old, n): b for (m, n), b in list(_ALLOWED.items()) if m == _new})


class _Opener:
    """Replaces held objects by their data. Each container is visited once, so shared parts cannot multiply."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def open(self, value: Any, depth: int = 0) -> Any:
        if not isinstance(value, (_Held, dict, list, tuple)):
            return value
        if depth > MAX_NESTING:
            raise UnreadableFile("malformed", "its structure is nested beyond reason; it is damaged or made to harm.")
        known = self._done.get(id(value))
        if known is not None:
            return known[1]
        return self._open_container(value, depth + 1)

    def _open_container(self, value: Any, depth: int) -> Any:
        # The original is kept beside its result, so that its id stays taken while the file is open.
        if isinstance(value, tuple):
            result: Any = tuple(self.open(item, depth) for item in value)
            self._done[id(value)] = (value, result)
        elif isinstance(value, _Held):
            self._done[id(value)] = (value, None)
            result = self.open(value.plain(), depth)
            self._done[id(value)] = (value, result)
        else:
            result = value
            self._done[id(value)] = (value, value)
            for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                value[key] = self.open(item, depth)
        return result
