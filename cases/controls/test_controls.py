"""Negative controls: defects planted in every run, each of which the check meant for it must catch."""

import pytest

from loadproof.harness.matrix import CONTROLS
from loadproof.harness.record import ControlRecord


@pytest.mark.parametrize("control", CONTROLS, indirect=True)
def test_a_planted_defect_is_caught(control: ControlRecord) -> None:
    assert control.caught, f"{control.check} said {control.said}, not {control.due}: {control.detail}"
