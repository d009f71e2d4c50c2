from __future__ import annotations

import argparse
import sys
from types import SimpleNamespace

import pytest

from ti_fix.cli import ui as command
from ti_fix.errors import TiFixError, WrongUse


def parse(*words):
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers(required=True))
    return parser.parse_args(["ui", *words])


@pytest.fixture
def served(monkeypatch):
    """Stands for the module that shows the pages: what it was given."""
    given = []

    def serve(host, *, port, started):
        given.append((host, port))
        started("http://127.0.0.1:1/")
        return SimpleNamespace(block_thread=lambda: None)

    monkeypatch.setattr(command, "find_spec", lambda _: "found")
    monkeypatch.setitem(sys.modules, "ti_fix.ui.app", SimpleNamespace(serve=serve))
    return given


def test_the_pages_are_there_before_the_model_is(served, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "open_host", lambda *_: (_ for _ in ()).throw(TiFixError("no such model")))
    folder = tmp_path / "new" / "embeddings"
    assert command.run(parse("--embeddings", str(folder), "--port", "7", "--no-browser")) == 0
    ((host, port),) = served
    assert port == 7 and host.embedding_folders == (folder,) and folder.is_dir()
    assert host.picture_size() == 128
    assert "http://127.0.0.1:1/" in capsys.readouterr().err
    with pytest.raises(TiFixError, match="no such model"):
        host.training_host()


def test_the_browser_is_opened_unless_it_is_not_wanted(served, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(command, "open_host", lambda *_: None)
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    command.run(parse("--embeddings", str(tmp_path)))
    command.run(parse("--embeddings", str(tmp_path), "--no-browser"))
    assert opened == ["http://127.0.0.1:1/"]


def test_a_model_that_is_not_there_is_told_before_anything_starts(served, tmp_path):
    with pytest.raises(WrongUse, match="does not exist"):
        command.run(parse("--embeddings", str(tmp_path), "--model", str(tmp_path / "none.safetensors")))
    assert not served


def test_without_gradio_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "find_spec", {"gradio": None}.__getitem__)
    with pytest.raises(WrongUse, match=r"python3 run\.py ui"):
        command.run(parse("--embeddings", str(tmp_path)))
