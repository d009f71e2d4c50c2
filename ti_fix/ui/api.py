"""Routes under ``/ti_fix/v1``: list, inspect, repair, refresh, convert and the model, as JSON; the source as a zip.

Routes of an extension escape the host's own password check, so each asks for one itself: HTTP basic with a pair of the
host's, or the cookie of its login page. Nobody hands in a path: an embedding is named by the id that the list gave it,
or by its file's name as the list spells it. Plain `Request` objects and no models of pydantic, as the hosts ship its
versions 1 and 2.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from ti_fix import __version__
from ti_fix.errors import TiFixError
from ti_fix.jobs import Busy
from ti_fix.ui import evaluate_api, model_state
from ti_fix.ui.desk import Desk, desk_of
from ti_fix.ui.files_details import prompt_text
from ti_fix.ui.files_table import CHOICES, filtered, found
from ti_fix.ui.host import PageHost
from ti_fix.ui.library import Entry
from ti_fix.ui.source import zipped

PREFIX = "/ti_fix/v1"
MAX_BODY = 64 * 1024
"""Bytes of a request; a thousand ids take 20 kB."""

MAX_AT_ONCE = 1000
"""Embeddings repaired by one request."""

Values = Mapping[str, Any]
Work = Callable[[Desk, Values], dict[str, Any]]


class Refused(TiFixError):
    """A request that is not answered; `status` is the HTTP status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def mount(app: FastAPI, host: PageHost) -> None:
    """Add the routes to a host's app; those of an earlier call on the same app stay as they are."""
    if any(str(getattr(route, "path", "")).startswith(PREFIX) for route in app.routes):
        return
    from ti_fix.ui.convert_api import convert_files  # both need what is defined here
    from ti_fix.ui.extract_api import extract_files

    desk = desk_of(host)
    for path, method, work in (
        ("files", "GET", list_files),
        ("inspect", "GET", inspect_file),
        ("repair", "POST", repair_files),
        ("refresh", "POST", refresh),
        ("extract", "POST", extract_files),
        ("convert", "POST", convert_files),
        ("model", "GET", show_model),
        ("tokens", "POST", show_tokens),
        *evaluate_api.ROUTES,
    ):
        add_route(app, desk, path, method, work)
    app.add_api_route(f"{PREFIX}/source", _source, methods=["GET"], tags=["ti_fix"], response_class=Response)


def add_route(app: FastAPI, desk: Desk, path: str, method: str, work: Work) -> None:
    """Add one route with the password check of all, and for what changes something the refusal of strangers."""
    app.add_api_route(
        f"{PREFIX}/{path}",
        _endpoint(desk, app, work, body=method == "POST", writes=method == "POST" and work not in READING),
        methods=[method],
        tags=["ti_fix"],
        summary=(work.__doc__ or "").partition("\n")[0],
        response_class=Response,
    )


def _source() -> Response:
    """The program as it runs here; open to all who reach it, as the licence wants."""
    return Response(
        zipped(), media_type="application/zip", headers={"Content-Disposition": "attachment; filename=ti_fix.zip"}
    )


def list_files(desk: Desk, values: Values) -> dict[str, Any]:
    """Every embedding with its verdict; ``show`` (a verdict, all or used) and ``search`` narrow it down."""
    show = values.get("show", "all")
    if show not in CHOICES:
        raise Refused(400, "wrong-value", f"show is {show!r}; choose one of: {', '.join(CHOICES)}.")
    confined, left_out = confined_entries(desk)
    used = desk.host.used_in_last_image()
    listed = filtered(found(confined, str(values.get("search", ""))), show, used)
    return {
        "family": desk.library.family.name,
        "total": len(confined),
        "left_out": left_out,
        "files": [_about(entry) for entry in listed],
    }


def inspect_file(desk: Desk, values: Values) -> dict[str, Any]:
    """One embedding, by ``id`` or by ``path`` as the list spells it."""
    confined, _ = confined_entries(desk)
    return _about(_named(confined, values))


def repair_files(desk: Desk, values: Values) -> dict[str, Any]:
    """Repair on disk, by ``id``, ``path`` or a list of ``ids``; the originals are kept.

    ``refresh`` (true) makes the result usable in the next prompt.
    """
    confined, _ = confined_entries(desk)
    entries = wanted(confined, values)
    with desk.writing():
        results = [_repaired(desk, entry) for entry in entries]
    desk.library.refreshed()
    if values.get("refresh", True) and any(each["repaired"] for each in results):
        desk.host.refresh_embeddings()
    return {"results": results}


def _repaired(desk: Desk, entry: Entry) -> dict[str, Any]:
    try:
        done = desk.repair(entry)
    except TiFixError as error:
        return {"id": entry.id, "repaired": False, "error": str(error)}
    written = [path.relative_to(entry.root).as_posix() for path, _ in done.written]
    kept = [place.relative_to(entry.root).as_posix() for _, place in done.kept]
    return {"id": entry.id, "repaired": True, "written": written, "kept": kept}


def refresh(desk: Desk, values: Values) -> dict[str, Any]:  # noqa: ARG001 - all routes are called alike
    """Read the folders again and make new files usable in the next prompt."""
    entries = desk.library.refreshed()
    desk.host.refresh_embeddings()
    return {"total": len(entries)}


def show_model(desk: Desk, values: Values) -> dict[str, Any]:
    """The loaded model's tokenizers and text encoders; ``full=1`` also reads whole tables and runs the encoders."""
    found = model_state.report(desk, full=str(values.get("full", "")) in ("1", "true"))
    return {"loaded": found is not None, "environment": dict(model_state.environment(desk)), **(found or {})}


