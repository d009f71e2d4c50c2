"""For tests only: runs functions of the project's tests inside a WebUI that was started for them.

A WebUI executes this file where `tests/hosts/inside` is one of its extensions; nothing else does. The route answers on
this computer alone and only in the data folder of a test.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from modules import script_callbacks

ROOT = Path(__file__).resolve().parents[4]


def mount(_: object, app: FastAPI) -> None:
    """Add the route, where the tests asked for it."""
    if os.environ.get("TI_FIX_INSIDE") != "1":
        return

    async def run(request: Request) -> JSONResponse:
        asked = await request.json()
        return await run_in_threadpool(_run, asked)

    run.__annotations__ = {"request": Request, "return": JSONResponse}
    app.add_api_route("/ti_fix_inside/run", run, methods=["POST"], response_class=JSONResponse)


def _run(asked: dict) -> JSONResponse:
    for path in (str(ROOT), *filter(None, os.environ.get("TI_FIX_INSIDE_PACKAGES", "").split(os.pathsep))):
        if path not in sys.path:
            sys.path.append(path)  # at the end: the WebUI's own packages come first
    for name in asked.get("fresh", ()):
        sys.modules.pop(name, None)
    try:
        module = importlib.import_module(asked["module"])
        return JSONResponse({"result": getattr(module, asked["call"])(**asked.get("values", {}))})
    except BaseException:  # noqa: BLE001 - the test on the other side shows it
        return JSONResponse({"error": traceback.format_exc()})


script_callbacks.on_app_started(mount)
