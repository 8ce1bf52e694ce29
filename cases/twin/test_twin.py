"""Every layer of the matrix as an in-process twin: one daemon layer and two that are attached to it."""

import pytest

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import TwinRecord


class _Exact:
    def test_twin(self, twin: TwinRecord) -> None:
        assert twin.verdict is Outcome.PASS, twin.detail


@pytest.mark.loadproof_twins("synthetic-layers")
class TestSyntheticLayers(_Exact):
    """The layers of the synthetic cases."""


@pytest.mark.loadproof_twins("corner-layers")
class TestCornerLayers(_Exact):
    """The layers of the corner cases."""


@pytest.mark.loadproof_twins("real-layers")
class TestRealLayers(_Exact):
    """The layers of SmolLM2's real exports, whole and trimmed."""
