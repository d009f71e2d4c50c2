"""What the command line, the pages and the API can do is the same, but for the exceptions that are listed here."""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.ui.folders import StandIn
from ti_fix.cli import _parser
from ti_fix.convert import ConvertConfig
from ti_fix.evaluate import EvalConfig
from ti_fix.heatmap import MapSettings
from ti_fix.options import options
from ti_fix.train import TrainConfig
from ti_fix.ui import convert_api, convert_handlers, evaluate_handlers, maps, mount_api, train_api, train_handlers

PAGES = Path(__file__).resolve().parents[2] / "ti_fix" / "ui"
PREFIX = "/ti_fix/v1/"

LOADED = "it works on the model that the program has loaded"
FORMS = "of an output that a page or a JSON answer has by itself"


@dataclass(frozen=True)
class Missing:
    """Why one of the three cannot do it."""

    reason: str


@dataclass(frozen=True)
class Job:
    """One thing that can be done, and where: command-line words, ids of controls, routes."""

    what: str
    cli: str | Missing
    page: str | Missing
    api: str | Missing


FILES_OF_SERVER = Missing("nobody hands in a path through the API")
COMMANDS_ONLY = Missing("it reads or writes whole files of any size, for which the command line is the place")

JOBS = (
    Job("list, search, judge", "inspect", "files.search files.refresh", "GET:files GET:inspect POST:refresh"),
    Job("judge for another kind of model", "inspect--for repair--for tokens--for", Missing(LOADED), Missing(LOADED)),
    Job("repair", "repair", "files.repair files.repair_shown", "POST:repair"),
    Job("cut long ones", "repair--split", "files.repair", "POST:repair"),
    Job(
        "take embeddings out", "repair--extract", "files.extract files.find_loras files.lora files.take", "POST:extract"
    ),
    Job(
        "write for another program", "repair--form", "files.form files.export files.downloads", Missing("it is a file")
    ),
    Job(
        "undo", Missing("it never touches the originals"), "files.undo", Missing("the answer of repair names the kept")
    ),
    Job("convert", "convert", "convert.files convert.method convert.write", "POST:convert"),
    Job("look before converting", "convert--json", "convert.look", "POST:convert"),
    Job("all that waits", "convert", "convert.everything convert.refresh", "POST:convert GET:files"),
    Job("choose the kind of model to convert for", "convert--to", Missing(LOADED), "POST:convert"),
    Job("move between checkpoints", "convert--from-model", Missing("it needs two models at once"), Missing(LOADED)),
    Job("pictures of a conversion", "evaluate--original", "convert.draw", Missing("evaluate makes and scores them")),
    Job(
        "train", "train", "train.start train.name train.what train.kind train.files train.fresh", "POST:train GET:train"
    ),
    Job("look before a training", "train--check", "train.check", Missing("start refuses with the same sentences")),
    Job("follow a training", "train--json-events", "train.start", "GET:train/events"),
    Job("stop and go on", "train--resume", "train.pause train.resume", "POST:train/stop POST:train"),
    Job("save in between", "train--checkpoint-every", "train.save", "POST:train"),
    Job("earlier runs", "evaluate--run", "train.start", "GET:train/runs"),
    Job("find a rate by short runs", "train--tune", Missing("hours; see the guide"), Missing("hours; see the guide")),
    Job("settings from a file", "train--config", Missing("earlier runs keep them"), "POST:train"),
    Job("TensorBoard", "train--tensorboard", Missing("the page draws its own curves"), Missing("the events hold all")),
    Job(
        "evaluate",
        "evaluate evaluate--prompts evaluate--references evaluate--judge evaluate--dino",
        "evaluate.entry evaluate.prompts evaluate.references evaluate.judge evaluate.dino evaluate.start",
        "POST:evaluate GET:evaluate POST:evaluate/stop GET:evaluate/report",
    ),
    Job("report to keep", "evaluate--out", "evaluate.downloads", "GET:evaluate/report"),
    Job(
        "against others",
        "evaluate--against evaluate--as-stored",
        "evaluate.against evaluate.as_stored",
        "POST:evaluate",
    ),
    Job(
        "against the original",
        "evaluate--original evaluate--original-model",
        Missing("two models at once"),
        Missing(LOADED),
    ),
    Job("finished pictures, an earlier report", "evaluate--pictures evaluate--earlier", COMMANDS_ONLY, FILES_OF_SERVER),
    Job(
        "fetch a judge",
        "evaluate--download evaluate--clip-folder",
        "evaluate.download",
        Missing("a program that asks fetches nothing without a person"),
    ),
    Job("steps of a run", "evaluate--run", "evaluate.run_name", "POST:evaluate"),
    Job(
        "training pictures",
        "evaluate--dataset",
        "evaluate.dataset evaluate.look",
        "POST:evaluate/dataset GET:evaluate/dataset",
    ),
    Job(
        "attention maps",
        "heatmap",
        "evaluate.maps",
        Missing("a script of the WebUI's own API: TI Fix attention maps"),
    ),
    Job(
        "look at a model",
        "align align--self-test align--small align--strategies",
        "model.refresh model.check",
        "GET:model",
    ),
    Job("judge a prompt or name", "align--text tokens", "model.prompt", "POST:tokens"),
    Job("stop a look", Missing("Ctrl-C"), "model.stop", Missing("the answer is the end")),
    Job("mend a model, take its rows out", "align--out align--embeddings", COMMANDS_ONLY, COMMANDS_ONLY),
    Job("tokens", "tokens tokens--embeddings tokens--steps", "model.prompt model.steps model.apart", "POST:tokens"),
    Job("demo", "demo demo--only demo-model demo-model--layout", Missing("it shows the project"), Missing("the same")),
    Job(
        "the pages", "ui ui--embeddings ui--loras ui--port ui--no-browser", Missing("this is they"), Missing("the same")
    ),
    Job("the source", Missing("a clone has it"), Missing("a link below every page"), "GET:source"),
)

