"""Runs of any size, to measure reports with: cases as large, and as unlike one another, as real ones."""

import hashlib

from loadproof.cases.selfcheck.test_report_samples import run_of
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import (
    CaseRecord,
    ChainRecord,
    CheckRecord,
    DaemonRecord,
    OutputRecord,
    RouteRecord,
    TensorRecord,
    WitnessRecord,
    manifest_digest,
)
from loadproof.harness.routes import ROUTES, Route
from loadproof.reports.load import Run

RUN_ID = "20261130-120000-abcdef"
M_VALUES = (0, 1, 2, 16, 17, 128)
CHECKS = (
    "outputs_exact",
    "processed_exact",
    "activation_exact",
    "gemm_bounded",
    "pointers_shared",
    "contents_preserved",
    "layout_restored",
    "route_witnessed",
    "kernel_witnessed",
    "capability",
)
SHAPES = {"weight": [64, 96], "weight_scale": [], "input_scale": [], "bias": [96]}
DTYPES = {"weight": "float8_e4m3fn", "bias": "float16"}
SCHEMES = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
PROJECTIONS = ("plain", "qkv", "gate_up", "row")
TRANSPORTS = ("cuda-vmm", "cuda-ipc")


def large_run(count: int, failing: int = 0) -> Run:
    """`count` cases on a GPU that nobody has, of which the last `failing` differ on ipc."""
    cases = tuple(_case(n, failing=n >= count - failing) for n in range(count))
    return run_of(
        *cases,
        run_id=RUN_ID,
        scope="gpu",
        started="2026-11-30T12:00:00+00:00",
        duration_s=count * 0.9,
        environment={"gpu": {"name": "Example GPU"}, "packages": {"torch": "2.13.0"}},
        commands={"run": "python -m pytest cases/layers"},
        # Of no real run, but as long as one: sealing 10,000 cases takes a while.
        chain=ChainRecord(facts={}, cases=_sha(count, "cases"), head=_sha(count, "head")),
    )


def _case(n: int, failing: bool) -> CaseRecord:
    scheme, kind, transport = (values[n % len(values)] for values in (SCHEMES, PROJECTIONS, TRANSPORTS))
    slug = f"{scheme}-{kind}-n{96 + n}-k64-unequal-bias-fp16-cutlass-{transport}".lower().replace("_", "-")
    case_id = f"synthetic-{slug}"
    served = _tensors(n, f"{transport}:GPU-0:{_sha(n, 'arena')[:32]}")
    routes = {r.name: _route(n, at, r, served) for at, r in enumerate(ROUTES)}
    checks = [
        CheckRecord(
            name=c, verdict=Outcome.PASS, detail=f"{c} holds on all routes.", evidence={"bytes": 94464 + n}
        )
        for c in CHECKS
    ]
    if failing:
        outputs = [o.model_copy(update={"sha256": _sha(n, f"other {o.m}")}) for o in routes["ipc"].outputs]
        routes["ipc"] = routes["ipc"].model_copy(update={"outputs": outputs})
        found = {"route": "ipc", "m": 1, "differing_elements": 3, "elements": 96, "first_index": [0, 5]}
        found |= {"reference_hex": "803f", "candidate_hex": "813f", "reference_value": "1.0"}
        found |= {"candidate_value": "1.0078125"}
        detail = "Output at M=1: route ipc differs from ordinary."
        checks[0] = CheckRecord(name=CHECKS[0], verdict=Outcome.BYTES, detail=detail, evidence=found)
    return CaseRecord(
        run_id=RUN_ID,
        case={
            "id": case_id,
            "subject": "builtin",
            "scheme": scheme,
            "projection": kind,
            "layer": "model.layers.0.self_attn.qkv_proj",
            "source": f"synthetic, seed {n}, unequal scales",
            "logical_widths": [96],
            "padded_width": 96,
            "k": 64,
            "padded_k": 64,
            "m_values": list(M_VALUES),
            "out_dtype": "float16",
            "bias": True,
            "kernel": "cutlass",
            "transport": transport,
            "expected": "PASS",
        },
        verdict=Outcome.BYTES if failing else Outcome.PASS,
        node_id=f"cases/layers/test_layers.py::TestSyntheticLayers::test_outputs_exact[{case_id}]",
        checkpoint={"content": _sha(n, "content"), "origin": f"synthetic, seed {n}, unequal scales"},
        routes=routes,
        checks=checks,
        daemon=DaemonRecord(
            pid=10_000 + 7 * n,
            transport=transport,
            allocation=served[0].allocation,
            arena_bytes=4 << 20,
            key={"content": _sha(n, "content"), "torch": "2.13.0+cu130", "gpu_architecture": "sm_90"},
            tensors=served,
            manifest=manifest_digest({t.name: t.sha256 for t in served}),
            exit=0,
        ),
        duration_ms=900.0 + n % 97,
    )


def _tensors(n: int, allocation: str) -> list[TensorRecord]:
    return [
        TensorRecord(
            name=f"model.layers.0.self_attn.qkv_proj.{name}",
            shape=shape,
            stride=[1] * len(shape),
            dtype=DTYPES.get(name, "float32"),
            sha256=_sha(n, name),
            allocation=allocation,
            offset=6144 * at,
        )
        for at, (name, shape) in enumerate(SHAPES.items())
    ]


def _route(n: int, at: int, route: Route, served: list[TensorRecord]) -> RouteRecord:
    pid = 10_001 + 7 * n + at
    tensors = served if route.shares else _tensors(n, f"private:{pid}:0x7ff223e00000")
    digest = manifest_digest({t.name: t.sha256 for t in tensors})
    moments = ("held", "after", "daemon") if route.shares else ("held", "after")
    return RouteRecord(
        outcome=Outcome.PASS,
        route_taken=route.must_observe,
        pid=pid,
        exit=0,
        witness=WitnessRecord(
            files_opened=[] if route.shares else ["model.safetensors"],
            decoy=route.decoy,
            mapped_bytes=(4 << 20) if route.shares else 0,
            daemon_pid=10_000 + 7 * n if route.shares else None,
            attachments=1 if route.shares else None,
            probe=route.shares,
        ),
        outputs=[
            OutputRecord(m=m, shape=[m, 96], dtype="float16", sha256=_sha(n, f"m{m}")) for m in M_VALUES
        ],
        kernels=[
            "void at::native::vectorized_elementwise_kernel<4, at::native::reciprocal>",
            "_ZN7cutlass13device_kernelINS_4gemm6",
        ],
        tensors=tensors,
        weights=dict.fromkeys(moments, digest),
        timings_ms={
            "started": 0.2,
            "loaded": 600 + n % 83 + at,
            "ran": 870.0 + n % 89,
            "total": 976.5 + n % 91,
        },
    )


def _sha(n: int, what: str) -> str:
    return hashlib.sha256(f"{n} {what}".encode()).hexdigest()
