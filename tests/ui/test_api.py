from __future__ import annotations

import base64
import io
import logging
import zipfile
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.ui.folders import STATES, StandIn, fill, save, save_lora, vectors
from ti_fix.ui import api, desk


@pytest.fixture
def root(tmp_path):
    return fill(tmp_path / "embeddings")


@pytest.fixture
def host(root, monkeypatch):
    monkeypatch.setattr(desk, "_desk", None)
    return StandIn(root)


@pytest.fixture
def app(host):
    app = FastAPI()
    api.mount(app, host)
    return app


@pytest.fixture
def client(app):
    return TestClient(app)


def files(client, **query):
    return client.get("/ti_fix/v1/files", params=query).json()["files"]


def id_of(client, trigger):
    return next(each["id"] for each in files(client) if each["trigger"] == trigger)


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_list(client):
    answer = client.get("/ti_fix/v1/files").json()
    assert {each["trigger"]: each["verdict"] for each in answer["files"]} == STATES
    assert (answer["family"], answer["total"], answer["left_out"]) == ("sdxl", 7, 0)
    swapped = next(each for each in answer["files"] if each["trigger"] == "swapped-xq")
    assert swapped["paths"] == ["sub/swapped-xq.safetensors"]
    assert swapped["prompt"] == "swapped-xq"


def test_list_narrowed(client, host):
    host.used = frozenset({"ready-xq"})
    assert [each["trigger"] for each in files(client, show="repair")] == ["my-toy", "swapped-xq"]
    assert [each["trigger"] for each in files(client, show="used")] == ["ready-xq"]
    assert [each["trigger"] for each in files(client, search="SUB/")] == ["swapped-xq"]
    assert client.get("/ti_fix/v1/files", params={"show": "all of it"}).status_code == 400


@pytest.mark.parametrize("query", [{"path": "sub/swapped-xq.safetensors"}, {"id": None}])
def test_inspect(client, query):
    query = {"id": id_of(client, "swapped-xq")} if "id" in query else query
    assert client.get("/ti_fix/v1/inspect", params=query).json()["trigger"] == "swapped-xq"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.safetensors",
        "{outside}/secret.safetensors",
        "sub/../../secret.safetensors",
        "sub\\..\\..\\secret.safetensors",
        "sub/swapped-xq.safetensors\x00",
        "%2e%2e/secret.safetensors",
        "linked-xq.safetensors",
        "folder/secret.safetensors",
        "nothing.safetensors",
    ],
)
def test_no_way_out_of_the_folders(client, root, tmp_path, path):
    secret = save(tmp_path / "secret.safetensors", dict(zip(("clip_g", "clip_l"), vectors(2), strict=True)))
    (root / "linked-xq.safetensors").symlink_to(secret)
    (root / "folder").symlink_to(tmp_path)
    path = path.format(outside=tmp_path)
    before = contents(tmp_path)
    assert client.get("/ti_fix/v1/inspect", params={"path": path}).status_code == 404
    assert client.post("/ti_fix/v1/repair", json={"path": path}).status_code == 404
    assert contents(tmp_path) == before
    answer = client.get("/ti_fix/v1/files").json()
    assert "secret" not in {each["trigger"] for each in answer["files"]}
    assert answer["left_out"] >= 2


def test_repair(client, host, root):
    answer = client.post("/ti_fix/v1/repair", json={"id": id_of(client, "swapped-xq")}).json()
    [result] = answer["results"]
    assert result["repaired"]
    assert result["written"] == ["sub/swapped-xq.safetensors"]
    assert result["kept"] == ["ti_fix_backup/sub/swapped-xq.safetensors.bak"]
    assert (root / result["kept"][0]).is_file()
    assert host.refreshed == 1
    assert {each["trigger"]: each["verdict"] for each in files(client)} == {**STATES, "swapped-xq": "load"}


def test_repair_of_several_says_what_failed(client, host):
    ids = [id_of(client, name) for name in ("ready-xq", "my-toy")]
    answer = client.post("/ti_fix/v1/repair", json={"ids": ids, "refresh": False}).json()
    assert [each["repaired"] for each in answer["results"]] == [False, True]
    assert "nothing to repair" in answer["results"][0]["error"]
    assert host.refreshed == 0


def test_embeddings_are_taken_out(client, host, root):
    save_lora(root / "lora-xq.safetensors")
    client.post("/ti_fix/v1/refresh")
    path = "lora-xq.safetensors"
    answer = client.post("/ti_fix/v1/extract", json={"path": path}).json()
    assert answer["written"] == ["hero-xq.safetensors"]
    assert (root / "hero-xq.safetensors").is_file() and (root / path).is_file()
    refused = client.post("/ti_fix/v1/extract", json={"id": id_of(client, "ready-xq")})
    assert refused.status_code == 400 and refused.json()["error"] == "nothing-inside"


def test_refresh(client, host, root):
    left, right = vectors(1)
    save(root / "new-xq.safetensors", {"clip_l": left, "clip_g": right})
    assert client.post("/ti_fix/v1/refresh").json()["total"] == 8
    assert host.refreshed == 1


