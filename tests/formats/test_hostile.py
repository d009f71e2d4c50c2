"""Files made to harm: a clean finding, nothing run, little memory and time, nothing kept for the next file."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.formats import attacks, bombs
from ti_fix.embedding import Finding
from ti_fix.errors import UnreadableFile
from ti_fix.formats import Parsed, allowed, extract, files_in, read, source
from ti_fix.repair import repair, scan

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 5.0
MOST_MEMORY = 200 * 2**20


def judged(data: bytes, path: Path) -> Parsed:
    """Read and repair; any exception fails the test."""
    path.write_bytes(data)
    parsed = read(path)
    result = repair(parsed)
    assert all(0 < len(f.message) < 600 and f.message.isprintable() for f in result.findings)
    if parsed.embedding is None:
        assert [f.severity for f in parsed.findings].count("error") == 1
        assert result.verdict == "reject"
    return parsed


def error(parsed: Parsed) -> Finding:
    assert parsed.embedding is None
    (found,) = [f for f in parsed.findings if f.severity == "error"]
    return found


# --- code -------------------------------------------------------------------------------------------------------------

_WATCHED = (
    "exec",
    "compile",
    "import",
    "os.system",
    "os.mkdir",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
_listeners: list[list[str]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _listeners and (event in _WATCHED or (event == "open" and _writes(arguments))):
        _listeners[0].append(f"{event} {arguments!r:.200}")


def _writes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@pytest.fixture(scope="module", autouse=True)
def _hooked(tmp_path_factory: pytest.TempPathFactory) -> None:
    sys.addaudithook(_hook)  # stays, but only listens inside `watched`
    judged(bombs.honest_zip(), tmp_path_factory.mktemp("warm") / "warm.pt")  # what is imported late is imported now


@pytest.fixture
def watched() -> Iterator[list[str]]:
    happened: list[str] = []
    _listeners.append(happened)
    yield happened
    _listeners.clear()


WRAPPERS = {
    "bare pickle": lambda body: attacks.HEAD + body + b".",
    "zip": lambda body: attacks.zipped(attacks.HEAD + body + b"."),
    "legacy": lambda body: attacks.legacy(attacks.HEAD + body + b"."),
    "an inner storage": lambda body: (
        attacks.HEAD + attacks.call(attacks.BYTES, attacks.blob(attacks.HEAD + body + b".")) + b"."
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("how", attacks.code("x"))
def test_no_code_is_run(how: str, wrapper: str, tmp_path: Path, watched: list[str]) -> None:
    canary = tmp_path / "canary"
    data = WRAPPERS[wrapper](attacks.code(str(canary))[how])
    path = tmp_path / "hero.pt"
    path.write_bytes(data)
    before = len(watched)
    parsed = read(path)
    assert watched[before:] == []
    assert not canary.exists()
    assert error(parsed).code in ("unsafe-pickle", "malformed", "truncated")
    assert len(error(parsed).message) < 600
    assert error(parsed).message.isprintable()


def test_the_canary_sings_for_python_itself(tmp_path: Path) -> None:
    """What the attacks are worth: Python's own pickle runs them."""
    for how in ("os.system", "os.mkdir", "builtins.eval", "builtins.exec", "stack global", "inst", "obj"):
        canary = tmp_path / how.replace(" ", "-")
        pickle.loads(attacks.HEAD + attacks.code(str(canary))[how] + b".")
        assert canary.exists(), how


def test_nothing_is_left_behind_for_the_next_file(tmp_path: Path) -> None:
    def state() -> dict[tuple[str, str], tuple[int, object, object]]:
        return {name: (id(b), b.make, b.dtype) for name, b in allowed._ALLOWED.items()}

    before, dispatch = state(), dict(allowed.__dict__)
    good = judged(bombs.honest_zip(), tmp_path / "good.pt")
    for number, body in enumerate(attacks.code(str(tmp_path / "canary")).values()):
        judged(attacks.HEAD + body + b".", tmp_path / f"{number}.pt")
    for name in ("OrderedDict", "defaultdict"):
        left = f"ccollections\n{name}\n)R".encode() + attacks.text("left") + attacks.number(1) + b"s."
        judged(attacks.HEAD + left, tmp_path / "dict.pt")
        again = attacks.HEAD + f"ccollections\n{name}\n)R.".encode()
        assert error(judged(again, tmp_path / "dict.pt")).code == "no-vectors"
    assert state() == before
    assert dict(allowed.__dict__) == dispatch
    again = judged(bombs.honest_zip(), tmp_path / "good.pt")
    assert good.embedding is not None
    assert again.embedding is not None
    assert torch.equal(again.embedding.vectors["clip_l"], good.embedding.vectors["clip_l"])


def test_every_allowed_global_is_one_of_our_own() -> None:
    for builder in allowed._ALLOWED.values():
        assert builder.make.__module__.startswith("ti_fix.formats."), builder


# --- memory and time --------------------------------------------------------------------------------------------------

