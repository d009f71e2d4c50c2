"""``ti-fix train``: arguments made from the settings, config files, what is told and what is left on disk."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import types
from dataclasses import replace

import pytest
from PIL import Image

from tests.hosts.tiny_models import broken_row, tiny_sdxl
from tests.train.making import TRIGGER, image, model
from ti_fix.cli import train as command
from ti_fix.errors import WrongUse
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel
from ti_fix.options import options
from ti_fix.train import TrainConfig, TrialEvent, TunedEvent
from ti_fix.train.config import as_mapping, check, from_mapping
from ti_fix.train.events import StepEvent, as_json


def parse(*words):
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers(required=True))
    return parser.parse_args(["train", "--model", "m", *words])


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Arguments of a short run on the tiny model, in a folder with two pictures."""
    (tmp_path / "pics").mkdir()
    for i in range(2):
        image(i).save(tmp_path / "pics" / f"{i}.png")
    monkeypatch.setattr(command, "open_host", lambda _: StandaloneHost(model()))
    words = "--resolution 64 --steps 2 --batch-size 1 --warmup 0 --no-self-test --validate-every 2".split()
    words += "--validation-timesteps 1 --start-text red --preview-every 2 --preview-steps 1".split()
    folders = ["--name", TRIGGER, "--folders", str(tmp_path / "pics"), "--out", str(tmp_path / "out")]
    return [*words, *folders]


def test_nothing_is_set_unasked():
    assert command.settings(parse()) == TrainConfig()


@pytest.mark.parametrize("name", [field.name for field, _ in options(TrainConfig)])
def test_every_setting_is_an_argument(name):
    (about,) = [about for field, about in options(TrainConfig) if field.name == name]
    default = getattr(TrainConfig(), name)
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        words, expected = [f"--no-{flag[2:]}" if default else flag], not default
    elif isinstance(default, tuple):
        words, expected = [flag, "1", "0.5"], (1.0, 0.5) if default[:1] == (1.0,) else ("1", "0.5")
    elif about.choices:
        words, expected = [flag, about.choices[-1]], about.choices[-1]
    else:
        words, expected = [flag, "1"], type(default)(1)
    assert getattr(command.settings(parse(*words)), name) == expected


