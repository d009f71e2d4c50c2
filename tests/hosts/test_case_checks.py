"""The check of the cases itself, on the stand-ins: it passes with ti_fix, and fails without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hosts import host_cases
from tests.hosts.case_checks import CaseCheck
from tests.hosts.report import Report
from tests.hosts.running_check import FOLDER, check_running
from tests.hosts.standin import StandIn
from tests.hosts.table import Table
from tests.hosts.webui_client import Client, Failed, Picture

SOME = "F0,F2,S0,V07,D08,D09,N03,N04,P01"
MODELS = {"sdxl": "sdxl", "sd15": "sd15"}


class StandInClient(Client):
    """The client's questions, answered by a stand-in; its pictures are the numbers that a model would be told."""

    def __init__(self, webui: StandIn) -> None:
        super().__init__("http://stand-in")
        self.webui = webui
        self.settings: dict[str, Any] = webui.modules["modules.shared"].opts.data
        if webui.kind == "forge":
            webui.open_lists()
        webui.switch("sdxl")

    def picture(self, prompt: str, **changes: object) -> Picture:
        words = re.sub(r" <lora:[^>]*>", "", prompt)
        numbers, infotext = self.webui.generate(words)
        shift = 1000 * (words != prompt) + 500 * ("hr_scale" in changes)
        return Picture(np.asarray([0.0, *numbers]) * 1e4 + shift, str(infotext))  # type: ignore[arg-type]

    def get(self, path: str) -> Any:
        if path == "/sdapi/v1/options":
            return self.settings
        if path == "/openapi.json":
            return {"paths": {"/ti_fix/v1/files": {}}}
        raise Failed(f"HTTP 404: {path}")

    def post(self, path: str, body: object) -> Any:
        assert path == "/sdapi/v1/refresh-embeddings"
        if self.webui.kind == "a1111":
            self.webui.database.load_textual_inversion_embeddings(force_reload=True)

    def options(self, **values: object) -> None:
        model = values.pop("sd_model_checkpoint", None)
        self.settings.update(values)
        if model:
            self.webui.switch(str(model), cached=True)

    def loaded(self) -> set[str]:
        self.webui.generate("one dog")
        database = self.webui.lists[0] if self.webui.lists else self.webui.database
        return set(database.word_embeddings)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def test_every_case_comes_out_as_expected(start, kind, tmp_path):
    webui, _ = start(kind)
    names = host_cases.names(SOME)
    check = CaseCheck(StandInClient(webui), webui.folder, names, Table(), MODELS, lora=True)
    check.run()
    assert [row for row in check.table.rows if not row[1]] == []
    assert len(check.rows) == len(names) > 25
    assert check.identical[0] == check.identical[1] > 10
    report = Report(check.table.rows, check.rows, {"repository": "a/b", "version": "v1"}, tuple(check.identical))
    count = len({name.case for name in names})
    assert f"| {count} of {count} | {check.identical[1]} of {check.identical[1]} |" in report.markdown()


def test_without_ti_fix_it_fails(start):
    webui, _ = start("a1111", hooked=False)
    check = CaseCheck(StandInClient(webui), webui.folder, host_cases.names("F01,F08,V07"), Table())
    check.run()
    wrong = {row.name.case for row in check.rows if row.faults}
    assert "F08" in wrong
    assert "F01" not in wrong


def test_a_running_webui_is_left_as_it_was(start):
    webui, _ = start("a1111")
    (webui.folder / "mine.txt").write_text("mine")
    check = check_running(StandInClient(webui), webui.folder, host_cases.names("F0"), Table())
    assert [row for row in check.table.rows if not row[1]] == []
    assert sorted(path.name for path in webui.folder.iterdir()) == ["mine.txt"]
    assert not webui.database.word_embeddings


def test_what_it_wrote_goes_also_when_the_webui_dies(start, monkeypatch):
    webui, _ = start("a1111")
    client = StandInClient(webui)

    def dies() -> set[str]:
        assert (webui.folder / FOLDER / "F01").is_dir()
        raise Failed("connection refused")

    monkeypatch.setattr(client, "loaded", dies)
    with pytest.raises(Failed):
        check_running(client, webui.folder, host_cases.names("F01"), Table())
    assert not list(webui.folder.iterdir())


def test_names_are_those_of_the_files():
    names = {(name.case, name.text) for name in host_cases.names()}
    assert {("F01", "hero-step00001250"), ("N02", "猫耳メイド"), ("D08", "good"), ("P03", "hero.preview")} <= names
    assert not [each for each in names if Path(each[1]).suffix in (".pt", ".safetensors")]
