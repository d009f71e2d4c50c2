"""A pickle machine that can build tensors and plain data, and nothing else.

Three walls. Only the instructions of plain data, calls and state are run (no class construction by name, no extension
registry). Each global that a pickle names is looked up in a fixed table of our own builders: nothing is imported and no
function of torch, numpy or Python is ever called by a file. And everything is paid for from a budget of memory: bytes
read, instructions, arguments of calls, elements of the result; a short pickle can otherwise copy one long list a
million times.

The pure-Python machine of the standard library is used on purpose: the C one allocates gigabytes when a thirty-byte
pickle asks for memo slot 2**31.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

from ti_fix.errors import MALWARE, OTHER_KIND, UnreadableFile
from ti_fix.formats.allowed import FROM_BYTES, FROM_TYPE, find
from ti_fix.formats.builders import Builder, Held, call, key_of

MAX_WORK = 64 * 2**20
"""Budget of one file, in bytes of memory, roughly. An SDXL checkpoint takes a quarter of it."""

_PER_STEP = 100
_MAX_LINE = 1024
_MAX_NESTING = 64
_FORBIDDEN = "INST OBJ NEWOBJ_EX EXT1 EXT2 EXT4 NEXT_BUFFER READONLY_BUFFER STRING UNICODE FLOAT LONG PERSID".split()
"""Classes by name, the registry, buffers elsewhere; and the text forms of protocol 0, which torch never wrote."""


class Budget:
    """What a file may still cost."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_WORK) -> None:
        self.left = left

    def spend(self, amount: int) -> None:
        """Pay for work before it is done.

        Raises:
            UnreadableFile: the file wants more than any embedding needs.
        """
        self.left -= amount
        if self.left < 0:
            raise UnreadableFile("too-large", f"it holds far more than any embedding (in its pickle); {OTHER_KIND}")


class _Paid:
    """A stream that pays for what is read of it, and asks for no more than it can pay."""

    __slots__ = ("_budget", "_stream")

    def __init__(self, stream: BinaryIO, budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, count: int) -> bytes:
        data = self._stream.read(min(count, self._budget.left + 1))
        self._budget.spend(len(data) + _PER_STEP)
        if len(data) < count:
            raise EOFError
        return data

    def readline(self) -> bytes:
        line = self._stream.readline(_MAX_LINE)
        self._budget.spend(len(line) + _PER_STEP)
        if not line.endswith(b"\n"):
            raise EOFError
        return line


