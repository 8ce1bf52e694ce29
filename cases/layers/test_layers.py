"""Layer cases: one four-way run each, then one test for each named check."""

import pytest

from loadproof.fixtures.public import FourWay
from loadproof.harness.outcome import Outcome


class _EveryCheck:
    def test_outputs_exact(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "outputs_exact")

    def test_processed_exact(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "processed_exact")

    def test_activation_exact(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "activation_exact")

    def test_gemm_bounded(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "gemm_bounded")

    def test_pointers_shared(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "pointers_shared")

    def test_contents_preserved(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "contents_preserved")

    def test_layout_restored(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "layout_restored")

    def test_route_witnessed(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "route_witnessed")

    def test_kernel_witnessed(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "kernel_witnessed")

    def test_capability(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "capability")


@pytest.mark.loadproof_cases("synthetic-layers")
class TestSyntheticLayers(_EveryCheck):
    """Every kind, padding and relation of scales, with and without bias, in both output dtypes."""


@pytest.mark.loadproof_cases("corner-layers")
class TestCornerLayers(_EveryCheck):
    """Sizes of zero and one, a square weight, and projections fused on disk."""


@pytest.mark.loadproof_cases("real-layers")
class TestRealLayers(_EveryCheck):
    """Layer 0 of SmolLM2's real ModelOpt exports, all four kinds, whole and trimmed."""


@pytest.mark.loadproof_cases("lost-daemons")
class TestLostDaemons(_EveryCheck):
    """The daemon is killed under the last engine: outputs stay exact, and it says that the daemon is lost."""


def _assert_passes(four_way: FourWay, name: str) -> None:
    __tracebackhide__ = True
    check = four_way.check(name)
    assert check.verdict is Outcome.PASS, f"{name}: {check.verdict}: {check.detail} {check.evidence}"
