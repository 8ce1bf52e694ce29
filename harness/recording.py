"""From observations to the evidence of one case."""

from typing import Any

from .checks import case_verdict, run_checks
from .kernels.symbols import products
from .models.recording import folded, generation_record, logits_records, model_record
from .observation import CaseObservation, RouteObservation
from .record import (
    CaseRecord,
    DaemonRecord,
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
        routes={name: _route_record(seen, route) for name, route in seen.routes.items()},
        checks=checks,
        daemon=_daemon_record(seen),
        model=model_record(seen.model, seen.daemon) if seen.model else None,
        duration_ms=round(duration_ms, 1),
    )


def _daemon_record(seen: CaseObservation) -> DaemonRecord:
    served = seen.daemon.tensors
    manifest = manifest_digest({t.name: t.fingerprint for t in served}) if served else ""
    kept = folded(seen.model, served, seen.daemon.allocation) if seen.model else {}
    return seen.daemon.model_copy(update={"manifest": manifest} | kept)


def _route_record(case: CaseObservation, seen: RouteObservation) -> RouteRecord:
    said = seen.reported
    tensors = [TensorRecord(**t) for t in said.get("tensors", [])]
    held: dict[str, Any] = {"tensors": tensors, "outputs": _outputs(seen)}
    if case.model is not None:
        held = folded(case.model, tensors, case.daemon.allocation)
        held |= {"outputs": logits_records(seen), "generation": generation_record(case.model, seen)}
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
            daemon_lost=said.get("daemon_lost", False),
            checkpoint_bytes_read=said.get("checkpoint_bytes_read", 0),
            attachments=seen.attachments,
            probe=seen.nonce is not None and said.get("probe") == seen.nonce,
        ),
        processed=[
            DigestRecord(name=n.removeprefix("processed."), sha256=sha256(t))
            for n, t in seen.results.items()
            if n.startswith("processed.")
        ],
        kernels=products(said.get("kernels", [])),
        weights=_weights(seen),
        memory_bytes=said.get("memory_bytes", {}),
        timings_ms=seen.timings_ms,
        **held,
    )


def _outputs(seen: RouteObservation) -> list[OutputRecord]:
    return [
        OutputRecord(m=int(n.split(".")[1]), shape=list(t.shape), dtype=dtype_name(t.dtype), sha256=sha256(t))
        for n, t in seen.results.items()
        if n.startswith("output.")
    ]


def _weights(seen: RouteObservation) -> dict[str, str]:
    moments = {
        "held": {t["name"]: t["fingerprint"] for t in seen.reported.get("tensors", [])},
        "after": seen.reported.get("tensors_after", {}),
        "daemon": seen.daemon_digests or {},
    }
    return {moment: manifest_digest(digests) for moment, digests in moments.items() if digests}
