"""The twins of loadproof's own layers: planted defects are caught by name, and what a run says of it."""

import dataclasses
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.cases.selfcheck.test_report_samples import case_record
from loadproof.fixtures.twins import Twins
from loadproof.harness import loaders, twin_case
from loadproof.harness.cache import views
from loadproof.harness.checkpoint.writer import synthetic_tensors
from loadproof.harness.defects import DEFECTS, cache, outputs, processing, registry
from loadproof.harness.matrix import ALIAS, layer_spec, twins
from loadproof.harness.outcome import Outcome
from loadproof.harness.plan import Plan, summarise
from loadproof.harness.record import TwinRecord
from loadproof.harness.spec import CaseSpec, ProjectionKind, Scheme, SyntheticSource
from loadproof.harness.twin import TRANSPORT

ROOT = Path(__file__).resolve().parents[2]
CASE = CaseSpec(
    layer=layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 41),
    projection=ProjectionKind.QKV,
    source=SyntheticSource(seed=3),
    transport=ALIAS,
    m_values=(0, 1, 17),
)


def record_of(case: CaseSpec, **spoiled: torch.Tensor) -> TwinRecord:
    tensors = synthetic_tensors(case.layer, 3, equal_scales=False)
    return twin_case.twin_record(case, tensors | spoiled, Path("synthetic"), "selfcheck")


def test_the_same_layer_without_a_defect_passes() -> None:
    record = record_of(CASE)
    assert (record.verdict, record.detail) == (Outcome.PASS, "")
    assert record.transport == ALIAS == TRANSPORT == record.case["transport"]
    assert record.kernels == ["reference_scaled_mm_float64"]


