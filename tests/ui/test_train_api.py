"""The routes of training over a host that is a standalone model."""

from __future__ import annotations

import json
import threading
import time

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from tests.hosts.tiny_models import tiny_sdxl
from tests.ui.folders import StandIn, widened
from ti_fix.formats import read
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel
from ti_fix.ui import api, desk, train_api

ASKED = {"name": "zqxl", "start_text": "red tower", "resolution": 64, "steps": 3, "batch_size": 1, "vectors": 2,
         "validate_every": 2, "validation_timesteps": 2, "self_test": False, "learning_rate": "0.05"}  # fmt: skip


class Trainer(StandaloneHost):
    """Stops where the test says so."""

    pressed = False
    gate: threading.Event | None = None

    def interrupted(self):
        if self.gate is not None:
            self.gate.wait(60)
        return self.pressed


@pytest.fixture(scope="module")
def model():
    """Widths of 64, so files are not usable elsewhere; the routes do not care."""
    return StandaloneModel(tiny_sdxl())


@pytest.fixture
def host(tmp_path, monkeypatch, model):
    monkeypatch.setattr(desk, "_desk", None)
    (tmp_path / "embeddings").mkdir()
    found = StandIn(tmp_path / "embeddings")
    found.trainer = Trainer(model)
    found.publish = widened
    found.trainer.refresh_embeddings = found.refresh_embeddings
    return found


@pytest.fixture
def client(host):
    app = FastAPI()
    api.mount(app, host)
    train_api.mount(app, host)
    train_api.mount(app, host)
    return TestClient(app)


@pytest.fixture
def asked(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, colour in enumerate(("red", "blue")):
        Image.new("RGB", (64, 64), colour).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("a zqxl, a zqxm")
    return {**ASKED, "folders": [str(folder)]}


def ended(client):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        status = client.get("/ti_fix/v1/train").json()
        if status["status"] not in ("running", "stopping"):
            return status
        time.sleep(0.05)
    raise AssertionError(f"still {status}")


def test_a_run_from_its_start_to_the_list_of_runs(client, host, asked, tmp_path):
    assert client.get("/ti_fix/v1/train").json()["status"] == "idle"
    started = client.post("/ti_fix/v1/train", json=asked).json()
    assert started["status"] == "running" and started["number"] == 1
    status = ended(client)
    assert (status["status"], status["step"], status["steps"], status["message"]) == ("done", 3, 3, "")
    answer = client.get("/ti_fix/v1/train/events").json()
    kinds = [each["event"] for each in answer["events"]]
    assert kinds.count("step") == 3 and kinds[-1] == "done"
    assert answer["events"][-1]["path"] == "zqxl.safetensors" or answer["events"][-1]["path"].endswith(
        "zqxl.safetensors"
    )
    rest = client.get("/ti_fix/v1/train/events", params={"after": answer["next"]}).json()
    assert rest["events"] == [] and rest["next"] == answer["next"]
    written = read(tmp_path / "embeddings" / "zqxl.safetensors").embedding
    assert written is not None and written.num_vectors == 2
    assert [p.name for p in (tmp_path / "embeddings").iterdir()] == ["zqxl.safetensors"], (
        "nothing that becomes a trigger"
    )
    assert host.refreshed == 1
    (run,) = client.get("/ti_fix/v1/train/runs").json()["runs"]
    assert (run["name"], run["step"], run["steps"], run["result"]) == ("zqxl", 3, 3, "zqxl.safetensors")
    assert "folders" not in run["config"] and run["config"]["start_text"] == "red tower"


def test_a_second_start_is_refused_and_stop_keeps_what_was_learned(client, host, asked, tmp_path):
    host.trainer.gate = threading.Event()
    client.post("/ti_fix/v1/train", json={**asked, "steps": 5000})
    again = client.post("/ti_fix/v1/train", json={**asked, "name": "zqxm"})
    assert again.status_code == 409 and "still running" in again.json()["message"]
    host.trainer.gate.set()
    while client.get("/ti_fix/v1/train").json()["step"] < 2:
        time.sleep(0.02)
    client.post("/ti_fix/v1/train/stop", json={})
    status = ended(client)
    assert status["status"] == "stopped" and 2 <= status["step"] < 5000
    assert (tmp_path / "embeddings" / "zqxl.safetensors").exists()
    going_on = {**asked, "steps": status["step"] + 1, "resume": True}
    client.post("/ti_fix/v1/train", json=going_on)
    assert ended(client)["status"] == "done"
    steps = [e["step"] for e in client.get("/ti_fix/v1/train/events").json()["events"] if e["event"] == "step"]
    assert steps == [status["step"] + 1]


def test_the_hosts_interrupt_ends_a_run(client, host, asked):
    host.trainer.gate = threading.Event()
    client.post("/ti_fix/v1/train", json={**asked, "steps": 5000})
    host.trainer.gate.set()
    while client.get("/ti_fix/v1/train").json()["step"] < 1:
        time.sleep(0.02)
    host.trainer.pressed = True
    assert ended(client)["status"] == "stopped"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "Name is empty"),
        ({"out": "/tmp"}, "out cannot be set"),
        ({"cache_folder": "/tmp"}, "cache_folder cannot be set"),
        ({"stepz": 3}, "stepz"),
        ({"steps": "many"}, "steps"),
        ({"steps": 0}, "Steps"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(client, asked, changes, said):
    answer = client.post("/ti_fix/v1/train", json={**asked, **changes})
    assert answer.status_code == 400 and said in answer.json()["message"]
    assert client.get("/ti_fix/v1/train").json()["status"] == "idle"


def test_a_name_that_is_taken_is_refused(client, asked, tmp_path):
    (tmp_path / "embeddings" / "zqxl.safetensors").write_bytes(b"of somebody")
    answer = client.post("/ti_fix/v1/train", json=asked)
    assert answer.status_code == 400 and "exists already" in answer.json()["message"]
    assert (tmp_path / "embeddings" / "zqxl.safetensors").read_bytes() == b"of somebody"


def test_a_run_that_cannot_work_says_why(client, asked, tmp_path):
    answer = client.post("/ti_fix/v1/train", json={**asked, "folders": [str(tmp_path / "nowhere")]})
    assert answer.status_code == 400 and "nowhere" in answer.json()["message"]
    (tmp_path / "empty").mkdir()
    client.post("/ti_fix/v1/train", json={**asked, "folders": [str(tmp_path / "empty")]})
    status = ended(client)
    assert status["status"] == "failed" and "no usable images" in status["message"]


def test_strangers_and_open_doors_change_nothing(client, host, asked):
    host.is_exposed = True
    assert client.post("/ti_fix/v1/train", json=asked).status_code == 403
    assert client.post("/ti_fix/v1/train/stop", json={}).status_code == 403
    host.is_exposed = False
    assert client.post("/ti_fix/v1/train", json=asked, headers={"Origin": "http://elsewhere"}).status_code == 403
    host.credentials = [("me", "secret")]
    for path in ("train", "train/events", "train/runs"):
        assert client.get(f"/ti_fix/v1/{path}").status_code == 401
    assert client.post("/ti_fix/v1/train", content=json.dumps(asked)).status_code == 401


def test_events_are_asked_for_by_number(client):
    assert client.get("/ti_fix/v1/train/events", params={"after": "x"}).status_code == 400
    assert client.get("/ti_fix/v1/train/events", params={"after": "-5"}).json()["events"] == []
