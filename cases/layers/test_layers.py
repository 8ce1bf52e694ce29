"""Layer cases: one four-way run each, then one test for each named check."""

import pytest

from loadproof.cases.every_check import EveryCheck, assert_passes
from loadproof.fixtures.public import FourWay


class _EveryCheckOfALayer(EveryCheck):
    """And two of what a single layer computes."""

    def test_activation_exact(self, four_way: FourWay) -> None:
        assert_passes(four_way, "activation_exact")

    def test_gemm_bounded(self, four_way: FourWay) -> None:
        assert_passes(four_way, "gemm_bounded")


@pytest.mark.loadproof_cases("synthetic-layers")
class TestSyntheticLayers(_EveryCheckOfALayer):
    """Every kind, padding and relation of scales, with and without bias, in both output dtypes."""


@pytest.mark.loadproof_cases("corner-layers")
class TestCornerLayers(_EveryCheckOfALayer):
    """Sizes of zero and one, a square weight, and projections fused on disk."""


@pytest.mark.loadproof_cases("real-layers")
class TestRealLayers(_EveryCheckOfALayer):
    """Layer 0 of SmolLM2's real ModelOpt exports, all four kinds, whole and trimmed."""


@pytest.mark.loadproof_cases("lost-daemons")
class TestLostDaemons(_EveryCheckOfALayer):
    """The daemon is killed under the last engine: outputs stay exact, and it says that the daemon is lost."""
