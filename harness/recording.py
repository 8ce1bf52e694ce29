"""From observations to the evidence of one case."""

from .checks import case_verdict, run_checks
from .observation import CaseObservation, RouteObservation
from .record import (
    CaseRecord,
    DigestRecord,
    OutputRecord,
    RouteRecord,
    TensorRecord,
    WitnessRecord,
    manifest_digest,
)
from .runner import ProofRequest
from .tensor_bytes import dtype_name, sha256


def record_case(request: ProofRequest, seen: CaseObservation, duration_ms: float) -> CaseRecord:
    checks = run_checks(seen)
    return CaseRecord(
        run_id=request.run_id,
        case=request.case.describe(),
        verdict=case_verdict(checks),
        node_id=request.node_id,
        checkpoint={"content": request.content, "origin": request.origin},
        routes={name: _route_record(route) for name, route in seen.routes.items()},
        checks=checks,
        daemon=seen.daemon,
        duration_ms=round(duration_ms, 1),
    )


def _route_record(seen: RouteObservation) -> RouteRecord:
    said = seen.reported
    return RouteRecord(
        outcome=seen.outcome,
        route_taken=said.get("route_taken", "none"),
        pid=seen.pid,
        exit=seen.exit,
        error=seen.error,
        stderr_tail=seen.stderr_tail,
        witness=WitnessRecord(
            files_opened=seen.files_opened,
            decoy=seen.decoy,
            mapped_bytes=said.get("mapped_bytes", 0),
            daemon_pid=said.get("daemon_pid"),
            checkpoint_bytes_read=said.get("checkpoint_bytes_read", 0),
            attachments=seen.attachments,
            probe=seen.nonce is not None and said.get("probe") == seen.nonce,
        ),
        outputs=[
            OutputRecord(
                m=int(n.split(".")[1]), shape=list(t.shape), dtype=dtype_name(t.dtype), sha256=sha256(t)
            )
            for n, t in seen.results.items()
            if n.startswith("output.")
        ],
        processed=[
            DigestRecord(name=n.removeprefix("processed."), sha256=sha256(t))
            for n, t in seen.results.items()
            if n.startswith("processed.")
        ],
        kernels=said.get("kernels", []),
        tensors=[TensorRecord(**t) for t in said.get("tensors", [])],
        weights=_weights(seen),
        memory_bytes=said.get("memory_bytes", {}),
        timings_ms=seen.timings_ms,
    )


def _weights(seen: RouteObservation) -> dict[str, str]:
    moments = {
        "held": {t["name"]: t["sha256"] for t in seen.reported.get("tensors", [])},
        "after": seen.reported.get("tensors_after", {}),
        "daemon": seen.daemon_digests or {},
    }
    return {moment: manifest_digest(digests) for moment, digests in moments.items() if digests}
