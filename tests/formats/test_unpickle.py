"""The pickle machine on honest data: what Python and numpy write, as they read it back."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ti_fix.errors import UnreadableFile
from ti_fix.formats.builders import Storage
from ti_fix.formats.stored import StoredTensor
from ti_fix.formats.unpickle import load_pickle

PROTOCOLS = [2, 3, 4, 5]


def no_storage(_: Any) -> Storage:
    raise AssertionError("the pickle has no storages")


def loaded(data: bytes) -> Any:
    return load_pickle(io.BytesIO(data), no_storage)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-9, 9), inner),
    max_leaves=30,
)


@given(plain, st.sampled_from(PROTOCOLS))
@settings(max_examples=300, deadline=None)
def test_plain_data_is_what_python_reads(content: Any, protocol: int) -> None:
    assert loaded(pickle.dumps(content, protocol=protocol)) == content


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kinds_of_tables_and_sets(protocol: int) -> None:
    ordered = OrderedDict([("a", 1), ("b", [2])])
    ordered.note = "attributes of a table are left out"  # type: ignore[attr-defined]
    content = {"o": ordered, "d": defaultdict(list, {"x": [1]}), "s": {3}, "f": frozenset({4}), "b": bytearray(b"xy")}
    assert loaded(pickle.dumps(content, protocol=protocol)) == {
        "o": {"a": 1, "b": [2]},
        "d": {"x": [1]},
        "s": [3],
        "f": [4],
        "b": b"xy",
    }


def test_shared_parts_and_circles_stay_as_they_are() -> None:
    shared = [1]
    circle: list[Any] = [shared, shared]
    circle.append(circle)
    read = loaded(pickle.dumps(circle))
    assert read[0] is read[1]
    assert read[2] is read


def test_the_stream_is_left_behind_the_pickle() -> None:
    stream = io.BytesIO(pickle.dumps([1, 2], protocol=4) + b"rest")
    load_pickle(stream, no_storage)
    assert stream.read() == b"rest"


ARRAYS = {
    "C order": np.arange(12, dtype="f4").reshape(3, 4),
    "Fortran order": np.asfortranarray(np.arange(12, dtype="f4").reshape(3, 4)),
    "Fortran order, 3-D": np.asfortranarray(np.arange(24, dtype="f8").reshape(2, 3, 4)),
    "big-endian": np.arange(12, dtype=">f4").reshape(3, 4),
    "big-endian, Fortran order": np.asfortranarray(np.arange(12, dtype=">f8").reshape(3, 4)),
    "half": np.arange(5, dtype="f2"),
    "double": np.arange(5, dtype="f8") / 3,
    "a view": np.arange(40, dtype="f4").reshape(4, 10)[::2, 1::3],
    "one number": np.array(2.5, dtype="f4"),
    "empty": np.zeros((0, 768), dtype="f4"),
    "not writable": np.broadcast_to(np.float32(3), (2, 3)),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", ARRAYS)
def test_numpy_arrays(how: str, protocol: int) -> None:
    array = ARRAYS[how]
    read = loaded(pickle.dumps({"a": array}, protocol=protocol))["a"]
    assert isinstance(read, StoredTensor)
    values = read.load()
    assert read.shape == tuple(values.shape) == array.shape
    assert values.dtype == read.dtype == torch.from_numpy(np.zeros(1, array.dtype.newbyteorder("="))).dtype
    assert values.tolist() == array.tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_data_that_is_no_vectors_is_passed_by(protocol: int) -> None:
    content = {"ids": np.arange(4), "words": np.array(["a", "b"]), "step": np.int64(5), "loss": np.float32(0.5), "n": 1}
    assert loaded(pickle.dumps(content, protocol=protocol)) == {
        "ids": None,
        "words": None,
        "step": None,
        "loss": None,
        "n": 1,
    }


def test_bytes_of_python_2_are_latin_1() -> None:
    assert loaded(b"\x80\x02}U\x02\xe9*K\x01s.") == {"é*": 1}


def test_a_cut_pickle_is_truncated_at_every_byte() -> None:
    data = pickle.dumps({"name": "hero", "numbers": [1.5, 2**40, b"bytes"]}, protocol=4)
    for end in range(2, len(data)):
        with pytest.raises(UnreadableFile) as caught:
            loaded(data[:end])
        assert caught.value.code == "truncated", end


@pytest.mark.parametrize("body", [b"Vtext\n", b"S'text'\n", b"F1.5\n", b"L5L\n", b"P5\n"])
def test_text_forms_of_protocol_0_are_refused(body: bytes) -> None:
    """torch never wrote them, and the first of them makes Python import a module (found by the fuzz)."""
    with pytest.raises(UnreadableFile) as caught:
        loaded(b"\x80\x02" + body + b".")
    assert caught.value.code == "unsafe-pickle"


def test_whole_numbers_of_python_2_are_read() -> None:
    """Its protocol 2 wrote those between 32 and 64 bits as text."""
    assert loaded(b"\x80\x02I5000000000\n.") == 5_000_000_000
