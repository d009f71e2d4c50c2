"""What reading and checking a folder costs, as a ratio to the hosts' plain way in the same run.

The plain way is what A1111 does with a healthy file: read it for its sha256, open it, build the tensors. Ours reads,
recognises, checks and names the same files. Beside the figure: a folder of mixed files, and 10,000 files (time per file
must stay flat).

    .venv/bin/python benchmarks/load.py [--quick] [--json]
"""

from __future__ import annotations

import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

from harness import Figure, arguments, close, median_ratio, paired
from ti_fix.repair import scan

GOAL = 1.10
SEED = 20261130


def healthy(folder: Path, count: int) -> None:
    """SDXL files of 1 to 16 vectors in float16 and float32, as trainers write them."""
    random = torch.Generator().manual_seed(SEED)
    for i in range(count):
        rows, dtype = 1 + i % 16, (torch.float16, torch.float32)[i % 2]
        halves = {
            "clip_l": torch.randn(rows, 768, generator=random).mul(0.0134).to(dtype),
            "clip_g": torch.randn(rows, 1280, generator=random).mul(0.0163).to(dtype),
        }
        safetensors.torch.save_file(halves, folder / f"style{i:05d}x.safetensors")


def mixed(folder: Path, count: int) -> None:
    """Half healthy SDXL, the rest SD1.5 pickles and safetensors, other spellings, pictures and damaged files."""
    healthy(folder, count // 2)
    vectors = torch.randn(8, 768, generator=torch.Generator().manual_seed(SEED)).mul(0.0134)
    for i in range(count - count // 2):
        name = folder / f"other{i:05d}x"
        kind = i % 5
        if kind == 0:
            torch.save({"string_to_param": {"*": vectors}, "name": "x", "step": 5}, f"{name}.pt")
        elif kind == 1:
            safetensors.torch.save_file({"emb_params": vectors}, f"{name}.safetensors")
        elif kind == 2:
            halves = {"text_encoders_0": vectors, "text_encoders_1": torch.cat([vectors, vectors[:, :512]], 1)}
            safetensors.torch.save_file(halves, f"{name}.pti")
        elif kind == 3:
            torch.save({"<cat>": vectors[0], "<cat>_1": vectors[1]}, f"{name}.bin")
        else:
            Path(f"{name}.pt").write_bytes(b"<html><title>Log in</title></html>")


def plain(folder: Path) -> None:
    """The hosts' way with a healthy file."""
    for path in sorted(folder.iterdir()):
        hashlib.sha256(path.read_bytes()).hexdigest()
        halves = safetensors.torch.load_file(path)
        {key: block.detach().to(device="cpu", dtype=torch.float32) for key, block in halves.items()}


def ours(folder: Path) -> None:
    """Read, recognise, check and name."""
    scan([folder])


def seconds(work: Callable[[Path], None], folder: Path) -> float:
    start = time.perf_counter()
    work(folder)
    return time.perf_counter() - start


def per_file(make: Callable[[Path, int], None], count: int, repetitions: int) -> float:
    """Milliseconds a file, median of several runs."""
    folder = Path(tempfile.mkdtemp(prefix="ti_fix_load_"))
    try:
        make(folder, count)
        seconds(ours, folder)
        return 1000 * statistics.median(seconds(ours, folder) for _ in range(repetitions)) / count
    finally:
        shutil.rmtree(folder)


def main() -> None:
    flags = arguments(__doc__ or "")
    repetitions = 5 if flags.quick else 15
    folder = Path(tempfile.mkdtemp(prefix="ti_fix_load_"))
    try:
        healthy(folder, 1000)
        pairs = paired(lambda: seconds(ours, folder), lambda: seconds(plain, folder), repetitions)
    finally:
        shutil.rmtree(folder)
    ours_ms, plain_ms = (statistics.median(p[side] for p in pairs) for side in (0, 1))
    print(f"1,000 healthy files: ours {ours_ms:.3f} ms a file, the plain way {plain_ms:.3f} ms a file")
    print(f"1,000 mixed files:   ours {per_file(mixed, 1000, 3):.3f} ms a file")
    many = 3000 if flags.quick else 10000
    print(f"{many:,} healthy files: ours {per_file(healthy, many, 1 if flags.quick else 3):.3f} ms a file")
    close(
        Figure(
            name="load", figure=median_ratio(pairs), unit="times the plain way", better="lower", goal=GOAL, n=len(pairs)
        ),
        flags,
    )


if __name__ == "__main__":
    main()