class RestrictedUnpickler(pickle._Unpickler):
    """Reads one pickle from a stream; its arguments are those of `load_pickle`.

    Raises (from `load`):
        UnreadableFile: the pickle is damaged or names something that is not allowed.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    load: Callable[[], Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    stack: list[Any]

    def __init__(
        self,
        stream: _Paid,
        *,
        storage: Callable[[Any], Any],
        inner: Callable[[bytes], Any] | None,
        budget: Budget,
    ) -> None:
        super().__init__(stream, encoding="latin1")
        self._storage, self._inner, self._budget = storage, inner, budget

    def find_class(self, module: str, name: str) -> Builder:
        """One of our own builders, never the thing itself."""
        return find(module, name)

    def persistent_load(self, saved_id: Any) -> Any:
        return self._storage(saved_id)

    def _frame(self) -> None:
        self.read(8)  # frames only help reading ahead; without them each byte is paid for once

    def _bytearray(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(length))

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.append(self._call(self.stack.pop(), arguments))

    def _call(self, builder: Any, arguments: Any) -> Any:
        if isinstance(arguments, tuple):
            self._budget.spend(sum(map(_weight, arguments)))
        if builder is FROM_TYPE and isinstance(arguments, tuple) and len(arguments) >= 3:
            return self._call(arguments[0], arguments[2])
        if builder is FROM_BYTES and self._inner and isinstance(arguments, tuple) and len(arguments) == 1:
            return self._inner(arguments[0])
        return call(builder, arguments)

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Held):
            target.state = state
        elif not isinstance(target, dict) or not isinstance(state, dict):
            raise UnreadableFile(
                "malformed", "it is damaged inside (its pickle contradicts itself); download it again."
            )
        # Attributes that were set on an OrderedDict: nothing to read there.

    def _setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._table()[key_of(key)] = value

    def _setitems(self) -> None:
        items = self.pop_mark()
        table = self._table()
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[key_of(key)] = value

    def _table(self) -> Any:
        table = self.stack[-1]
        if not isinstance(table, (dict, Held)):
            raise UnreadableFile(
                "malformed", "it is damaged inside (its pickle contradicts itself); download it again."
            )
        return table

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append({key_of(key): value for key, value in zip(items[::2], items[1::2], strict=True)})

    def _empty_set(self) -> None:
        self.append([])  # nothing here asks whether something is in it, and a list need not hash its items

    def _additems(self) -> None:
        items = self.pop_mark()
        self.stack[-1].extend(items)

    def _frozenset(self) -> None:
        items = self.pop_mark()  # first: it changes where `append` leads
        self.append(items)

    def _refuse(self) -> None:
        raise UnreadableFile("unsafe-pickle", f"it uses a rare feature of pickles that can run code; {MALWARE}")


def _weight(value: Any) -> int:
    """What it costs at most to copy an argument."""
    if isinstance(value, (list, tuple, dict)):
        return _PER_STEP * len(value)
    return len(value) if isinstance(value, (str, bytes)) else 0


for _name, _run in {
    "FRAME": RestrictedUnpickler._frame,
    "BYTEARRAY8": RestrictedUnpickler._bytearray,
    "REDUCE": RestrictedUnpickler._reduce,
    "NEWOBJ": RestrictedUnpickler._reduce,
    "BUILD": RestrictedUnpickler._build,
    "SETITEM": RestrictedUnpickler._setitem,
    "SETITEMS": RestrictedUnpickler._setitems,
    "DICT": RestrictedUnpickler._dict,
    "EMPTY_SET": RestrictedUnpickler._empty_set,
    "ADDITEMS": RestrictedUnpickler._additems,
    "FROZENSET": RestrictedUnpickler._frozenset,
    **dict.fromkeys(_FORBIDDEN, RestrictedUnpickler._refuse),
}.items():
    RestrictedUnpickler.dispatch[getattr(pickle, _name)[0]] = _run


def load_pickle(
    stream: BinaryIO,
    storage: Callable[[Any], Any],
    *,
    inner: Callable[[bytes], Any] | None = None,
    budget: Budget | None = None,
) -> Any:
    """One pickle as plain data with `StoredTensor` leaves.

    Args:
        stream: positioned at the pickle; left behind it.
        storage: persistent id -> the `Storage` (or builder of a class) that it means.
        inner: bytes -> the storage of the legacy file in them; None where there cannot be one.
        budget: what the pickle may cost; a fresh one by default.

    Raises:
        UnreadableFile: damaged, unsafe or larger than an embedding.
    """
    budget = budget or Budget()
    machine = RestrictedUnpickler(_Paid(stream, budget), storage=storage, inner=inner, budget=budget)
    try:
        return _Opener(budget).open(machine.load())
    except UnreadableFile:
        raise
    except EOFError:
        raise UnreadableFile(
            "truncated", "truncated: it ends too early, as after an interrupted download; download it again."
        ) from None
    except (RecursionError, MemoryError, OverflowError):
        raise UnreadableFile("malformed", "it is built to fill the memory (by its pickle); do not load it.") from None
    except Exception as error:  # the machine raises whatever Python does on damaged instructions
        kind = type(error).__name__
        raise UnreadableFile("malformed", f"it is damaged inside (its pickle: {kind}); download it again.") from None


class _Opener:
    """Replaces held objects by their data. Each container is visited once, so shared parts cannot multiply."""

    def __init__(self, budget: Budget) -> None:
        self._done: dict[int, Any] = {}
        self._budget = budget

    def open(self, value: Any, depth: int = 0) -> Any:
        if not isinstance(value, (Held, dict, list, tuple)):
            return value
        if depth > _MAX_NESTING:
            raise UnreadableFile("malformed", "it is nested far too deep: damaged, or made to harm; do not load it.")
        known = self._done.get(id(value))
        if known is not None:
            return known[1]
        return self._open_container(value, depth + 1)

    def _open_container(self, value: Any, depth: int) -> Any:
        # The original is kept beside its result, so that its id stays taken while the file is open.
        if isinstance(value, tuple):
            self._budget.spend(_weight(value))
            result: Any = tuple(self.open(item, depth) for item in value)
            self._done[id(value)] = (value, result)
        elif isinstance(value, Held):
            self._done[id(value)] = (value, None)
            self._budget.spend(_weight(value.state) + _weight(value.items))
            result = self.open(value.plain(), depth)
            self._done[id(value)] = (value, result)
        else:
            result = value
            self._done[id(value)] = (value, value)
            self._budget.spend(_weight(value))
            for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                value[key] = self.open(item, depth)
        return result