OF_COMMANDS = {"help", "json", "out", "strict", "overwrite", "model", "device", "precision"}
"""Arguments that say where, on what and in which form a command works: on a page that is plain."""

OF_PICTURES = {"words", "embeddings", "negative-prompt", "width", "height", "steps", "seed", "pictures", "cfg-scale"}
"""What txt2img asks for by itself where maps are made there; groups are a switch of the fold."""


def command_line() -> dict[str, set[str]]:
    """Command -> its long arguments."""
    parts = next(each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {
        name: {word[2:] for action in parser._actions for word in action.option_strings if word.startswith("--")}
        for name, parser in parts.choices.items()
    }


def settings(kind: type) -> set[str]:
    return {field.name for field, _ in options(kind)}


def named(of: str) -> set[str]:
    cells = [getattr(job, of) for job in JOBS]
    return {word for cell in cells if isinstance(cell, str) for word in cell.split()}


def test_every_command_and_argument_is_accounted_for():
    generated = {
        "train": settings(TrainConfig),
        "convert": settings(ConvertConfig),
        "evaluate": settings(EvalConfig),
        "heatmap": {*settings(MapSettings), *OF_PICTURES, "groups", "own-groups"},
    }
    there = set()
    for command, words in command_line().items():
        known = {name.replace("_", "-") for name in generated.get(command, ())}
        left = words - OF_COMMANDS - known - {f"no-{name}" for name in known}
        there |= {command, *(f"{command}--{word}" for word in left)}
    assert there - named("cli") == set(), "say in JOBS where page and API do this"
    everything = {f"{command}--{word}" for command, words in command_line().items() for word in words}
    assert named("cli") - everything - command_line().keys() == set(), "JOBS names what is gone"


CONTROLS = {"Button", "Dropdown", "Checkbox", "File", "Textbox", "Number", "Radio"}


def controls(page: str) -> set[str]:
    """Ids of what a page's source draws by itself; the settings' controls are made from their classes."""
    calls = list(ast.walk(ast.parse((PAGES / f"{page}.py").read_text(encoding="utf-8"))))
    drawn = [c for c in calls if isinstance(c, ast.Call) and getattr(c.func, "attr", "") in CONTROLS]
    ids = [word.value for call in drawn for word in call.keywords if word.arg == "elem_id"]
    return {f"{page}.{ast.literal_eval(each.args[0])}" for each in ids if isinstance(each, ast.Call)}


def test_every_control_is_accounted_for():
    there = set().union(*map(controls, ("files", "train", "convert", "evaluate", "model")))
    assert there - named("page") == set(), "say in JOBS where command line and API do this"
    assert named("page") - there == set(), "JOBS names what is gone"


def test_every_route_is_accounted_for(tmp_path):
    app = FastAPI()
    mount_api(app, StandIn(tmp_path))
    there = {
        f"{method}:{route.path.removeprefix(PREFIX)}"
        for route in app.routes
        if route.path.startswith(PREFIX)
        for method in route.methods
    }
    assert there - named("api") == set(), "say in JOBS where command line and page do this"
    assert named("api") - there == set(), "JOBS names what is gone"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.what)
def test_exceptions_have_a_reason(job):
    cells = (job.cli, job.page, job.api)
    assert any(isinstance(cell, str) for cell in cells)
    assert all(cell if isinstance(cell, str) else len(cell.reason) > 5 for cell in cells)


@pytest.mark.parametrize(
    ("kind", "form", "left_out"),
    [
        (TrainConfig, train_handlers.FORM, {"name", "start_text", "out", "resume"}),  # asked in front, or known
        (ConvertConfig, convert_handlers.FORM, {"method", "keep"}),  # in front; needs a second checkpoint
        (EvalConfig, evaluate_handlers.FORM, set()),
        (MapSettings, maps.FORM, set()),
    ],
)
def test_a_page_asks_for_every_setting(kind, form, left_out):
    assert {field.name for field in form.fields} == settings(kind) - left_out


def test_the_api_takes_every_setting():
    assert set(convert_api.SETTINGS) == settings(ConvertConfig)
    assert set(train_api.NOT_OVER_THE_NET) <= settings(TrainConfig)
