"""`loadproof power`: what is caught is counted, and what is not cannot be passed over."""

import dataclasses
import json

import pytest

from loadproof.harness import power
from loadproof.harness.defects import DEFECTS
from loadproof.harness.outcome import Outcome

from .sealed_runs import run_command

CAUGHT = "flipped-bit-in-padding"
REFUSED = "refusal-without-a-name"


def test_caught_defects_are_counted_and_each_names_its_check() -> None:
    ended = run_command("power", "--defect", CAUGHT, "--defect", REFUSED)
    assert ended.status == 0, ended
    assert ended.stdout.splitlines() == [
        f"CAUGHT      {CAUGHT:<34} processed_exact says PROCESSED",
        f"CAUGHT      {REFUSED:<34} capability says INCOMPLETE",
        "caught 2/2, CPU DEFAULT ONLY: the defects are planted on the CPU",
    ]


def test_defect_that_is_not_caught_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = dataclasses.replace(DEFECTS[CAUGHT], caught_by="pointers_shared", verdict=Outcome.NOT_SHARED)
    monkeypatch.setitem(DEFECTS, CAUGHT, blind)
    ended = run_command("power", "--defect", CAUGHT, "--json")
    assert ended.status == 1
    told = json.loads(ended.stdout)
    assert (told["caught"], told["planted"]) == (0, 1)
    assert (told["defects"][0]["said"], told["defects"][0]["due"]) == ("PASS", "NOT_SHARED")


def test_nothing_is_detected_in_a_case_that_fails_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    def also_planted(prover: object, case: object, defect: str | None) -> object:
        return proven(prover, case, CAUGHT)  # type: ignore[arg-type]

    proven = power._proven
    monkeypatch.setattr(power, "_proven", also_planted)
    ended = run_command("power", "--defect", CAUGHT)
    assert ended.status == 1
    assert "NOT CAUGHT" in ended.stdout
    assert "without the defect the case does not hold either" in ended.stdout


def test_unknown_defect_is_refused_by_name() -> None:
    ended = run_command("power", "--defect", "gremlin")
    assert (ended.status, ended.stdout) == (2, "")
    assert "'gremlin'" in ended.stderr
