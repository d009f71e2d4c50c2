"""One start of a WebUI with the small real model: attention maps through the API, then everything in a browser."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.hosts import evaluate_files as files
from tests.hosts import page_check, tiny_checkpoints
from tests.hosts.evaluate_page_check import RUN, EvaluatePageCheck
from tests.hosts.maps_check import MapsCheck
from tests.hosts.table import Table
from tests.hosts.webui_process import Installation, Webui

HERE = Path(__file__).resolve().parent


def run(what: Installation, data: Path, shots: Path, table: Table, versions: dict[str, str]) -> None:
    """See the module.

    Args:
        what: the installation; its models are used if the small one is among them.
        data: a data folder of its own.
        shots: where pictures go.
        table: is continued.
        versions: is filled with what the WebUI says of itself.
    """
    shots.mkdir(parents=True, exist_ok=True)
    if not (what.models / files.MODEL).is_file():
        extensions = tiny_checkpoints.write_small(what.path, data / "small")
        what = replace(what, models=data / "small", extensions=tuple({*what.extensions, *extensions}))
    files.write_embedding(data / "embeddings" / f"{files.NAME}.safetensors", files.WORDS)
    judge, pictures = files.write_judge(data / "judge"), files.write_pictures(data / "pictures")
    inside = {**what.environment, "TI_FIX_INSIDE": "1"}
    what = replace(what, extensions=(*what.extensions, HERE / "inside"), environment=inside)
    with Webui(what, data, files.MODEL, HERE.parent.parent) as webui:
        versions.update(webui.versions())
        with page_check.opened(webui.url) as page:
            visit = EvaluatePageCheck(page, judge, pictures, shots, table)
            visit.first()
            MapsCheck(webui, shots, table).run()
            short_run(webui, data / "pictures", table)
            visit.then()


def short_run(webui: Webui, pictures: Path, table: Table) -> None:
    """A training run of a few steps, so that there are steps to compare."""
    asked = {
        "name": RUN, "folders": [str(pictures)], "resolution": 128, "steps": 8, "batch_size": 1, "vectors": 2,
        "start_text": "blue circle", "template": "a [name] on a white background",
        "checkpoint_every": 2, "preview_every": 0,
    }  # fmt: skip
    with table.row("a training run keeps the embeddings of its steps") as faults:
        webui.post("/ti_fix/v1/train", asked)
        end = time.monotonic() + 600
        while (status := webui.get("/ti_fix/v1/train"))["status"] in ("running", "stopping") and time.monotonic() < end:
            time.sleep(0.5)
        faults.unless(status["status"] == "done", f"{status['status']}: {status['message']}")
        kept = [run["kept"] for run in webui.get("/ti_fix/v1/train/runs")["runs"]]
        faults.unless(bool(kept) and len(kept[0]) > 1, f"kept: {kept}")
