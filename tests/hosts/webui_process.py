"""A WebUI of one's own: started in a data folder that is thrown away, asked over HTTP, stopped."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = (
    "--skip-prepare-environment --skip-install --skip-version-check --skip-torch-cuda-test --no-download-sd-model "
    "--do-not-download-clip --disable-console-progressbars --api --server-name 127.0.0.1"
).split()

CONFIG = {
    "live_previews_enable": False,
    "samples_save": False,
    "grid_save": False,
    "auto_launch_browser": "Disable",
    "randn_source": "CPU",
}

ENVIRONMENT = {
    "SD_WEBUI_RESTARTING": "1",  # opens no browser
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
}


@dataclass(frozen=True)
class Installation:
    """An installed WebUI.

    Attributes:
        path: its folder, with launch.py.
        python: the Python that it runs with.
        models: folder of checkpoints.
        extensions: further extensions that it needs.
        flags: further command-line flags.
    """

    path: Path
    python: Path
    models: Path
    extensions: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A generated picture.

    Attributes:
        pixels: the colour values; texts in the file play no part.
        infotext: the generation parameters.
    """

    pixels: bytes
    infotext: str

    def differs(self, other: Picture) -> float:
        """Mean absolute difference in grey levels."""
        if len(self.pixels) != len(other.pixels):
            return 255.0
        return sum(abs(a - b) for a, b in zip(self.pixels, other.pixels, strict=True)) / len(self.pixels)


class Failed(Exception):
    """The WebUI did not start, or answered with an error."""


class Webui:
    """A running WebUI.

    Args:
        what: the installation.
        data: its data folder.
        checkpoint: file name of the model to start with.
        own: our extension's folder, None to leave it out.
    """

    def __init__(self, what: Installation, data: Path, checkpoint: str, own: Path | None) -> None:
        self.data = data
        self.log_path = data / "log.txt"
        self._prepare(what, checkpoint, own)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [str(what.python), "launch.py", *FLAGS, "--port", str(port), "--data-dir", str(data), *what.flags]
        self._log = self.log_path.open("wb")
        self._process = subprocess.Popen(
            command,
            cwd=what.path,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
        )

    def _prepare(self, what: Installation, checkpoint: str, own: Path | None) -> None:
        for folder in ("embeddings", "extensions", "models/Stable-diffusion", "models/Lora"):
            (self.data / folder).mkdir(parents=True, exist_ok=True)
        for model in what.models.iterdir():
            link(model, self.data / "models" / "Stable-diffusion" / model.name)
        for extension in what.extensions:
            link(extension, self.data / "extensions" / f"zz-{extension.name}")
        ours = self.data / "extensions" / "ti_fix"
        if own is not None:
            link(own, ours)
        elif ours.is_symlink():
            ours.unlink()
        config = {**CONFIG, "sd_model_checkpoint": checkpoint}
        (self.data / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def __enter__(self) -> Webui:  # noqa: PYI034 - Python 3.10 has no Self
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def wait(self, starts: int = 1, seconds: float = 600) -> None:
        """Until it has started (again); routes answer a little before it is ready.

        Raises:
            Failed: it ended, or took too long.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.log().count("Startup time") >= starts:
                with contextlib.suppress(Failed):
                    self.get("/sdapi/v1/sd-models")
                    return
            if self._process.poll() is not None:
                raise Failed(f"it ended while starting:\n{self.log()[-1500:]}")
            time.sleep(0.5)
        raise Failed(f"it did not start within {seconds:.0f} s")

    def log(self) -> str:
        """All that it has written to its console."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> Any:
        """A GET request; the answer's JSON."""
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path: str, body: object) -> Any:
        """A POST request; the answer's JSON."""
        head = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self.url + path, json.dumps(body).encode(), head))

    def _ask(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise Failed(f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}") from None
        except OSError as error:
            raise Failed(str(error)) from None

    def picture(self, prompt: str, **changes: object) -> Picture:
        """One small picture.

        Raises:
            Failed: the generation failed.
        """
        body = {"prompt": prompt, "seed": 1, "steps": 2, "width": 64, "height": 64, "cfg_scale": 4, **changes}
        answer = self.post("/sdapi/v1/txt2img", {"negative_prompt": "", "sampler_name": "Euler", **body})
        return Picture(pixels(base64.b64decode(answer["images"][0])), json.loads(answer["info"])["infotexts"][0])

    def options(self, **values: object) -> None:
        """Change settings."""
        self.post("/sdapi/v1/options", values)

    def loaded(self) -> set[str]:
        """Names in the list of usable embeddings."""
        return set(self.get("/sdapi/v1/embeddings")["loaded"])

    def components(self) -> dict[str, int]:
        """Element id -> number of each component of the page."""
        found = self.get("/config")["components"]
        return {c["props"]["elem_id"]: c["id"] for c in found if c.get("props", {}).get("elem_id")}

    def reload_page(self) -> None:
        """Press "Reload UI" and wait until the page is there again."""
        starts = self.log().count("Startup time")
        button = self.components()["settings_restart_gradio"]
        config = self.get("/config")
        for place, each in enumerate(config["dependencies"]):
            targets = [t[0] if isinstance(t, list) else t for t in each["targets"]]
            if button in targets:
                body = {"fn_index": each.get("id", place), "data": [], "session_hash": "check"}
                gradio_4 = not str(config.get("version", "3")).startswith("3")
                self.post("/queue/join" if gradio_4 else "/run/predict", body)
                break
        self.wait(starts + 1)


def link(target: Path, name: Path) -> None:
    """A link, or a copy where the system allows none."""
    if name.is_symlink() or name.exists():
        return
    try:
        name.symlink_to(target.resolve(), target_is_directory=target.is_dir())
    except OSError:
        (shutil.copytree if target.is_dir() else shutil.copy)(target, name)


def pixels(png: bytes) -> bytes:
    """The colour values of an 8-bit PNG, row by row (PNG specification, section 9: filters)."""
    at, packed, width, depth = 8, b"", 0, 3
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, depth = struct.unpack(">I", content[:4])[0], {2: 3, 6: 4}[content[9]]
        packed += content if kind == b"IDAT" else b""
        at += 12 + length
    data, stride = zlib.decompress(packed), width * depth
    above, out = bytes(stride), b""
    for start in range(0, len(data), stride + 1):
        above = _unfiltered(data[start], data[start + 1 : start + 1 + stride], above, depth)
        out += above
    return out


def _unfiltered(how: int, row: bytes, above: bytes, depth: int) -> bytes:
    line = bytearray(row)
    for i, value in enumerate(row):
        left, up = (line[i - depth], above[i - depth]) if i >= depth else (0, 0)
        over = above[i]
        guess = left + over - up
        nearest = min((left, over, up), key=lambda each: abs(guess - each))
        line[i] = (value + (0, left, over, (left + over) // 2, nearest)[how]) & 255
    return bytes(line)
