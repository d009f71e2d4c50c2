"""Train the small models from nothing: ``python -m ti_fix.small.build --work DIR``.

One command, resumable: every stage is a process of its own that checkpoints into ``DIR``; finished stages are
skipped, interrupted ones go on (SIGTERM lets them save first). At most two processes of one thread run at a time.
``--pack`` writes what is trained so far into the project (``ti_fix/small/packs``) without training. Needs, beside the
project's own dependencies: transformers, diffusers, resvg-py; npm and apt-get for the pictures (sources and licences:
docs/small-models.md).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ti_fix.small.training import report

MODULE = "ti_fix.small.training"
# stage -> (command after "python -m ti_fix.small.training.", stages that must be done first); in order of priority
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pictures": (("pictures",), ()),
    "tower-L": (("towers", "L"), ("pictures",)),
    "tower-G": (("towers", "G"), ("pictures",)),
    "vae": (("vae",), ()),
    "sdxl": (("diffusion", "sdxl"), ("tower-L", "tower-G")),
    "judge": (("judge",), ("vae",)),
    "clip": (("clip",), ()),
    "sdxl-twin": (("diffusion", "sdxl-twin"), ("sdxl",)),
    "sd15": (("diffusion", "sd15"), ("sdxl-shared",)),  # a mark that sdxl sets on its way
    "sdxl-v": (("diffusion", "sdxl-v"), ("sdxl",)),
}
PROCESSES = 2
# glibc would return and fault in every large tensor anew
ALLOCATOR = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000"}


def start(stage: str, work: Path) -> subprocess.Popen[bytes]:
    """Run one stage at the lowest priority, its output appended to ``work/STAGE.log``."""
    command = [sys.executable, "-m", f"{MODULE}.{STAGES[stage][0][0]}", *STAGES[stage][0][1:], "--work", str(work)]
    with (work / f"{stage}.log").open("ab") as log:
        return subprocess.Popen(
            ["nice", "-n", "19", *command], stdout=log, stderr=subprocess.STDOUT, env=os.environ | ALLOCATOR
        )


def build(work: Path, only: list[str] | None = None) -> None:
    """Run every stage that is not done yet (or those in ``only``), two at a time."""
    done_folder = work / "done"
    done_folder.mkdir(parents=True, exist_ok=True)
    wanted = [s for s in STAGES if only is None or s in only]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: set[str] = set()
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        for process in running.values():
            process.terminate()  # a stage saves and leaves

    signal.signal(signal.SIGTERM, stop)
    while True:
        ready = [] if stopping else ready_stages(wanted, {p.name for p in done_folder.iterdir()}, {*running, *failed})
        for stage in ready[: PROCESSES - len(running)]:
            running[stage] = start(stage, work)
            report("started", stage)
        if not running:
            break
        time.sleep(1)
        failed |= _ended(running, done_folder)
    if failed:
        raise SystemExit(f"failed: {', '.join(sorted(failed))}; see the logs in {work}")


def ready_stages(wanted: list[str], done: set[str], taken: set[str]) -> list[str]:
    """Those that are neither done nor taken, and for which all that they need is done."""
    return [s for s in wanted if s not in done and s not in taken and all(n in done for n in STAGES[s][1])]


def _ended(running: dict[str, subprocess.Popen[bytes]], done_folder: Path) -> set[str]:
    """Take out the stages that have ended and mark those that are done; gives those that failed."""
    failed = set()
    for stage, process in list(running.items()):
        if (code := process.poll()) is not None:
            del running[stage]
            if code == 0:
                (done_folder / stage).touch()
            else:
                failed.add(stage)
            report("finished" if code == 0 else f"FAILED ({code})", stage)
    return failed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for data, checkpoints and logs")
    parser.add_argument("--only", nargs="*", choices=tuple(STAGES), help="run only these stages")
    parser.add_argument("--pack", action="store_true", help="only write the packs from the checkpoints there are")
    parser.add_argument(
        "--from-packs", action="store_true", help="begin with what is packed, if DIR has nothing better"
    )
    args = parser.parse_args()
    if args.from_packs:
        from ti_fix.small.training.unpack import unpack

        unpack(args.work)
    if not args.pack:
        build(args.work, args.only)
    from ti_fix.small.training.pack import pack_all

    pack_all(args.work)


if __name__ == "__main__":
    main()
