"""Sample runs for the tests of the reports; holds no test of its own."""

from pathlib import Path
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import (
    CaseEntry,
    CaseRecord,
    CheckRecord,
    Counts,
    DaemonRecord,
    ErrorRecord,
    OutputRecord,
    RouteRecord,
    RunRecord,
    TensorRecord,
    Verdict,
    WitnessRecord,
)
from loadproof.harness.routes import ROUTES, Route
from loadproof.reports.load import Run

ARENA = "memfd:1:4711"
CHECKS = ("outputs_exact", "pointers_shared", "contents_preserved", "layout_restored", "route_witnessed")


def tensors(allocation: str) -> list[TensorRecord]:
    shapes = {"weight": ([64, 48], "float8_e4m3fn", 0), "weight_scale": ([1], "float32", 3072)}
    return [
        TensorRecord(
            name=f"model.layers.0.qkv_proj.{name}",
            shape=shape,
            stride=[1] * len(shape),
            dtype=dtype,
            sha256=f"{offset:064x}",
            allocation=allocation if allocation == ARENA else f"{allocation}{offset:x}",
            offset=offset if allocation == ARENA else 0,
        )
        for name, (shape, dtype, offset) in shapes.items()
    ]


def route_record(route: Route, pid: int) -> RouteRecord:
    return RouteRecord(
        outcome=Outcome.PASS,
        route_taken=route.must_observe,
        pid=pid,
        exit=0,
        witness=WitnessRecord(
            files_opened=[] if route.shares else ["model.safetensors"],
            decoy=route.decoy,
            mapped_bytes=4096 if route.shares else 0,
            daemon_pid=90 if route.shares else None,
            probe=route.shares,
        ),
        outputs=[OutputRecord(m=m, shape=[m, 48], dtype="bfloat16", sha256=f"{m:064x}") for m in (1, 17)],
        kernels=["reference"],
        tensors=tensors(ARENA if route.shares else f"private:{pid}:7f00"),
        timings_ms={"started": 1.5, "loaded": 12.25, "finished": 30.0},
    )


def case_record(case_id: str = "synthetic-fp8-qkv-n48-k64-reference-memfd", **changes: Any) -> CaseRecord:
    """A case that holds; `changes` replace fields."""
    described = {
        "id": case_id,
        "subject": "builtin",
        "scheme": "FP8",
        "projection": "qkv",
        "logical_widths": [32, 8, 8],
        "k": 64,
        "m_values": [1, 17],
        "kernel": "reference",
        "transport": "memfd",
        "expected": "PASS",
    }
    checks = [
        CheckRecord(name=n, verdict=Outcome.PASS, detail=f"{n} holds.", evidence={"bytes": 1632})
        for n in CHECKS
    ]
    record = CaseRecord(
        run_id="20260105-101500-ab12",
        case=described,
        verdict=Outcome.PASS,
        node_id=f"cases/layers/test_four_way.py::test_outputs_exact[{case_id}]",
        checkpoint={"content": "c0ffee" * 10, "origin": "synthetic, seed 7"},
        routes={route.name: route_record(route, 100 + n) for n, route in enumerate(ROUTES)},
        checks=checks,
        daemon=DaemonRecord(
            pid=90,
            transport="memfd",
            allocation=ARENA,
            arena_bytes=4096,
            key={"torch": "2.13.0", "gpu": None},
            tensors=tensors(ARENA),
            exit=0,
        ),
        duration_ms=212.0,
    )
    return record.model_copy(update=changes)


def failing_record(case_id: str) -> CaseRecord:
    """Other bytes over ipc, and a second ipc engine that crashed."""
    good = case_record(case_id)
    ipc, repeat = good.routes["ipc"], good.routes["ipc-repeat"]
    other = [output.model_copy(update={"sha256": f"{output.m + 3:064x}"}) for output in ipc.outputs]
    crashed = RouteRecord(
        outcome=Outcome.CRASHED,
        route_taken="attach",
        pid=repeat.pid,
        exit=-11,
        error=ErrorRecord(type="ProcessCrashed", message="engine: expected a result, found signal 11."),
        stderr_tail="Fatal Python error: Segmentation fault\n  \x1b[31mFile\x1b[0m /home/ada/x.py, line 3\n",
        timings_ms={"started": 1.5},
    )
    found = {"differing": 3, "of": 816, "first": {"index": [0, 5], "ordinary": "0x3f80", "ipc": "0x3f81"}}
    bytes_differ = CheckRecord(
        name="outputs_exact", verdict=Outcome.BYTES, detail="ipc differs from ordinary.", evidence=found
    )
    routes = good.routes | {"ipc": ipc.model_copy(update={"outputs": other}), "ipc-repeat": crashed}
    checks = [bytes_differ, *good.checks[1:]]
    return good.model_copy(update={"verdict": Outcome.BYTES, "routes": routes, "checks": checks})


def run_of(*cases: CaseRecord, missing: tuple[str, ...] = (), **changes: Any) -> Run:
    """A CPU run of these cases; `missing` are planned ids that left no evidence."""
    entries = [
        CaseEntry(id=c.id, verdict=c.verdict, expected=c.expected, file=f"evidence/{c.id}.json")
        for c in cases
    ]
    lost = [CaseEntry(id=i, verdict=Outcome.INCOMPLETE, expected=Outcome.PASS, file=None) for i in missing]
    verified = sum(case.holds for case in cases)
    failed = len(cases) - verified
    verdict = Verdict.NOT_EQUIVALENT if failed else Verdict.INCOMPLETE if missing else Verdict.EQUIVALENT
    record = RunRecord(
        run_id="20260105-101500-ab12",
        verdict=verdict,
        scope="cpu-default",
        started="2026-01-05T10:15:00Z",
        duration_s=3.21,
        counts=Counts(
            planned=len(entries) + len(lost),
            verified=verified,
            failed=failed,
            incomplete=len(lost),
            refused_as_expected=0,
        ),
        environment={
            "python": {"version": "3.11.9"},
            "torch": {"version": "2.13.0+cpu", "cuda": None, "threads": 1},
            "host": {"os": "Linux 6.8", "cpu": "x86_64, 2 cores"},
            "packages": {"safetensors": "0.8.0", "pytest": "9.2.0"},
            "git": {"commit": "0123abcd", "dirty": False},
        },
        commands={"run": "./validate --loadproof-device cpu"},
        messages=["Worker gw1 was killed by signal 9."] if missing else [],
        cases=[*entries, *lost],
    )
    return Run(record=record.model_copy(update=changes), cases=cases, folder=Path("sample"))


def store(run: Run, folder: Path) -> Path:
    """Leave the run on disk as the plugin does."""
    (folder / "evidence").mkdir(parents=True)
    (folder / "run.json").write_text(run.record.model_dump_json())
    for entry, case in zip(run.record.cases, run.cases, strict=False):
        (folder / str(entry.file)).write_text(case.model_dump_json())
    return folder
