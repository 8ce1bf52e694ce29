"""One test for each named check of a case; one four-way run stands behind them all."""

from loadproof.fixtures.public import FourWay
from loadproof.harness.outcome import Outcome


class EveryCheck:
    """The checks that every case has."""

    def test_outputs_exact(self, four_way: FourWay) -> None:
        assert_passes(four_way, "outputs_exact")

    def test_processed_exact(self, four_way: FourWay) -> None:
        assert_passes(four_way, "processed_exact")

    def test_pointers_shared(self, four_way: FourWay) -> None:
        assert_passes(four_way, "pointers_shared")

    def test_contents_preserved(self, four_way: FourWay) -> None:
        assert_passes(four_way, "contents_preserved")

    def test_layout_restored(self, four_way: FourWay) -> None:
        assert_passes(four_way, "layout_restored")

    def test_route_witnessed(self, four_way: FourWay) -> None:
        assert_passes(four_way, "route_witnessed")

    def test_kernel_witnessed(self, four_way: FourWay) -> None:
        assert_passes(four_way, "kernel_witnessed")

    def test_capability(self, four_way: FourWay) -> None:
        assert_passes(four_way, "capability")


def assert_passes(four_way: FourWay, name: str) -> None:
    """The named check, with what it found in the message."""
    __tracebackhide__ = True
    check = four_way.check(name)
    assert check.verdict is Outcome.PASS, f"{name}: {check.verdict}: {check.detail} {check.evidence}"