def show_tokens(desk: Desk, values: Values) -> dict[str, Any]:
    """A ``prompt`` taken apart as the encoders get it; ``steps`` (20) for prompt editing."""
    prompt, steps = values.get("prompt"), values.get("steps", 20)
    if not isinstance(prompt, str) or not isinstance(steps, int):
        raise Refused(400, "wrong-value", 'Send {"prompt": "…", "steps": 20}: a text and a whole number.')
    return model_state.tokens(desk, prompt, steps).as_dict()


READING = (show_tokens,)
"""Routes that take a body and change nothing."""


def confined_entries(desk: Desk) -> tuple[list[Entry], int]:
    """What really lies inside the folders, and how much does not and is left out."""
    entries = desk.library.refreshed()
    confined = [entry for entry in entries if entry.confined]
    return confined, len(entries) - len(confined)


def _about(entry: Entry) -> dict[str, Any]:
    return {**entry.as_dict(), "prompt": prompt_text(entry) or None}


def wanted(entries: Sequence[Entry], values: Values) -> list[Entry]:
    """The entries that a request names by ``id``, ``path`` or ``ids``.

    Raises:
        Refused: it names none, or one that is not there.
    """
    ids = values.get("ids")
    if ids is None:
        return [_named(entries, values)]
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids) or len(ids) > MAX_AT_ONCE:
        raise Refused(400, "wrong-value", f"ids must be a list of at most {MAX_AT_ONCE} ids of the list.")
    return [_named(entries, {"id": each}) for each in dict.fromkeys(ids)]


def _named(entries: Sequence[Entry], values: Values) -> Entry:
    id_, path = values.get("id"), values.get("path")
    if not (isinstance(id_, str) and id_) and not (isinstance(path, str) and path):
        raise Refused(400, "missing-value", f"Name an embedding by id or path, as {PREFIX}/files lists them.")
    for entry in entries:
        if entry.id == id_ or (id_ is None and path in entry.where):
            return entry
    raise Refused(404, "not-found", f"The embeddings folders have no such embedding; {PREFIX}/files lists them all.")


def _endpoint(desk: Desk, app: FastAPI, work: Work, *, body: bool, writes: bool) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            _let_in(desk.host, app, request)
            if writes:
                _let_write(desk.host, request)
            values = await _body(request) if body else dict(request.query_params)
            return _json(200, await run_in_threadpool(work, desk, values))
        except Refused as error:
            headers = {"WWW-Authenticate": "Basic"} if error.status == 401 else {}
            return _json(error.status, {"error": error.code, "message": str(error)}, headers)
        except Busy as error:
            return _json(409, {"error": "busy", "message": str(error)})
        except TiFixError as error:
            return _json(400, {"error": "refused", "message": str(error)})
        except Exception:
            logging.getLogger("ti_fix").exception("the API failed")
            message = "A fault in ti_fix; the console of the WebUI shows where. Please report those lines."
            return _json(500, {"error": "fault", "message": message})

    answer.__annotations__ = {"request": Request, "return": Response}  # FastAPI cannot look up text inside a closure
    return answer


def _let_in(host: PageHost, app: FastAPI, request: Request) -> None:
    """Ask for the host's password, if it has one."""
    pairs = host.api_credentials()
    if pairs and not _basic(pairs, request) and not _logged_in(app, request):
        raise Refused(401, "no-password", "Give a name and password of the WebUI (HTTP basic authentication).")


def _basic(pairs: Sequence[tuple[str, str]], request: Request) -> bool:
    kind, _, coded = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return False
    try:
        given = base64.b64decode(coded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return False
    matches = [hmac.compare_digest(f"{user}:{password}".encode(), given) for user, password in pairs]
    return any(matches)  # all compared first, so that the time says nothing about which


def _logged_in(app: FastAPI, request: Request) -> bool:
    """Whether the browser has logged in to the page: Gradio keeps the tokens that it gave out in `app.tokens`."""
    tokens = getattr(app, "tokens", None)
    if not getattr(app, "auth", None) or not isinstance(tokens, dict):
        return False
    given = [value for name, value in request.cookies.items() if name.startswith("access-token")]
    return any(hmac.compare_digest(str(token).encode(), value.encode()) for token in tokens for value in given)


def _let_write(host: PageHost, request: Request) -> None:
    """Refuse what an open door or another web site must not do."""
    if host.exposed():
        raise Refused(
            403,
            "exposed",
            "The WebUI can be reached by other computers without a password, so this route changes nothing. "
            "Start it with --api-auth NAME:PASSWORD, or without --listen and --share.",
        )
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        raise Refused(
            403, "other-site", "The request comes from another web site; call it from the WebUI's own address."
        )


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; an empty one where there is no body."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise Refused(413, "too-large", f"The request is larger than {MAX_BODY} bytes; send fewer ids at a time.")
    if not data:
        values: object = {}
    elif request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "not-json", "Send JSON, with the header Content-Type: application/json.")
    else:
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            raise Refused(400, "not-json", "The body is no valid JSON.") from None
    if not isinstance(values, dict):
        raise Refused(400, "wrong-value", 'The body must be a JSON object, for example {"id": "…"}.')
    return values


def _json(status: int, content: Values, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII, as file names may hold what UTF-8 cannot."""
    text = json.dumps({"version": __version__, **content}, allow_nan=False)
    return Response(text, status_code=status, media_type="application/json", headers=dict(headers or {}))