_READER = """
import json, resource, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from ti_fix.formats import read
from ti_fix.repair import repair

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024

read(sys.argv[1])
base, limit = status("VmRSS"), status("VmSize") + 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[2:]:
    Path("/proc/self/clear_refs").write_text("5")
    start = time.process_time()
    parsed = read(path)
    verdict = repair(parsed).verdict
    seconds, growth = time.process_time() - start, status("VmHWM") - base
    print(json.dumps([verdict, [f.message for f in parsed.findings], seconds, growth]), flush=True)
    del parsed
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is measured by way of Linux's /proc"
)
def test_bombs(tmp_path: Path) -> None:
    """Each in a process with 1 GB of address space: peak memory, processor time, and a clean verdict."""
    made = bombs.bombs()
    paths = []
    for number, data in enumerate(made.values()):
        path = tmp_path / f"{number}.{'safetensors' if data[8:9] == b'{' else 'pt'}"
        path.write_bytes(data)
        paths.append(path)
    healthy = tmp_path / "healthy.pt"
    healthy.write_bytes(bombs.honest_zip())
    done = subprocess.run(
        [sys.executable, "-c", _READER, healthy, *paths],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(made), (list(made)[len(results)], done.stderr[-2000:])
    for name, (verdict, messages, seconds, growth) in zip(made, results, strict=True):
        assert seconds < MOST_SECONDS, (name, seconds)
        assert growth < MOST_MEMORY, (name, growth)
        assert all(len(message) < 600 for message in messages), name
        assert verdict in ("reject", "convert"), name


def test_embeddings_without_end_are_not_all_taken_out(tmp_path: Path) -> None:
    """10,000 placeholders that all unfold one row: what `extract` would build has a bound."""
    rows = attacks.storage_id(768) + attacks.put(0) + b"0"
    unfolded = attacks.call(
        attacks.TENSOR,
        attacks.get(0),
        attacks.number(0),
        attacks.numbers(4000, 768),
        attacks.numbers(0, 1),
        b"\x89",
        attacks.ORDERED,
    )
    table = b"".join(attacks.text(f"<{chr(97 + i % 26)}{chr(97 + i // 26)}>") + unfolded for i in range(600))
    path = tmp_path / "many.pt"
    path.write_bytes(attacks.zipped(attacks.HEAD + rows + b"}(" + table + b"u.", {"0": bytes(3072)}))
    assert error(read(path)).code == "several-embeddings"
    with pytest.raises(UnreadableFile) as caught:
        extract(path)
    assert caught.value.code == "too-large"


# --- lies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", bombs.zip_lies())
def test_zips_that_contradict_themselves(how: str, tmp_path: Path) -> None:
    assert error(judged(bombs.zip_lies()[how], tmp_path / "hero.pt")).code in (
        "truncated",
        "foreign-zip",
        "no-vectors",
    )


CUT = {
    "zip": bombs.honest_zip(),
    "legacy": attacks.legacy(attacks.tensor_pickle((1, 768), (768, 1)), ("0", 768, bytes(3072))),
    "pickle": pickle.dumps({"<cat>": torch.ones(768)}, protocol=4),
    "safetensors": safetensors.torch.save({"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)}),
}


@pytest.mark.parametrize("form", CUT)
def test_cut_off_at_any_byte(form: str, tmp_path: Path) -> None:
    data, path = CUT[form], tmp_path / "hero.pt"
    assert judged(data, path).embedding is not None
    ends = [*range(min(900, len(data))), *range(900, len(data) - 900, 97), *range(max(900, len(data) - 900), len(data))]
    for end in ends:
        assert error(judged(data[:end], path)).code in ("truncated", "empty", "damaged", "plain-text", "malformed"), end


@pytest.mark.parametrize("form", CUT)
def test_a_file_that_shrinks_while_it_is_read(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are read in parts; the end may be gone when its turn comes."""
    monkeypatch.setattr(source, "READ_WHOLE", 100)
    path = tmp_path / "hero.pt"
    path.write_bytes(CUT[form])
    opened = source.Source.open

    def shrinking(self: source.Source) -> object:
        os.truncate(path, max(0, path.stat().st_size - 1000))
        return opened(self)

    monkeypatch.setattr(source.Source, "open", shrinking)
    assert error(read(path)).code in ("truncated", "malformed")


# --- what is no file --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    assert error(read(tmp_path / "pipe.pt")).code == "unreadable"
    with pytest.raises(UnreadableFile):  # even if it became one after it was looked at
        source.Source(tmp_path / "pipe.pt")


def test_folders_devices_and_links(tmp_path: Path) -> None:
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "circle.pt").symlink_to(tmp_path / "circle.pt")
    (tmp_path / "nowhere.pt").symlink_to(tmp_path / "gone")
    (tmp_path / "zero.pt").symlink_to("/dev/zero")
    (tmp_path / "hero7.pt").write_bytes(bombs.honest_zip())
    for name in ("folder.pt", "circle.pt", "nowhere.pt", "zero.pt", "missing.pt", "nul\0.pt", "x" * 300 + ".pt"):
        assert error(read(tmp_path / name)).code == "unreadable"
    found = [path.name for path in files_in(tmp_path)]
    assert found == ["circle.pt", "hero7.pt", "nowhere.pt", "zero.pt"]
    verdicts = {j.trigger: j.result.verdict for j in scan([tmp_path])}
    assert verdicts == {"circle": "reject", "hero7": "convert", "nowhere": "reject", "zero": "reject"}


def test_a_folder_that_links_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "sub" / "good.pt").write_bytes(bombs.honest_zip())
    assert [path.name for path in files_in(tmp_path)] == ["good.pt"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.pt"
    path.write_bytes(bombs.honest_zip())
    path.chmod(0)
    assert "ermission" in error(read(path)).message