def test_the_resolution_is_the_models_own_unless_asked_for(tmp_path):
    file = tmp_path / "run.json"
    file.write_text('{"resolution": 1024}')
    for words, size in (((), 128), (("--resolution", "1024"), 1024), (("--config", str(file)), 1024)):
        found = parse(*words)
        assert command._sized(command.settings(found), found, 128).resolution == size


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_config_file_is_read_and_arguments_win(tmp_path, ending):
    path = tmp_path / f"run.{ending}"
    values = {"name": "mycat", "steps": 7, "learning_rate": 0.002, "scales": [1, 0.5], "flip": True}
    if ending == "json":
        path.write_text(json.dumps(values))
    else:
        if sys.version_info < (3, 11):
            pytest.skip("TOML needs Python 3.11")
        path.write_text('name = "mycat"\nsteps = 7\nlearning_rate = 0.002\nscales = [1, 0.5]\nflip = true\n')
    found = command.settings(parse("--config", str(path), "--steps", "9"))
    assert (found.name, found.steps, found.learning_rate, found.scales) == ("mycat", 9, "0.002", (1.0, 0.5))
    assert found.flip is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"stepps": 3}', "no setting is called stepps"),
        ('{"steps": "many"}', "must be a int"),
        ('{"flip": 1}', "must be a bool"),
        ("[1]", "no table"),
        ("{", "Give a TOML or JSON"),
    ],
)
def test_wrong_config_files_say_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(WrongUse, match=message):
        command.settings(parse("--config", str(path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "Name is empty"),
        ({"vectors": 76}, "1 to 75"),
        ({"steps": 0}, "steps"),
        ({"optimiser": "sgd"}, "adamw, direction, prodigy, adafactor"),
        ({"schedule": "cosine", "learning_rate": "0.1:5, 0.2"}, "constant schedule only"),
        ({"zero_snr": "on", "prediction": "epsilon"}, "needs v_prediction"),
        ({"optimiser": "direction", "norm_prior": 1.0}, "does nothing"),
        ({"scales": (2.0,)}, "Scales"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(WrongUse, match=message):
        check(TrainConfig(**{"name": "x", **changes}))


def test_settings_survive_being_written_and_read():
    config = TrainConfig(name="x", folders=("a", "b:3"), scales=(1.0, 0.7), flip=True, learning_rate="0.1:3, 0.2")
    assert from_mapping(json.loads(json.dumps(as_mapping(config)))) == config


def test_a_run_leaves_the_file_the_log_the_previews_and_the_settings(arguments, tmp_path, capsys):
    assert command.run(parse(*arguments)) == 0
    said = capsys.readouterr()
    assert said.out == "" and "validation loss" in said.err and "finished after 2 steps" in said.err
    out = tmp_path / "out"
    assert (out / f"{TRIGGER}.safetensors").is_file()
    rows = list(csv.DictReader((out / f"{TRIGGER}.training" / "log.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["0", "1", "2", "2"] and float(rows[1]["rates.clip_g"]) == 0.005
    with Image.open(out / f"{TRIGGER}.training" / "preview-000002.png") as preview:
        assert preview.size == (64, 64)
    saved = json.loads((out / f"{TRIGGER}.training" / "settings.json").read_text())
    assert from_mapping(saved) == command.settings(parse(*arguments))


def test_events_as_json_are_all_that_stands_on_standard_output(arguments, capsys):
    assert command.run(parse(*arguments, "--json-events")) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[-1] == "done" and {"prepare", "finding", "validation", "step", "preview", "checkpoint"} <= set(kinds)
    (last,) = [e for e in events if e["event"] == "step" and e["step"] == 2]
    assert last["loss"] > 0 and set(last["gradients"]) == {"clip_l", "clip_g"}


def test_events_of_a_run_that_breaks_down_are_json_too():
    broken = StepEvent(
        step=1,
        steps=2,
        loss=math.nan,
        smooth_loss=0.5,
        rates={"clip_l": 1e-3},
        gradients={"clip_l": math.inf},
        lengths={},
        seconds=0.1,
    )
    told = as_json(broken)
    json.dumps(told, allow_nan=False)
    assert told["loss"] is None and told["gradients"] == {"clip_l": None} and told["rates"] == {"clip_l": 1e-3}


def test_curves_go_to_tensorboard_where_it_is(arguments, monkeypatch):
    class Writer:
        def __init__(self, folder):
            self.scalars, self.closed = [], False
            made.append(self)

        def add_scalar(self, name, value, step):
            self.scalars.append((name, step))

        def close(self):
            self.closed = True

    made = []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    command.run(parse(*arguments, "--tensorboard", "curves"))
    assert ("loss", 2) in made[0].scalars and ("rates/clip_g", 1) in made[0].scalars and made[0].closed
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(WrongUse, match="TensorBoard is not installed"):
        command.run(parse(*arguments, "--tensorboard", "curves", "--overwrite"))


def test_check_looks_and_does_not_train(arguments, tmp_path, capsys):
    assert command.run(parse(*arguments, "--check")) == 0
    said = capsys.readouterr().err
    assert "Loading the model" in said and "at its highest" in said and "Ready to train" in said
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pics"]


def test_tuned_settings_are_told_and_trained_with(arguments, monkeypatch, capsys):
    def trials(config, model, data, *, fit):
        yield TrialEvent(question="rate", changes={"learning_rate": "0.1"}, loss=0.5, done=1, total=2)
        yield TrialEvent(question="rate", changes={"learning_rate": "9"}, loss=None, done=2, total=2, reason="No.")
        changes = {"learning_rate": "0.1", "learning_rate_g": "", "rate_unit": "rms"}
        yield TunedEvent(config=replace(config, **changes), changes=changes, loss=0.5)

    monkeypatch.setattr(command, "tune", trials)
    assert command.run(parse(*arguments, "--tune")) == 0
    said = capsys.readouterr().err
    assert (
        "trial 2/2, learning_rate 9: No." in said
        and "found: --learning-rate 0.1 --learning-rate-g '' --rate-unit rms" in said
    )
    assert "0.1 times the usual size" in said


def test_a_missing_model_says_so():
    with pytest.raises(WrongUse, match="does not exist"):
        command.open_host(parse())
    with pytest.raises(WrongUse, match="no small model 'nothing'"):
        command.open_host(argparse.Namespace(model="small:nothing", device="cpu", precision="float32"))


def test_a_model_with_a_broken_text_encoder_is_not_trained_on(arguments, tmp_path, capsys, monkeypatch):
    broken = StandaloneModel(tiny_sdxl("epsilon"))
    monkeypatch.setattr(command, "open_host", lambda _: StandaloneHost(broken))
    with broken_row(broken.vocabulary().tables["clip_g"]):
        for more in ([], ["--check"]):
            with pytest.raises(WrongUse, match="row 2368 is not finite"):
                command.run(parse(*arguments, *more))
            assert "error: OpenCLIP bigG: row 2368" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))
