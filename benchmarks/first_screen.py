"""How long ``ti-fix ui`` takes until its page is there, by the clock and in processor time.

.venv-gradio-4.40.0/bin/python benchmarks/first_screen.py [--runs N]     (Linux; after `python3 run.py ui`)
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
FIELDS = (13, 14)
"""Processor time in ``/proc/PID/stat``, in the program and in the system, in ticks."""


def once() -> tuple[float, float]:
    """Seconds by the clock and of the processor until the page has been handed out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ti_fix", "ui", "--embeddings", folder, "--port", str(port), "--no-browser"]
        started = time.monotonic()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as program:
            try:
                assert program.stderr is not None
                while "ti_fix is at" not in (line := program.stderr.readline()):
                    assert line, "it ended before its page was there"
                with urlopen(f"http://127.0.0.1:{port}/") as page:
                    assert b"ti_fix_files" in page.read()
                wall = time.monotonic() - started
                stat = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
                ticks = sum(int(stat[place - 2]) for place in FIELDS)
            finally:
                program.kill()
    return wall, ticks / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = [once() for _ in range(parser.parse_args().runs)]
    for name, values in zip(("by the clock", "of the processor"), zip(*runs, strict=True), strict=True):
        each = ", ".join(f"{value:.1f}" for value in values)
        print(f"seconds {name}: {each}; median {statistics.median(values):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
