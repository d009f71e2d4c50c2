"""The pages in a real browser, under the two releases of Gradio that the WebUIs have."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request

import pytest

import run
from tests.train.making import image
from tests.ui.browser.visit import chromium
from tests.ui.browser.ways import WAYS
from tests.ui.folders import fill, save, vectors

pytestmark = [pytest.mark.slow, pytest.mark.loopback, pytest.mark.timeout(1500)]

START = 600
"""Seconds that the program may take until its page is there."""

MORE = 30
"""Embeddings beside the named ones, so that lists of them scroll."""


@pytest.fixture(scope="module", params=list(run.GRADIO))
def python(request):
    path = run.python_path(run.gradio_folder(request.param))
    if not path.exists():
        pytest.skip(f"Gradio {request.param} is not installed; python3 run.py test installs it where a Chromium is")
    if chromium() is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium), or name one in TI_FIX_CHROMIUM")
    return str(path)


@pytest.fixture(scope="module")
def url(python, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("pages")
    left, right = vectors(1)
    fill(tmp_path / "embeddings")
    for number in range(MORE):
        save(tmp_path / "embeddings" / "more" / f"more{number}-xq.safetensors", {"clip_l": left, "clip_g": right})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "ti_fix", "ui", "--embeddings", str(tmp_path / "embeddings"), "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    with (tmp_path / "log").open("w") as log:
        program = subprocess.Popen(
            [*command, "--no-browser"], cwd=run.ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        until = time.monotonic() + START
        while "ti_fix is at" not in (said := (tmp_path / "log").read_text()):
            assert program.poll() is None and time.monotonic() < until, said
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/"
    finally:
        program.terminate()
        program.wait(30)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_browser_is_told_to_load_nothing_from_elsewhere(url):
    for part in ("", "config"):
        with urllib.request.urlopen(url + part) as answer:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy and "http" not in policy and "*" not in policy


@pytest.mark.parametrize("way", list(WAYS))
def test_every_page_works_and_looks_right(url, tmp_path, way):
    driver = str(run.python_path(run.gradio_folder(run.PAGES_GRADIO)))
    (tmp_path / "pictures").mkdir()
    for i in range(3):
        image(i, (128, 128)).save(tmp_path / "pictures" / f"{i}.png")
    command = [driver, "-m", "tests.ui.browser.drive", url, "--pictures", str(tmp_path / "pictures"), "--ways", way]
    command += ["--shots", str(tmp_path / "shots")]
    done = subprocess.run(command, check=False, cwd=run.ROOT, capture_output=True, text=True, timeout=1200)
    assert done.stdout.strip(), done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["faults"] == []
    assert result["did"]
