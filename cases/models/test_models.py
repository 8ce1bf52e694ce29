"""Whole models: one four-way run each, then one test for each named check."""

import pytest

from loadproof.fixtures.public import FourWay
from loadproof.harness.outcome import Outcome


class _EveryCheck:
    def test_outputs_exact(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "outputs_exact")

    def test_processed_exact(self, four_way: FourWay) -> None:
        _assert_passes(four_way, "processed_exact")

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


@pytest.mark.loadproof_cases("real-models")
class TestRealModels(_EveryCheck):
    """SmolLM2-135M-Instruct under both schemes, or the model that --loadproof-model names."""


@pytest.mark.loadproof_cases("synthetic-models")
class TestSyntheticModels(_EveryCheck):
    """Every architecture with small random weights: narrow kv, padded widths, tied and untied embeddings."""


def _assert_passes(four_way: FourWay, name: str) -> None:
    __tracebackhide__ = True
    check = four_way.check(name)
    assert check.verdict is Outcome.PASS, f"{name}: {check.verdict}: {check.detail} {check.evidence}"
