"""The standalone host keeps the contract, for both families."""

from __future__ import annotations

import pytest

from tests.hosts.contract import HostContract
from tests.hosts.tiny_models import tiny_sd15, tiny_sdxl
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel


class TestStandaloneSdxl(HostContract):
    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> StandaloneHost:
        return StandaloneHost(StandaloneModel(tiny_sdxl()))


class TestStandaloneSdxlVPrediction(HostContract):
    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> StandaloneHost:
        return StandaloneHost(StandaloneModel(tiny_sdxl("v_prediction")))


class TestStandaloneSd15(HostContract):
    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> StandaloneHost:
        return StandaloneHost(StandaloneModel(tiny_sd15(), clip_skip=2))
