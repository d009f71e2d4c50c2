from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ti_fix.errors import WrongUse
from ti_fix.options import option, options
from ti_fix.train.config import TrainConfig
from ti_fix.ui.forms import Form, option_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    steps: int = option(10, "Steps", "how many", minimum=1, maximum=100)
    rate: float = option(0.5, "Rate", "how fast", minimum=0, maximum=1)
    way: str = option("up", "Way", "where to", choices=("up", "down"))
    on: bool = option(True, "On", "whether")
    names: tuple[str, ...] = option((), "Names", "several", expert=True)
    scales: tuple[float, ...] = option((1.0, 0.5), "Scales", "several numbers")
    text: str = option("", "Text", "words")


FORM = Form(Settings)


def kinds(form):
    return {field.name: field.kind for field in form.fields}


def test_each_type_gets_its_control():
    assert kinds(FORM) == {
        "steps": "whole",
        "rate": "number",
        "way": "choice",
        "on": "switch",
        "names": "list",
        "scales": "list",
        "text": "text",
    }
    assert [field.name for field in FORM.fields if field.slider] == ["steps", "rate"]


@given(
    st.builds(
        Settings,
        steps=st.integers(1, 100),
        rate=st.floats(0, 1),
        way=st.sampled_from(["up", "down"]),
        on=st.booleans(),
        names=st.lists(st.from_regex(r"[a-z/:. ]*[a-z]", fullmatch=True)).map(lambda v: tuple(x.strip() for x in v)),
        scales=st.lists(st.integers(1, 1000).map(lambda n: n / 8)).map(tuple),
        text=st.text(alphabet="abc äß你", max_size=9).map(str.strip),
    )
)
def test_a_form_gives_back_the_config_that_it_shows(config):
    assert FORM.config(FORM.values(config)) == config


def test_every_setting_of_training_survives_its_form():
    form, config = Form(TrainConfig), TrainConfig(name="x", folders=("a", "b:3"), learning_rate="0.005:100, 1e-5")
    assert form.config(form.values(config)) == config
    assert [field.name for field in form.fields] == [field.name for field, _ in options(TrainConfig)]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("steps", "many", "Steps (steps) is 'many'; enter a whole number from 1 to 100."),
        ("steps", 2.5, "Steps (steps) is '2.5'; enter a whole number from 1 to 100."),
        ("steps", None, "Steps (steps) is empty; enter a whole number from 1 to 100."),
        ("steps", float("inf"), "Steps (steps) is 'inf'; enter a whole number from 1 to 100."),
        ("steps", 101, "Steps (steps) is 101; give a number from 1 to 100."),
        ("rate", "", "Rate (rate) is empty; enter a number from 0 to 1."),
        ("rate", float("nan"), "Rate (rate) is nan; give a number from 0 to 1."),
        ("way", "left", "Way (way) is 'left'; choose one of: up, down."),
        ("scales", "1, big", "Scales (scales) is 'big'; enter a number."),
    ],
)
def test_a_wrong_value_is_named_with_what_to_enter(name, value, said):
    values = [value if field.name == name else field.shown(field.default) for field in FORM.fields]
    with pytest.raises(WrongUse) as caught:
        FORM.config(values)
    assert str(caught.value) == said


def test_what_is_left_out_keeps_the_value_of_the_base():
    form = Form(Settings, leave_out=["steps", "text"])
    base = Settings(steps=7, text="kept")
    made = form.config(form.values(Settings(rate=0.25)), base, text="given")
    assert (made.steps, made.text, made.rate) == (7, "given", 0.25)


def test_numbers_of_the_browser_are_taken_as_they_come():
    values = {field.name: field.shown(field.default) for field in FORM.fields} | {"steps": 5.0, "rate": 1}
    made = FORM.config(list(values.values()))
    assert json.dumps([made.steps, made.rate]) == "[5, 1.0]"


def test_texts_for_translation_are_labels_and_helps():
    assert option_texts(Settings)["Settings.rate"] == "Rate"
    assert option_texts(Settings)["Settings.rate.help"] == "how fast"
    assert len(option_texts(Settings)) == 2 * 7
