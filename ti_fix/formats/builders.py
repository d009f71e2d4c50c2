"""What the functions and classes that a pickle may name become: builders of our own (`allowed` says which for which).

Nothing of torch, numpy or Python is called for a file, and no builder keeps anything from one file to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ti_fix.errors import MALWARE, OTHER_KIND, UnreadableFile
from ti_fix.formats.stored import MAX_TENSOR_BYTES, StoredTensor

MAX_EXPANSION = 2**22
"""Elements that a tensor may have beyond those in its storage (stride 0 repeats a row)."""

MAX_DIMENSIONS = 8
MAX_ARGUMENTS = 16


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


@dataclass(frozen=True, slots=True, eq=False)
class Builder:
    """What stands for an allowed global; without a `__dict__`, so that no pickle can leave anything on it.

    Attributes:
        make: arguments of the call -> plain data, a `StoredTensor`, a `Storage` or a `Held`.
        dtype: the element type, where the global names one.
    """

    make: Callable[..., Any]
    dtype: torch.dtype | None = None


def call(builder: Any, arguments: Any) -> Any:
    """What a call in a pickle gives.

    Raises:
        UnreadableFile: what is called is no builder.
    """
    if not isinstance(builder, Builder) or not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
        raise UnreadableFile("unsafe-pickle", f"it calls something that is not allowed in an embedding; {MALWARE}")
    return builder.make(*arguments)


@dataclass(slots=True, eq=False)
class Held:
    """Stands for an object of a known class: its state is kept, its code never runs."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def __setitem__(self, key: Any, value: Any) -> None:  # SETITEMS on a dict-like class
        self.items[key] = value

    def plain(self) -> Any:
        """The data that the object would have held."""
        if self.kind == "ndarray":
            return _array_of_state(self.state)
        if self.kind == "scalar":
            return None
        parts = self.state if isinstance(self.state, dict) else {}
        parameters = parts.get("_parameters")
        content = {**(parameters if isinstance(parameters, dict) else {}), **self.items}
        return content or {k: v for k, v in parts.items() if not (isinstance(k, str) and k.startswith("_"))}


def held(kind: str) -> Callable[..., Held]:
    """A builder of objects of one kind."""
    return lambda *arguments: Held(kind=kind, arguments=arguments)


def key_of(value: Any) -> Any:
    """A value that may be the key of a dict. Python would follow a tuple of tuples for ever to hash it.

    Raises:
        UnreadableFile: it may not.
    """
    if type(value) in (str, bytes, bool, float, type(None)) or (type(value) is int and abs(value) < 2**63):
        return value
    raise UnreadableFile(
        "malformed", "it is damaged inside (odd names in its pickle), or made to harm; do not load it."
    )


def storage_dtype(kind: Any) -> torch.dtype | None:
    """The element type that a storage class or dtype named in a pickle stands for."""
    return kind.dtype if isinstance(kind, Builder) else None


# --- tensors ----------------------------------------------------------------------------------------------------------


def tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> StoredTensor:
    """torch._utils._rebuild_tensor_v2, with every number checked against the storage."""
    shape, stride = _counts(shape), _counts(stride)
    (offset,) = _counts((offset,))
    if not isinstance(storage, Storage) or len(shape) != len(stride):
        raise _wrong_tensor()
    numel = math.prod(shape)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if numel else 0
    if offset + span > storage.size:
        raise UnreadableFile("truncated", "truncated: a part of its vectors is missing; download it again.")
    if numel > storage.size + MAX_EXPANSION:
        raise UnreadableFile("too-large", f"it claims {list(shape)} numbers and holds {storage.size:,}; {OTHER_KIND}")

    def load() -> Tensor:
        if not numel:
            return torch.empty(shape, dtype=storage.dtype)
        if span * storage.dtype.itemsize > 2 * MAX_TENSOR_BYTES:  # few numbers, far apart
            raise UnreadableFile(
                "too-large", f"its vectors are strewn over more data than any embedding has; {OTHER_KIND}"
            )
        return torch.as_strided(storage.load(offset, span), shape, stride)

    return StoredTensor(shape=shape, dtype=storage.dtype, load=load)


def tensor_v3(storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, kind: Any, *_: Any) -> Any:
    """torch._utils._rebuild_tensor_v3: the type beside an untyped storage (float8 is stored so)."""
    dtype = storage_dtype(kind)
    if dtype is None or not isinstance(storage, Storage) or storage.dtype.itemsize != 1:
        raise _wrong_tensor()
    size, width = storage.size // dtype.itemsize, dtype.itemsize

    def load(start: int, count: int) -> Tensor:
        data = storage.load(start * width, count * width)
        return (data if data.storage_offset() % width == 0 else data.clone()).view(dtype)

    return tensor(Storage(dtype=dtype, size=size, load=load), offset, shape, stride)


