"""The benchmark for graphics cards runs in small on any device, so that it works when somebody has one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def device(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("device")
    for name in ("device", "memory", "harness"):
        sys.modules.pop(name, None)


def test_the_small_form_measures_everything(device, capsys):
    ratio = device.measure(device.TINY, torch.device("cpu"), 1)
    told = capsys.readouterr().out
    assert 0.5 < ratio < 10
    cosines = [float(line.split("|")[2]) for line in told.splitlines() if line.startswith(("| float16", "| bfloat16"))]
    assert len(cosines) == 2 and min(cosines) > 0.9
    assert told.count("does not fit") == 0 and "step" in told


def test_without_a_card_it_says_so(device, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["device.py"])
    with pytest.raises(SystemExit) as ended:
        device.main()
    assert ended.value.code == 3 and "no CUDA device" in capsys.readouterr().out