@pytest.mark.parametrize(
    ("content", "kind", "status", "error"),
    [
        (b'{"id": "0123"}', "application/json", 404, "not-found"),
        (b"{}", "application/json", 400, "missing-value"),
        (b'{"id": 5}', "application/json", 400, "missing-value"),
        (b'{"ids": "all"}', "application/json", 400, "wrong-value"),
        (b'{"ids": [1]}', "application/json", 400, "wrong-value"),
        (b"[1]", "application/json", 400, "wrong-value"),
        (b"{", "application/json", 400, "not-json"),
        (b"\xff", "application/json", 400, "not-json"),
        (b"[" * 60_000, "application/json", 400, "not-json"),
        (b'{"id": "x"}', "text/plain", 415, "not-json"),
        (b'{"id": "x"}', "", 415, "not-json"),
        (b" " * (api.MAX_BODY + 1), "application/json", 413, "too-large"),
    ],
)
def test_wrong_requests_are_answered_in_words(client, content, kind, status, error):
    answer = client.post("/ti_fix/v1/repair", content=content, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert answer.json()["message"].endswith((".", ")"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (basic("ann", "wrong"), 401),
        (basic("ann", ""), 401),
        (basic("", "secret"), 401),
        ({"Authorization": "Basic"}, 401),
        ({"Authorization": "Basic \xe4\xf6"}, 401),
        ({"Authorization": "Bearer YW5uOnNlY3JldA=="}, 401),
        (basic("ann", "secret"), 200),
        (basic("bob", "pass:word"), 200),
    ],
)
@pytest.mark.parametrize("path", ["files", "inspect", "repair", "refresh"])
def test_passwords_of_the_host(client, host, headers, status, path):
    host.credentials = [("ann", "secret"), ("bob", "pass:word")]
    headers = {name: value.encode("latin-1") for name, value in headers.items()}
    send = client.get if path in ("files", "inspect") else client.post
    answer = send(f"/ti_fix/v1/{path}", headers=headers)
    assert (answer.status_code == 401) == (status == 401)
    assert (answer.headers.get("www-authenticate") == "Basic") == (status == 401)


@pytest.mark.parametrize(("cookie", "status"), [("given-out", 200), ("made-up", 401)])
def test_login_of_the_page(client, app, host, cookie, status):
    host.credentials = [("ann", "secret")]
    app.auth, app.tokens = {"ann": "secret"}, {"given-out": "ann"}
    client.cookies.set("access-token-x", cookie)
    assert client.get("/ti_fix/v1/files").status_code == status


def test_an_open_door_changes_nothing(client, host, root):
    id_ = id_of(client, "swapped-xq")
    host.is_exposed = True
    before = contents(root)
    for path in ("repair", "refresh"):
        answer = client.post(f"/ti_fix/v1/{path}", json={"id": id_})
        assert (answer.status_code, answer.json()["error"]) == (403, "exposed")
    assert contents(root) == before
    assert host.refreshed == 0
    assert client.get("/ti_fix/v1/files").status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"), [("http://testserver", 200), ("http://evil.example", 403), ("null", 403)]
)
def test_other_web_sites_change_nothing(client, origin, status):
    answer = client.post("/ti_fix/v1/refresh", headers={"Origin": origin})
    assert answer.status_code == status


def test_busy(client, app):
    with desk._desk.writing():
        answer = client.post("/ti_fix/v1/repair", json={"id": id_of(client, "swapped-xq")})
    assert (answer.status_code, answer.json()["error"]) == (409, "busy")


def test_a_fault_shows_no_trace(client, host, monkeypatch, caplog):
    monkeypatch.setattr(host, "used_in_last_image", lambda: 1 // 0)
    with caplog.at_level(logging.ERROR, "ti_fix"):
        answer = client.get("/ti_fix/v1/files")
    assert (answer.status_code, answer.json()["error"]) == (500, "fault")
    assert "ZeroDivision" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_names_that_utf8_cannot_hold(client, root):
    (root / "x-\udcff-q.safetensors").write_bytes((root / "ready-xq.safetensors").read_bytes())
    assert "x-\udcff-q" in {each["trigger"] for each in files(client)}


def test_mounting_again_adds_nothing(app, host):
    before = len(app.routes)
    api.mount(app, host)
    assert len(app.routes) == before


def test_it_is_described(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {path for path in paths if path.startswith("/ti_fix")} == {
        f"/ti_fix/v1/{name}"
        for name in (
            *(
                "convert",
                "evaluate",
                "evaluate/report",
                "evaluate/stop",
                "files",
                "inspect",
                "model",
                "refresh",
                "repair",
            ),
            *("evaluate/dataset", "extract", "source", "tokens"),
        )
    }
    assert all(about["summary"] for each in paths.values() for about in each.values())


def test_the_source_is_handed_out_as_it_runs(client, host):
    host.credentials = [("me", "secret")]
    answer = client.get("/ti_fix/v1/source")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        names = set(archive.namelist())
        assert archive.read("ti_fix/ti_fix/ui/api.py") == Path(api.__file__).read_bytes()
    assert {"ti_fix/LICENSE", "ti_fix/scripts/ti_fix_webui.py", "ti_fix/run.py"} <= names
    assert not [name for name in names if name.endswith((".pyc", ".safetensors"))]
