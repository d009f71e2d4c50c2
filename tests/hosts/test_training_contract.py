"""The adapters of the WebUIs keep the contract of all hosts, with models that stand in for theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts.contract import HostContract
from tests.hosts.standin_training import started


@pytest.mark.parametrize(
    "host", [("a1111", "sdxl"), ("a1111", "sd15"), ("forge", "sdxl"), ("forge", "sd15")], indirect=True, ids="-".join
)
class TestWebuis(HostContract):
    @pytest.fixture(scope="class")
    @classmethod
    def host(cls, request: Any, tmp_path_factory: Any) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch:
            yield started(*request.param, tmp_path_factory.mktemp("webui"), patch)[1]
