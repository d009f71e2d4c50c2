"""Small files that would unpack to gigabytes, each read in a process of its own whose peak memory is measured."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.formats import picture_maker as make
from ti_fix.formats.picture_headers import PNG_SIGNATURE

pytest.importorskip("resource", reason="peak memory is read in the Unix way")

MEGABYTES = 200
SECONDS = 8.0
"""What reading one picture may take at most; the time is generous, as test machines are busy."""

_KEYWORD = b"sd-ti-embedding\x00"

_READ_EACH = """
import os, resource, sys, time
from ti_fix.errors import UnreadableFile
from ti_fix.formats.pictures import read_picture
read_picture(open(sys.argv[1], "rb").read())
unit = 2**20 if sys.platform == "darwin" else 2**10
for path in sys.argv[2:]:
    if os.fork() == 0:
        data = open(path, "rb").read()
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        try:
            outcome = "silent" if read_picture(data) is None else "read"
        except UnreadableFile as error:
            outcome = error.code
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // unit
        print(os.path.basename(path), outcome, peak, time.monotonic() - start, flush=True)
        os._exit(0)
    os.wait()
"""


def _packed(size: int, start: bytes = b"") -> bytes:
    packer = zlib.compressobj(1)
    filling = (packer.compress(b" " * 2**20) for _ in range(size >> 20))
    return b"".join([packer.compress(start), *filling, packer.flush()])


def _png(width: int, height: int, idat: bytes, more: bytes = b"") -> bytes:
    ihdr = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    chunks = make.chunk(b"IHDR", ihdr) + more + make.chunk(b"IDAT", idat) + make.chunk(b"IEND", b"")
    return PNG_SIGNATURE + chunks


def _packed_text(text: bytes) -> bytes:
    return make.png_with_chunk(b"zTXt", make.text_chunk(text, b"zTXt"))


BOMBS = {
    "zTXt": ("too-large", lambda: make.png_with_chunk(b"zTXt", _KEYWORD + b"\x00" + _packed(220 * 2**20))),
    "iTXt": ("too-large", lambda: make.png_with_chunk(b"iTXt", _KEYWORD + b"\x01\x00\x00\x00" + _packed(220 * 2**20))),
    "pixels": ("too-large", lambda: make.saved(make.hide(make.photo(16, 512), _packed(220 * 2**20, b'{"a": 1')))),
    "most-values": ("read", lambda: _packed_text(b'{"a": {"TORCHTENSOR": [' + b"1.5," * 990_000 + b"1.5]}}")),
    "many-lists": ("too-large", lambda: _packed_text(b'{"a": [' + b"[]," * 3_000_000 + b"[]]}")),
    "long-name": ("read", lambda: _packed_text(b'{"a": "\xf0\x9f\x90\x88' + b"x" * 11_000_000 + b'"}')),
    "huge-picture": ("silent", lambda: _png(60_000, 60_000, _packed(64 * 2**20))),
    "largest-picture": ("silent", lambda: _png(2896, 2896, zlib.compress(bytes(2896 * (1 + 3 * 2896))))),
    "wide-picture": ("silent", lambda: _png(8_000_000, 1, zlib.compress(bytes(24_000_001)))),
    "many-chunks": ("silent", lambda: _png(64, 64, b"", make.chunk(b"tEXt", b"") * 2_000_000)),
    "many-pieces": ("silent", lambda: _png(64, 64, b"", make.chunk(b"IDAT", b"") * 2_000_000)),
    "foreign-text": ("silent", lambda: _png(64, 64, b"", make.chunk(b"zTXt", b"Comment\x00\x00" + _packed(2**26)))),
    "webp": ("silent", lambda: make.saved(np.zeros((4000, 4000, 3), np.uint8), "WEBP", lossless=True, method=0)),
}


def test_bombs_stay_within_memory_and_time(tmp_path: Path) -> None:
    for name, (_, data) in BOMBS.items():
        (tmp_path / name).write_bytes(data())
    (tmp_path / "warm-up").write_bytes(make.saved(make.pixels_with(make.a1111(make.vectors(1)))))
    paths = [str(tmp_path / name) for name in ("warm-up", *BOMBS)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _READ_EACH, *paths], env=environment, capture_output=True, text=True, check=True
    )
    seen = {
        name: (outcome, int(peak), float(took)) for name, outcome, peak, took in map(str.split, ran.stdout.splitlines())
    }
    assert {name: outcome for name, (outcome, _, _) in seen.items()} == {
        n: outcome for n, (outcome, _) in BOMBS.items()
    }
    assert {name: peak for name, (_, peak, _) in seen.items() if peak > MEGABYTES} == {}
    assert {name: took for name, (_, _, took) in seen.items() if took > SECONDS} == {}
