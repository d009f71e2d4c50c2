"""The Evaluate page's handlers, its API and one batch's maps, with a stand-in host and judge."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import save_file

from tests.evaluate.standin import Judge, paint
from tests.heatmap.making import MYCAT, host, request
from tests.ui.folders import StandIn
from ti_fix.embedding import Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.evaluate import EvalConfig
from ti_fix.protocols import Conditioning
from ti_fix.ui import evaluate_dataset
from ti_fix.ui import evaluate_handlers as page
from ti_fix.ui import evaluate_material as material
from ti_fix.ui import evaluate_work as work
from ti_fix.ui.api import mount
from ti_fix.ui.desk import desk_of
from ti_fix.ui.evaluate_bench import bench_of
from ti_fix.ui.maps import FORM as MAPS_FORM
from ti_fix.ui.maps import MapRun

OTHERS = (None, None, False, "", False, "", False, "")
WIDTHS = {"clip_l": 768, "clip_g": 1280}
VALUES = page.FORM.values(EvalConfig(class_word="red", seeds=2, width=64, height=64, steps=1))


class Trainer:
    """A host whose pictures are known; the user may press its own Interrupt at a picture."""

    def __init__(self):
        self.wait = None
        self.pressed, self.presses_at, self.breaks, self.made = False, 0, False, 0

    def run(self, work):
        return work()

    def generate(self, request):
        if self.wait is not None:
            self.wait.wait(20)
        self.made += 1
        self.pressed = self.made == self.presses_at
        if self.pressed and self.breaks:
            raise WrongUse("The picture was interrupted.")
        return paint(request)

    def interrupted(self):
        return self.pressed

    def model(self):
        return Encoder()


class Encoder:
    """A model whose context is known: the mean of the letters, or what an embedding says."""

    def vocabulary(self):
        return Vocabulary(tables={k: torch.randn(50, w) for k, w in WIDTHS.items()}, tokenize=lambda _: [])

    def encode_prompts(self, prompts, tensors, sizes):
        rows = torch.tensor([[float(sum(map(ord, p)) % 97), len(p), 1.0] for p in prompts])
        moved = 3.0 if tensors else 0.0
        return Conditioning(context=rows[:, None].repeat(1, 77, 1) + moved)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    folder = tmp_path / "embeddings"
    folder.mkdir()
    for name in ("myred", "other"):
        save_file(
            {k: torch.randn(1, w) * 0.02 for k, w in WIDTHS.items()},
            folder / f"{name}.safetensors",
        )
    for module in (work, evaluate_dataset):
        monkeypatch.setattr(module, "judge_of", lambda *_, **__: Judge())
    stand_in = StandIn(folder)
    stand_in.trainer = Trainer()
    monkeypatch.setattr("ti_fix.ui.desk._desk", None)
    return desk_of(stand_in)


def ids(desk):
    return dict(next(shown.choices for shown in page.opened(desk) if shown.choices))


def run(desk, *, references=(), against=(), as_stored=False, prompts="a [name] thing", run_name="", maps=False):
    entry = ids(desk)["myred"]
    others = (references, against, as_stored, run_name, maps)
    return list(page.begin(desk, entry, prompts, *others, "", False, "", *VALUES))


def test_an_evaluation_from_the_choice_to_the_report(desk, tmp_path):
    Image.new("RGB", (16, 16), (230, 20, 20)).save(tmp_path / "ref.png")
    shown = run(desk, references=[str(tmp_path / "ref.png")], against=[ids(desk)["other"]], as_stored=True)
    assert shown[0].busy is True and "progressbar" in shown[0].status
    last = shown[-1]
    assert (
        last.busy is False and "myred against" in last.result and "as stored" in last.result and "other" in last.result
    )
    assert Path(last.files[0]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert next(iter(page.opened(desk))).files == last.files


def test_a_page_that_is_opened_later_finds_the_running_job_and_the_report(desk):
    desk.host.trainer.wait = threading.Event()
    watching = page.begin(desk, ids(desk)["myred"], "a [name]", *OTHERS, *VALUES)
    assert next(watching).busy
    later = page.opened(desk)
    assert next(later).busy is True and desk.busy
    refused = list(page.begin(desk, ids(desk)["myred"], "a [name]", *OTHERS, *VALUES))
    assert "still running" in refused[-1].status
    page.stop(desk)
    desk.host.trainer.wait.set()
    assert list(later)[-1].busy is False
    assert bench_of(desk).job.state.status in ("stopped", "failed")


@pytest.mark.parametrize("breaks", [False, True])
def test_interrupt_of_the_webui_ends_it_and_what_is_there_is_scored(desk, breaks):
    trainer = desk.host.trainer
    trainer.pressed, trainer.presses_at, trainer.breaks = True, 5, breaks  # pressed once before: that does not count
    last = run(desk)[-1]
    assert trainer.made == 5 and "myred against" in last.result
    assert {len(side.pictures) for side in bench_of(desk).report.sides} == {1}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"prompts": "a thing"}, "has no [name]"), ({"references": ["nowhere.png"]}, "cannot be read")],
)
def test_what_cannot_be_done_is_said_on_the_page(desk, change, message):
    assert message in run(desk, **change)[-1].status


def test_a_choice_is_known_by_its_label_too(desk):
    """Gradio 3.41 hands over what the list shows."""
    label = next(iter(ids(desk)))
    last = list(page.begin(desk, label, "a [name]", None, ["other"], False, page.NO_RUN, *OTHERS[4:], *VALUES))[-1]
    assert f"{label} against" in last.result and "other" in last.result


def test_nothing_chosen(desk):
    (shown,) = page.begin(desk, None, "a [name]", *OTHERS, *VALUES)
    assert "Choose an embedding first" in shown.status


def test_without_any_judge_the_ways_to_one_are_told(desk, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(material, "interrogator_file", lambda _: None)
    with pytest.raises(WrongUse, match="Interrogate CLIP once, which fetches one"):
        material.judge_of(desk, "")


def test_the_text_encoders_are_probed_too(desk):
    result = run(desk)[-1].result
    assert "Text encoders" in result and "moved by its place" in result


def test_the_steps_of_a_run_are_compared_and_the_best_is_named(desk):
    folder = desk.training.folder / "myred.training"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"name": "myred", "folders": ["x"]}), encoding="utf-8")
    (folder / "log.csv").write_text("step,loss,fixed_loss\n1,0.5,0.6\n20,0.3,0.4\n30,", encoding="utf-8")
    for step in (10, 20):
        save_file({k: torch.randn(1, w) * 0.02 for k, w in WIDTHS.items()}, folder / f"myred-{step}.safetensors")
    assert next(shown.runs for shown in page.opened(desk) if shown.runs) == ("myred",)
    last = run(desk, run_name="myred")[-1]
    assert "step 10" in last.result and "step 20" in last.result
    assert "Best step: step" in last.status
    assert [side.step for side in bench_of(desk).report.sides] == [None, 10, 20, None, None]
    for heading in ("Training", "Way of the first vector (clip_l)"):
        assert heading in last.result
        assert heading in Path(last.files[0]).read_text(encoding="utf-8")
    assert "No training run" in run(desk, run_name="other")[-1].status


def test_references_with_masks_score_the_subject_alone(desk, tmp_path, monkeypatch):
    masks = []

    class Finder:
        def __init__(self, host, fit, word):
            self.generate, self.word = host.generate, word

        def mask(self, picture, side, prompt, seed):
            masks.append(side.label)
            return Image.new("L", picture.size, 255)

    monkeypatch.setattr(work, "SubjectFinder", Finder)
    paths = [tmp_path / "ref.png", tmp_path / "ref-mask.png"]
    for path in paths:
        Image.new("RGB", (16, 16), (230, 20, 20)).save(path)
    assert "masked_clip_i" in run(desk, references=[str(path) for path in paths])[-1].result
    assert len(masks) == 6
    assert "masked_clip_i" not in run(desk, references=[str(paths[0])])[-1].result
    assert "is the mask of no picture" in run(desk, references=[str(paths[1])])[-1].status


def test_maps_of_the_word_stand_in_the_report(desk):
    """With the tiny model's own pictures, as a host makes them."""
    mine, made = replace(MYCAT, name="myred"), host()
    generate, desk.host.trainer = made.generate, made
    made.generate = lambda asked: generate(replace(asked, embeddings=(mine,) if asked.embeddings else ()))
    desk.host.fit = lambda _: mine
    plain = run(desk, prompts="a [name] and a circle")[-1]
    assert "Attention maps of its word" not in plain.result
    last = run(desk, prompts="a [name] and a circle", maps=True)[-1]
    assert "Attention maps of its word" in last.result and last.result.count("mass 0.") == 4  # two sides, two seeds
    assert "Attention maps of its word" in Path(last.files[0]).read_text(encoding="utf-8")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in made.model().unet.modules())


