"""Mutated files by the ten thousand: each gets a verdict, and nothing else happens.

    python -m tests.formats.fuzz --inputs 50000 --seed 1

Watched over each input: exceptions, audit events (code, imports, programs, sockets, files opened for writing), the file
and its folder, processor time; over the run: peak memory. An input that fails is kept, with what went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

from tests.formats.honest_files import corpus
from tests.formats.mutations import mutated
from ti_fix.embedding import FAMILIES
from ti_fix.errors import UnreadableFile
from ti_fix.formats import extract, read
from ti_fix.repair import Judged, repair

MOST_SECONDS = 2.0
MOST_MEMORY = 400 * 2**20
VERDICTS = {"ignore", "reject", "convert", "warn", "repair", "load"}
ENDINGS = (".pt", ".bin", ".safetensors", ".png", ".webp", ".pti", ".ckpt", ".pt.corrupted")

_FORBIDDEN = frozenset(
    "exec compile import code.__new__ marshal.loads pickle.find_class ctypes.dlopen ctypes.dlsym subprocess.Popen "
    "os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.startfile os.rename os.remove os.mkdir os.rmdir "
    "os.truncate os.chmod os.chown os.link os.symlink os.utime shutil.move shutil.rmtree tempfile.mkstemp "
    "tempfile.mkdtemp socket.__new__ socket.connect socket.getaddrinfo urllib.Request".split()
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_listeners: list[list[str]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _listeners:
        return
    if event in _FORBIDDEN or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING):
        _listeners[0].append(f"{event} {str(arguments)[:200]}")


@contextmanager
def listening() -> Iterator[list[str]]:
    """The audit events that must not happen, while this is open."""
    happened: list[str] = []
    _listeners.append(happened)
    try:
        yield happened
    finally:
        _listeners.clear()


@dataclass(slots=True)
class Outcome:
    """What a run found."""

    seed: int
    inputs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    growth: int = 0
    seconds: float = 0.0


def run(inputs: int, seed: int, keep: Path, *, most_failures: int = 20) -> Outcome:
    """Mutate and read.

    Args:
        inputs: how many files.
        seed: of everything random.
        keep: folder into which failing files are copied.
        most_failures: after so many the run ends.
    """
    torch.set_num_threads(1)
    files = corpus()
    outcome = Outcome(seed)
    where = Path(tempfile.mkdtemp(prefix="ti_fix_fuzz_"))
    try:
        _warm(files, where)
        sys.addaudithook(_hook)
        before, start = _peak(), time.perf_counter()
        for number in range(inputs):
            random = Random(f"{seed} {number}")
            name, data = random.choice(files)
            data = mutated(random, data, random.choice(files)[1])
            ending = random.choice(ENDINGS) if random.random() < 0.3 else Path(name).suffix or ".pt"
            problem = check(where / f"hero7{ending}", data, random, outcome)
            if problem:
                kept = keep / f"{seed}-{number}{ending}"
                kept.write_bytes(data)
                outcome.failures.append(f"input {number} (from {name}), kept as {kept}: {problem}")
            if len(outcome.failures) >= most_failures:
                break
        outcome.growth, outcome.seconds = _peak() - before, time.perf_counter() - start
    finally:
        shutil.rmtree(where)
    if outcome.growth > MOST_MEMORY:
        outcome.failures.append(f"peak memory grew by {outcome.growth / 2**20:.0f} MB")
    return outcome


def check(path: Path, data: bytes, random: Random, outcome: Outcome) -> str:
    """Read and judge one file; what went wrong, empty if nothing did."""
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))
    family = random.choice(list(FAMILIES.values()))
    start = time.process_time()
    with listening() as happened:
        try:
            parsed = read(path)
            result = repair(parsed, family=family)
            shown = json.dumps(Judged(parsed=parsed, result=result).as_dict(), allow_nan=False)
            again = repair(result.after, family=family) if result.after else None
            _extracted(path, [f.code for f in parsed.findings])
        except Exception:  # noqa: BLE001 - any exception is what is looked for
            return traceback.format_exc()
    seconds = time.process_time() - start
    outcome.inputs += 1
    outcome.verdicts[result.verdict] += 1
    refusals = {f.code for f in result.findings if f.severity == "error"}
    outcome.codes.update(refusals)
    outcome.slowest = max(outcome.slowest, seconds)
    touched = path.read_bytes() != data or path.stat().st_mtime_ns != 10**18
    bad = [f.message for f in result.findings if not f.message.isprintable() or not 0 < len(f.message) < 600]
    twice = [f.code for f in again.findings] if again is not None and again.after is not result.after else []
    wrong = {
        f"audit events {happened[:5]}": happened,
        f"verdict {result.verdict}": result.verdict not in VERDICTS,
        "control characters in the report": not shown.isprintable() and "\x1b" in shown,
        "refused without a reason": result.verdict == "reject" and not refusals,
        f"message {bad[:1]}": bad,
        f"repairing twice changes more: {twice}": twice,
        f"it took {seconds:.1f} s": seconds > MOST_SECONDS,
        "the file was touched": touched,
        "its folder was touched": [p.name for p in path.parent.iterdir()] != [path.name],
    }
    path.unlink(missing_ok=True)
    return "; ".join(what for what, is_so in wrong.items() if is_so)


def _extracted(path: Path, codes: list[str]) -> None:
    if "several-embeddings" in codes or "lora" in codes:
        try:
            extract(path)
        except UnreadableFile:
            return


def _warm(files: list[tuple[str, bytes]], where: Path) -> None:
    """Read the files unspoiled, so that all that is imported late is imported now."""
    for name, data in files:
        path = where / f"warm{Path(name).suffix or '.pt'}"
        path.write_bytes(data)
        repair(read(path))
        path.unlink()


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def report(outcome: Outcome) -> str:
    verdicts = ", ".join(f"{name} {count}" for name, count in outcome.verdicts.most_common())
    codes = ", ".join(f"{name} {count}" for name, count in outcome.codes.most_common())
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0.0
    return "\n".join(
        (
            *outcome.failures,
            f"seed {outcome.seed}: {outcome.inputs} inputs, {rate:.0f} a second, {len(outcome.failures)} failures",
            f"verdicts: {verdicts}",
            f"errors: {codes}",
            f"slowest input {outcome.slowest:.2f} s, peak memory grew by {outcome.growth / 2**20:.0f} MB",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock")
    parser.add_argument("--keep", type=Path, default=None, help="folder for inputs that fail; default: a new one")
    flags = parser.parse_args()
    seed = int(time.time()) if flags.seed is None else flags.seed
    keep = flags.keep or Path(tempfile.mkdtemp(prefix="ti_fix_fuzz_kept_"))
    keep.mkdir(parents=True, exist_ok=True)
    outcome = run(flags.inputs, seed, keep)
    sys.stdout.write(report(outcome) + "\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
