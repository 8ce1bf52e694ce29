"""What is not supported is declined by name, with fallback and without, before anything is loaded."""

import pytest

from loadproof.fixtures.public import FourWay
from loadproof.harness.outcome import Outcome


class _Refused:
    def test_capability(self, four_way: FourWay) -> None:
        check = four_way.check("capability")
        assert check.verdict is Outcome.REFUSED, f"{check.verdict}: {check.detail} {check.evidence}"

    def test_nothing_but_the_refusal_is_wrong(self, four_way: FourWay) -> None:
        found = {check.name: check.verdict.value for check in four_way.record.checks}
        assert set(found.values()) <= {"PASS", "REFUSED"}, found


@pytest.mark.loadproof_cases("refused-schemes")
class TestRefusedSchemes(_Refused):
    """The quant_algo alone decides: the tensors are those of an FP8 layer."""


@pytest.mark.loadproof_cases("refused-kernels")
class TestRefusedKernels(_Refused):
    """Ordinary loading may use any backend; attaching needs one that declares support, and one build."""
