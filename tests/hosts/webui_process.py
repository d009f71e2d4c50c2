"""A WebUI of one's own: started in a data folder that is thrown away, stopped afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.webui_client import Client, Failed

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
        environment: further environment variables.
    """

    path: Path
    python: Path
    models: Path
    extensions: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Webui(Client):
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
        super().__init__(f"http://127.0.0.1:{port}")
        # Forge serves files of its data folder only, and so not the scripts of its own page where that lies elsewhere
        places = ["--port", str(port), "--data-dir", str(data), "--gradio-allowed-path", str(what.path)]
        command = [str(what.python), "launch.py", *FLAGS, *places, *what.flags]
        self._log = self.log_path.open("wb")
        self._process = subprocess.Popen(
            command,
            cwd=what.path,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT, **what.environment},
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
