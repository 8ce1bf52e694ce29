"""Detection power: each planted defect is caught by its own check, with its own word."""

import errno
import os
from pathlib import Path

import pytest
import torch

from loadproof.fixtures.run import Run
from loadproof.harness import proof, runner
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.errors import OutputUnwritable
from loadproof.harness.outcome import Outcome
from loadproof.harness.power import defect_case as case_for
from loadproof.harness.proof import Prover
from loadproof.harness.record import CaseRecord
from loadproof.harness.spec import CaseSpec, ForeignSource

from .proofs import assert_caught, not_passed, prove_checkpoint

# name -> (check, verdict), spelled out: the table in the library must agree with it.
CAUGHT = {
    "weight-transposed-twice": ("layout_restored", "LAYOUT"),
    "requantised-again": ("processed_exact", "PROCESSED"),
    "padded-twice": ("layout_restored", "LAYOUT"),
    "logical-width-lost": ("outputs_exact", "SHAPE"),
    "channel-scales-padded-with-zero": ("processed_exact", "PROCESSED"),
    "first-input-scale": ("processed_exact", "PROCESSED"),
    "copied-by-value": ("pointers_shared", "NOT_SHARED"),
    "rebound-after-attaching": ("pointers_shared", "NOT_SHARED"),
    "silent-disk-load-by-read": ("route_witnessed", "WRONG_ROUTE"),
    "silent-disk-load-by-mmap": ("route_witnessed", "WRONG_ROUTE"),
    "disk-instead-of-attach": ("route_witnessed", "WRONG_ROUTE"),
    "flipped-bit-in-padding": ("processed_exact", "PROCESSED"),
    "header-only-key": ("outputs_exact", "BYTES"),
    "store-into-shared-memory": ("contents_preserved", "MUTATED"),
    "store-into-sealed-memory": ("outputs_exact", "CRASHED"),
    "loss-of-the-daemon-unnoticed": ("route_witnessed", "WRONG_ROUTE"),
    "negative-zero": ("outputs_exact", "BYTES"),
    "output-scaled-by-ten-percent": ("gemm_bounded", "BOUND"),
    "weight-scale-off-by-ten-percent": ("processed_exact", "PROCESSED"),
    "activation-scale-off-by-one-ulp": ("activation_exact", "BYTES"),
    "another-kernel": ("kernel_witnessed", "WRONG_KERNEL"),
    "hang": ("outputs_exact", "TIMEOUT"),
    "abort": ("outputs_exact", "CRASHED"),
    "escaped-exception": ("outputs_exact", "CRASHED"),
    "death-after-the-end": ("capability", "CRASHED"),
    "empty-tensor-list": ("contents_preserved", "INCOMPLETE"),
    "refused-scheme-loaded": ("capability", "WRONG_ROUTE"),
    "undeclared-backend-attaches": ("capability", "WRONG_ROUTE"),
    "key-mismatch-hidden-by-fallback": ("capability", "INFRA"),
    "refusal-after-reading": ("capability", "WRONG_ROUTE"),
    "refusal-without-a-name": ("capability", "INCOMPLETE"),
    "key-mismatch-without-fields": ("capability", "INCOMPLETE"),
    "refusal-after-attaching": ("capability", "WRONG_ROUTE"),
    "daemon-reads-before-it-refuses": ("capability", "WRONG_ROUTE"),
    "daemon-refuses-without-a-name": ("capability", "INCOMPLETE"),
    "attached-twice": ("route_witnessed", "WRONG_ROUTE"),
    "a-second-kernel": ("kernel_witnessed", "WRONG_KERNEL"),
    "output-in-float32": ("gemm_bounded", "DTYPE"),
    "output-one-step-off": ("gemm_bounded", "BOUND"),
    "wrong-activations-on-fallback": ("outputs_exact", "BYTES"),
    "garbled-message": ("outputs_exact", "CRASHED"),
    "truncated-results": ("outputs_exact", "CRASHED"),
    "results-of-another-engine": ("outputs_exact", "CRASHED"),
}


def prove(
    prover: Prover,
    folder: Path,
    defect: str | None,
    *,
    case: CaseSpec | None = None,
    spoiled: dict[str, torch.Tensor] | None = None,
) -> CaseRecord:
    case = case or case_for(defect)
    checkpoint = folder / "checkpoint"
    algo = case.source.quant_algo if isinstance(case.source, ForeignSource) else case.layer.scheme
    write_checkpoint(checkpoint, synthetic_tensors(case.layer, 3, False) | (spoiled or {}), algo)
    return prove_checkpoint(prover, case, checkpoint, defect)


def test_every_defect_of_the_library_is_listed_here() -> None:
    from loadproof.harness.defects import DEFECTS

    assert {name: (d.caught_by, d.verdict.value) for name, d in DEFECTS.items()} == CAUGHT


