"""Proofs of a checkpoint that a test wrote, and what came of them; holds no test of its own."""

from pathlib import Path

from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.model_spec import ModelCaseSpec
from loadproof.harness.outcome import Outcome
from loadproof.harness.proof import ProofRequest, Prover
from loadproof.harness.record import CaseRecord
from loadproof.harness.runner import PHASE_SECONDS
from loadproof.harness.spec import CaseSpec


def prove_checkpoint(
    prover: Prover, case: CaseSpec | ModelCaseSpec, checkpoint: Path, defect: str | None = None
) -> CaseRecord:
    """The case on what lies at `checkpoint` now, with the defect planted."""
    request = ProofRequest(
        case=case,
        checkpoint=checkpoint,
        content=content_digest(checkpoint),
        origin="synthetic",
        run_id="selfcheck",
        node_id="selfcheck",
        defect=defect,
        phase_seconds=2.0 if defect == "hang" else PHASE_SECONDS,
    )
    return prover.prove(request)


def not_passed(record: CaseRecord) -> dict[str, str]:
    """Each check that did not pass, with its verdict and why."""
    return {c.name: f"{c.verdict}: {c.detail}" for c in record.checks if c.verdict is not Outcome.PASS}


def assert_caught(record: CaseRecord, check: str, verdict: str) -> None:
    """Of a planted defect: its own check says its own word, and the case does not hold."""
    found = {c.name: c.verdict.value for c in record.checks}
    assert found[check] == verdict, (found, [(n, r.outcome, r.error) for n, r in record.routes.items()])
    assert not record.holds