def test_training_pictures_are_looked_through(desk, tmp_path):
    files = []
    for number, colour in enumerate([(230, 20, 20)] * 6 + [(20, 20, 230)]):
        files.append(tmp_path / f"p{number}.png")
        image = Image.new("RGB", (16, 16), colour)
        image.putpixel((number, number), (255, 255, 255))
        image.save(files[-1])
        files.append(files[-1].with_suffix(".txt"))
        files[-1].write_text("a red thing", encoding="utf-8")
    last = list(page.look(desk, [str(file) for file in files], "", False))[-1]
    assert "Before and after" in last.result and "p6.png" in last.result
    assert "its caption fits far worse" in last.result
    assert Path(last.files[0]).name == "dataset.html"
    assert "of 7 pictures have nothing against them" in last.status
    again = next(shown for shown in page.opened(desk) if shown.result)
    assert "Before and after" in again.result and again.files == last.files


def test_without_files_the_train_pages_pictures_are_looked_through(desk, tmp_path):
    assert "add some here or on the Train page" in list(page.look(desk, None, "", False))[-1].status
    for number in range(2):
        Image.new("RGB", (16, 16), (230, 20 * number, 20)).save(tmp_path / f"own{number}.png")
        desk.training.album.take([str(tmp_path / f"own{number}.png")])
    assert "own1.png" in list(page.look(desk, [], "", False))[-1].result