def test_every_check_has_a_defect_that_it_catches() -> None:
    from loadproof.harness.checks import CHECKS

    assert {check for check, _ in CAUGHT.values()} == set(CHECKS)


@pytest.mark.parametrize("defect", sorted(CAUGHT))
def test_defect_is_caught_by_its_own_check(prover: Prover, tmp_path: Path, defect: str) -> None:
    assert_caught(prove(prover, tmp_path, defect), *CAUGHT[defect])


def test_the_same_case_without_a_defect_passes(prover: Prover, tmp_path: Path) -> None:
    assert not_passed(prove(prover, tmp_path, None)) == {}


@pytest.mark.parametrize("defect", [name for name in CAUGHT if case_for(name).refusal])
def test_the_same_refusal_without_a_defect_holds(prover: Prover, tmp_path: Path, defect: str) -> None:
    record = prove(prover, tmp_path, None, case=case_for(defect))
    assert record.holds, [(c.name, c.verdict, c.detail) for c in record.checks]
    assert record.verdict is Outcome.REFUSED


def test_checkpoint_that_changes_under_the_routes_voids_the_case_and_keeps_what_was_seen(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "content_digest", lambda path: "another")
    record = prove(prover, tmp_path, None)
    assert {check.verdict for check in record.checks} == {Outcome.INFRA}
    assert all("as before the first route" in check.detail for check in record.checks)
    assert all(route.outputs for route in record.routes.values())


def test_checkpoint_that_cannot_be_used_is_a_verdict_and_not_a_crash(prover: Prover, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.v_proj.weight_scale"
    record = prove(prover, tmp_path, None, spoiled={name: torch.tensor(float("nan"))})
    assert {check.verdict for check in record.checks} == {Outcome.INFRA}
    assert all(name in check.detail for check in record.checks)


def test_store_into_sealed_memory_crashes_and_names_the_signal(prover: Prover, tmp_path: Path) -> None:
    record = prove(prover, tmp_path, "store-into-sealed-memory")
    assert record.routes["ipc"].outcome is Outcome.CRASHED
    assert record.routes["ipc"].exit == -11
    assert "Segmentation fault" in record.routes["ipc"].stderr_tail
    assert record.routes["ipc"].error is not None


def test_hung_engine_leaves_the_stacks_of_its_threads(prover: Prover, tmp_path: Path) -> None:
    record = prove(prover, tmp_path, "hang")
    ipc = record.routes["ipc"]
    assert ipc.error is not None
    assert "'probed'" in ipc.error.message
    assert "most recent call first" in ipc.stderr_tail


def test_two_runs_give_the_same_hashes(prover: Prover, tmp_path: Path) -> None:
    first, second = (prove(prover, tmp_path / name, None) for name in ("a", "b"))
    for route in first.routes:
        assert first.routes[route].outputs == second.routes[route].outputs
        assert first.routes[route].processed == second.routes[route].processed


def test_evidence_survives_a_round_trip(prover: Prover, tmp_path: Path) -> None:
    record = prove(prover, tmp_path, None)
    run = Run(run_id="selfcheck", folder=tmp_path / "run")
    run.add(record)
    assert run.read(record.id) == record
    with pytest.raises(OutputUnwritable, match="one four-way run a case"):
        run.add(record)
    assert Run(run_id="another", folder=run.folder).read(record.id) is None


def test_symbolic_links_prove_the_same_where_hard_links_cannot_be_made(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    record = prove(prover, tmp_path, None)
    assert record.verdict is Outcome.PASS, record.checks
    assert record.routes["ordinary"].witness.files_opened == ["model.safetensors"]
    caught = prove(prover, tmp_path / "defect", "silent-disk-load-by-mmap")
    assert_caught(caught, "route_witnessed", "WRONG_ROUTE")


def test_attaching_beside_real_weights_is_caught(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = runner.make_route_dir
    monkeypatch.setattr(runner, "make_route_dir", lambda source, target, **_: original(source, target, False))
    record = prove(prover, tmp_path, None)
    assert_caught(record, "route_witnessed", "WRONG_ROUTE")
    detail = next(check.detail for check in record.checks if check.name == "route_witnessed")
    assert "Route ipc ran without a decoy." in detail


def test_error_around_a_route_keeps_the_other_routes_evidence(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = runner.make_route_dir

    def refuse(source: Path, target: Path, decoy: bool) -> object:
        if target.name == "fallback":
            raise OutputUnwritable(target, expected="room", found="planted", remedy="None.")
        return original(source, target, decoy)

    monkeypatch.setattr(runner, "make_route_dir", refuse)
    record = prove(prover, tmp_path, None)
    assert record.routes["fallback"].outcome is Outcome.INFRA
    assert record.routes["fallback"].error is not None
    assert record.routes["fallback"].error.type == "OutputUnwritable"
    assert all(record.routes[name].outputs for name in ("ordinary", "ipc", "ipc-repeat"))
    assert record.verdict is Outcome.INFRA