def test_layers_run_on_one_thread_and_the_caller_keeps_his(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = twin_case.restore
    monkeypatch.setattr(
        twin_case, "restore", lambda *given: seen.append(torch.get_num_threads()) or original(*given)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        record_of(CASE)
        assert (seen, torch.get_num_threads()) == ([1, 1], 2)
    finally:
        torch.set_num_threads(before)


class Planting:
    """Plants a defect of the library in this process, for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(views, "restore", twin_case.restore)
        for module in (registry, processing, outputs, cache):
            monkeypatch.setattr(module, "replace", self._replace)
        self._process = ""

    def __call__(self, name: str, process: str) -> None:
        self._process = process
        DEFECTS[name].plant(process, "cache")

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        if owner is loaders and name == "restore":
            owner = twin_case
        original, first = getattr(owner, name), iter([value])
        # The daemon layer is the first that is processed.
        of_daemon = lambda *given: next(first, original)(*given)  # noqa: E731
        self._monkeypatch.setattr(owner, name, of_daemon if self._process == "daemon" else value)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Planting:
    return Planting(monkeypatch)


CAUGHT = {
    "weight-transposed-twice": ("engine", "layout_restored", "LAYOUT"),
    "padded-twice": ("engine", "layout_restored", "LAYOUT"),
    "requantised-again": ("engine", "pointers_shared", "NOT_SHARED"),
    "copied-by-value": ("engine", "pointers_shared", "NOT_SHARED"),
    "logical-width-lost": ("engine", "outputs_exact", "SHAPE"),
    "flipped-bit-in-padding": ("daemon", "processing_repeatable", "PROCESSED"),
    "header-only-key": ("daemon", "processing_repeatable", "PROCESSED"),
}


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("defect", CAUGHT)
def test_defect_is_caught_by_its_own_check(plant: Planting, defect: str, scheme: Scheme) -> None:
    process, check, verdict = CAUGHT[defect]
    plant(defect, process)
    record = record_of(dataclasses.replace(CASE, layer=dataclasses.replace(CASE.layer, scheme=scheme)))
    assert (record.verdict, record.detail.partition(":")[0]) == (verdict, check), record.detail


@pytest.mark.parametrize("defect", ["weight-scale-off-by-ten-percent", "output-scaled-by-ten-percent"])
def test_what_is_wrong_in_every_layer_alike_is_left_to_the_four_way_run(plant: Planting, defect: str) -> None:
    plant(defect, "engine")
    assert record_of(CASE).verdict is Outcome.PASS


def test_checkpoint_that_cannot_be_used_is_a_verdict() -> None:
    name = "model.layers.0.self_attn.v_proj.weight_scale"
    record = record_of(CASE, **{name: torch.tensor(float("nan"))})
    assert record.verdict is Outcome.INFRA
    assert f"BadScale: synthetic: {name}" in record.detail


def test_record_does_not_pass_without_evidence() -> None:
    for compared in ({}, {"outputs_exact": 0}):
        with pytest.raises(ValueError, match="passes without evidence"):
            TwinRecord(
                run_id="r", case=CASE.describe(), verdict=Outcome.PASS, compared=compared, duration_ms=1
            )


def twin(name: str, verdict: Outcome) -> TwinRecord:
    compared = {"outputs_exact": 1}
    return TwinRecord(
        run_id="r", case={"id": name}, verdict=verdict, detail="why", compared=compared, duration_ms=1
    )


@pytest.mark.parametrize(
    ("selected", "verdicts", "failed", "noted"),
    [
        (0, [], 0, []),
        (2, ["PASS", "PASS"], 0, []),
        (2, ["PASS", "BYTES"], 1, ["twin 1: why"]),
        (3, ["PASS", "PASS"], 0, ["1 of 3 twins left no record."]),
        (3, ["BYTES", "PASS"], 1, ["twin 0: why", "1 of 3 twins left no record."]),
    ],
)
def test_twin_that_fails_or_is_missing_is_noted(
    selected: int, verdicts: list[str], failed: int, noted: list[str]
) -> None:
    records = {str(i): twin(str(i), Outcome(verdict)) for i, verdict in enumerate(verdicts)}
    of_run = Twins(selected=selected, records=records)
    assert (len(of_run.failed), of_run.notes()) == (failed, noted)


@pytest.mark.parametrize(
    ("refuted", "messages", "verdict"),
    [(False, [], "EQUIVALENT"), (False, ["m"], "INCOMPLETE"), (True, ["m"], "NOT_EQUIVALENT")],
)
def test_run_is_no_better_than_its_twins(refuted: bool, messages: list[str], verdict: str) -> None:
    record = case_record("case", run_id="r")
    plan = Plan(run_id="r", started="", cases={record.id: Outcome.PASS})
    assert summarise(plan, {record.id: record}, messages, refuted=refuted).verdict == verdict


LAYER = "synthetic-fp8-row-n41-k149"
PLANT = """
from loadproof.harness import twin_case
original = twin_case.restore
def copied(spec, tensors):
    return original(spec, {n: t.t().clone().t() if t.dim() == 2 else t.clone() for n, t in tensors.items()})
def pytest_runtest_setup(item):
    if "alias" in item.name:
        twin_case.restore = copied
"""


def run_with_twins(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "cases/layers", "cases/twin", "-k", LAYER]
    command += ["-p", "no:cacheprovider", "--loadproof-device", "cpu"]
    command += ["--loadproof-out", str(tmp_path / "run"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def results(tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], set[str]]:
    run = tmp_path / "run"
    written = (run / "twin.jsonl").read_bytes()
    told = json.loads((run / "run.json").read_text())
    assert told["twins_sha256"] == sha256(written).hexdigest()
    records = [json.loads(line) for line in written.splitlines()]
    return told, records, {f.stem for f in (run / "evidence").iterdir()}


def test_run_keeps_twins_apart_from_its_cases(tmp_path: Path) -> None:
    done = run_with_twins(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout
    run, records, evidence = results(tmp_path)
    assert (run["verdict"], run["counts"]["planned"]) == ("EQUIVALENT", 2)
    assert {entry["id"] for entry in run["cases"]} == evidence
    expected = {case.id for case in twins("synthetic-layers") if case.id.startswith(LAYER)}
    assert {record["case"]["id"] for record in records} == expected
    assert {record["transport"] for record in records} == {"alias"}
    assert len(expected) == len(records) == 2
    assert "twin: 2/2 layers exact" in done.stdout
    assert "no claim about IPC" in done.stdout


def test_twin_that_fails_makes_the_run_not_equivalent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_copy.py").write_text(PLANT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = run_with_twins(tmp_path, "-p", "planted_copy", "--loadproof-transport", "memfd", "-n", "0")
    assert done.returncode == 1, done.stdout
    run, (record,), evidence = results(tmp_path)
    assert (run["verdict"], run["counts"]["verified"], len(evidence)) == ("NOT_EQUIVALENT", 1, 1)
    assert record["verdict"] == "NOT_SHARED"
    assert any("pointers_shared: NOT_SHARED: attached layer 1, weight" in text for text in run["messages"])
    assert "NOT EQUIVALENT" in done.stdout
    assert "twin: 0/1 layers exact" in done.stdout
