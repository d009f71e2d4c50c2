"""A sound model folder, made once; tests damage copies of it."""

from __future__ import annotations

import shutil

import pytest

from tests.align import models


@pytest.fixture(scope="session")
def sound_folder(tmp_path_factory):
    return models.healthy_folder(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def folder(sound_folder, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(sound_folder, tmp_path / "model")