@pytest.mark.parametrize("name", ["judge.safetensors", "/models/clip", "./a/b", "~/clip"])
def test_what_looks_like_a_file_is_never_taken_for_a_name_to_fetch(desk, monkeypatch, name):
    monkeypatch.undo()
    monkeypatch.setattr(material, "named", lambda *_, **__: pytest.fail("it would be fetched"))
    with pytest.raises(WrongUse, match="is no file"):
        material.judge_of(desk, name, download=True)


@pytest.mark.parametrize("agreed", [False, True])
def test_a_judge_by_name_is_fetched_only_where_the_user_has_agreed(desk, monkeypatch, agreed):
    asked = []
    monkeypatch.undo()
    monkeypatch.setattr(material, "named", lambda name, *, download: asked.append((name, download)))
    material.judge_of(desk, " ViT-B-32/laion2b_s34b_b79k ", download=agreed)
    assert asked == [("ViT-B-32/laion2b_s34b_b79k", agreed)]


@pytest.fixture
def client(desk):
    app = FastAPI()
    mount(app, desk.host)
    return TestClient(app)


def test_the_api_starts_looks_stops_and_reports(desk, client):
    assert client.get("/ti_fix/v1/evaluate/report").status_code == 400
    body = {
        "entry": ids(desk)["myred"],
        "prompts": ["a [name]"],
        "seeds": 1,
        "width": 64,
        "height": 64,
        "class_word": "red",
    }
    assert client.post("/ti_fix/v1/evaluate", json=body).json()["status"] in ("running", "done")
    bench_of(desk).job.wait(30)
    assert client.get("/ti_fix/v1/evaluate").json()["status"] == "done"
    told = client.get("/ti_fix/v1/evaluate/report").json()
    assert told["sides"][0]["label"] == "myred" and told["settings"]["seeds"] == 1
    assert client.post("/ti_fix/v1/evaluate/stop", json={}).json()["status"] == "done"


def test_the_api_looks_through_training_pictures(desk, client, tmp_path):
    assert client.get("/ti_fix/v1/evaluate/dataset").status_code == 400
    assert client.post("/ti_fix/v1/evaluate/dataset", json={}).status_code == 400
    assert client.post("/ti_fix/v1/evaluate/dataset", json={"judge": "x"}).status_code == 400
    for number in range(3):
        Image.new("RGB", (16, 16), (230, 20 * number, 20)).save(tmp_path / f"own{number}.png")
    (tmp_path / "own1.txt").write_text("a red thing", encoding="utf-8")
    answer = client.post("/ti_fix/v1/evaluate/dataset", json={"folders": [str(tmp_path)]})
    assert answer.json()["status"] in ("running", "done")
    bench_of(desk).job.wait(30)
    told = client.get("/ti_fix/v1/evaluate/dataset").json()
    assert [item["caption"] for item in told["items"]] == ["", "a red thing", ""]
    assert set(told["before"]) == {"consistency", "caption similarity", "share of spare copies"}


@pytest.mark.parametrize(
    "body",
    [
        {"run_name": "../x"},
        {"references": ["/etc/passwd"]},
        {"judge": "/etc/passwd"},
        {"seeds": "many"},
        {"seeds": 0},
        {"seeds": True},
        {"prompts": "a [name]"},
        {"entry": "../../x"},
        {"good": 3},
    ],
)
def test_the_api_takes_no_paths_and_no_nonsense(desk, client, body):
    answer = client.post("/ti_fix/v1/evaluate", json={"entry": ids(desk)["myred"], **body})
    assert answer.status_code in (400, 404) and answer.json()["message"]


def test_maps_of_a_batch_as_a_webui_records_them():
    made = host()
    model, asked = made.model(), [request("a mycat and a red circle"), request("a mycat and a red circle", seed=1)]
    run = MapRun(model.unet, 2, "mycat, red, nowhere", True, *MAPS_FORM.values(MAPS_FORM.of()))
    try:
        contexts = torch.cat([made._condition(each)[0].context for each in asked]).detach()
        run.expect(contexts, [(0, asked[0].prompt), (1, asked[1].prompt)], {"mycat": MYCAT.num_vectors, "unused": 1}, 0)
        pictures = made.generate_many(asked)
    finally:
        run.close()
        run.close()
    sheets = run.sheets(pictures)
    assert [picture for picture, _, _ in sheets] == [0, 1]
    assert "mycat: mass" in sheets[0][2] and "[colour]: mass" in sheets[0][2] and "nowhere" not in sheets[0][2]
    assert sheets[0][1].size == (256, 64 + 22)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.unet.modules())
    json.dumps(sheets[0][2])