def _counts(numbers: Any) -> tuple[int, ...]:
    """Lengths and places: a few whole numbers that are not negative."""
    if not isinstance(numbers, (tuple, list)) or len(numbers) > MAX_DIMENSIONS:
        raise _wrong_tensor()
    if not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
        raise _wrong_tensor()
    return tuple(numbers)


def _wrong_tensor() -> UnreadableFile:
    return UnreadableFile("malformed", "it is damaged inside (a tensor is described wrongly); download it again.")


# --- numpy ------------------------------------------------------------------------------------------------------------

_NUMPY = {"f2": torch.float16, "f4": torch.float32, "f8": torch.float64}


def numpy_dtype(name: Any, *_: Any) -> Held:
    """numpy.dtype: a name such as ``f4``."""
    return Held(kind="dtype", arguments=(name if isinstance(name, str) else "",))


def _array_of_state(state: Any) -> StoredTensor | None:
    """numpy.ndarray.__setstate__: (version, shape, dtype, fortran order, bytes)."""
    if not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, held, fortran, data = state
    return array(data, held, shape, "F" if fortran else "C")


def array(data: Any, held: Any, shape: Any, order: Any = "C", *_: Any) -> StoredTensor | None:
    """numpy.core.numeric._frombuffer; None for arrays of anything but floating-point numbers."""
    name = held.arguments[0].lstrip("<>=|") if isinstance(held, Held) and held.kind == "dtype" else ""
    if isinstance(data, str):  # bytes of Python 2
        data = data.encode("latin1", "replace")
    if name not in _NUMPY or not isinstance(data, bytes):
        return None
    shape, dtype, big = _counts(shape), _NUMPY[name], _is_big_endian(held)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise UnreadableFile("malformed", "it is damaged inside (an array is described wrongly); download it again.")
    if order == "F":
        shape = shape[::-1]

    def load() -> Tensor:
        values = numbers(data, dtype, swap=big).reshape(shape)
        return values.permute(*reversed(range(len(shape)))) if order == "F" else values

    return StoredTensor(shape=shape[::-1] if order == "F" else shape, dtype=dtype, load=load)


def _is_big_endian(held: Held) -> bool:
    """numpy.dtype.__setstate__: (version, byte order, …); the order can also stand in the name."""
    state = held.state
    return held.arguments[0][:1] == ">" or (isinstance(state, tuple) and len(state) > 1 and state[1] == ">")


def numbers(data: bytes, dtype: torch.dtype, *, swap: bool = False) -> Tensor:
    """The numbers in some bytes as a 1-D tensor.

    Args:
        data: a whole number of elements.
        dtype: of the elements.
        swap: whether they are stored with the most significant byte first.
    """
    if not data:
        return torch.empty(0, dtype=dtype)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return swapped(flat) if swap else flat


def swapped(flat: Tensor) -> Tensor:
    """A 1-D tensor with the bytes of each element in the opposite order."""
    if flat.dtype.itemsize == 1:
        return flat
    # Each part of a complex number has its own order.
    width = flat.dtype.itemsize // (2 if flat.dtype.is_complex else 1)
    return flat.view(torch.uint8).reshape(-1, width).flip(1).reshape(-1).view(flat.dtype)


# --- plain data -------------------------------------------------------------------------------------------------------


def first(value: Any = None, *_: Any) -> Any:
    """A wrapper (Parameter) around a tensor: the tensor."""
    return value


def mapping(pairs: Any = (), *_: Any) -> dict[Any, Any]:
    """A dict, or any of its children, from pairs."""
    if isinstance(pairs, dict):
        return dict(pairs)
    if not isinstance(pairs, (list, tuple)):
        return {}
    return {key_of(key): value for key, value in pairs}


def listed(items: Any = (), *_: Any) -> list[Any]:
    """A list, or a set, of which nothing is wanted but what is in it."""
    if isinstance(items, list):
        return items
    return list(items) if isinstance(items, tuple) else []


def raw(data: Any = b"", *_: Any) -> bytes:
    """Bytes or a bytearray, from bytes; a number or a list makes none."""
    return data if isinstance(data, bytes) else b""


def encoded(text: Any = "", *_: Any) -> bytes:
    """_codecs.encode(text, "latin1"): how protocol 2 stores bytes."""
    return text.encode("latin1", "replace") if isinstance(text, str) else b""


def device(*parts: Any) -> str:
    """torch.device: its name."""
    return ":".join(str(part) for part in parts if type(part) in (str, int) and part != "")[:40]
