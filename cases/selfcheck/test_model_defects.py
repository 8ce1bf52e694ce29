"""Detection power for whole models: each planted defect is caught by its own check, its place named."""

from pathlib import Path

import pytest

from loadproof.harness.model_spec import ModelCaseSpec, ModelSpec, SyntheticModel
from loadproof.harness.models.synthetic import write_model
from loadproof.harness.proof import Prover
from loadproof.harness.record import CaseRecord
from loadproof.harness.spec import Scheme

from .proofs import assert_caught, not_passed, prove_checkpoint

TINY = SyntheticModel(architecture="qwen3", seed=5, tied=True, layers=3, intermediate=40)
# Where the first difference is due, for the defects that reach outputs: layer, step, prompt.
FIRST = {
    "norm-in-float32": ("model.layers.0", 0, 0),
    "inverse-frequencies-lost": ("model.layers.0", 0, 0),
    "keys-taken-for-values": ("model.layers.0", 0, 0),
    "layer-of-a-neighbour": ("model.layers.1", 0, 0),
    "layer-altered-at-one-step": ("model.layers.1", 3, 0),
    "logits-altered-at-one-step": ("lm_head", 2, 1),
    "bit-flipped-in-a-norm": ("model.norm", 0, 0),
    # Of the second attachment: the first has run by then.
    "store-into-the-embedding": ("lm_head", 0, 0),
}
CAUGHT = {
    "tied-embedding-untied": ("layout_restored", "LAYOUT"),
    "norm-in-float32": ("layout_restored", "LAYOUT"),
    "inverse-frequencies-lost": ("layout_restored", "LAYOUT"),
    "buffer-made-persistent": ("layout_restored", "LAYOUT"),
    "training-mode-left-on": ("layout_restored", "LAYOUT"),
    "gradients-left-on": ("layout_restored", "LAYOUT"),
    "weight-shadowed": ("layout_restored", "LAYOUT"),
    "forward-replaced": ("layout_restored", "LAYOUT"),
    "hook-left-on": ("layout_restored", "LAYOUT"),
    "config-of-its-own": ("layout_restored", "LAYOUT"),
    "embedding-copied": ("pointers_shared", "NOT_SHARED"),
    "keys-taken-for-values": ("outputs_exact", "BYTES"),
    "layer-of-a-neighbour": ("processed_exact", "PROCESSED"),
    "bit-flipped-in-a-norm": ("processed_exact", "PROCESSED"),
    "layer-altered-at-one-step": ("outputs_exact", "BYTES"),
    "logits-altered-at-one-step": ("outputs_exact", "BYTES"),
    "another-token-taken": ("outputs_exact", "BYTES"),
    "logits-not-a-number": ("outputs_exact", "INCOMPLETE"),
    "a-step-too-many": ("outputs_exact", "SHAPE"),
    "hidden-states-left-out": ("outputs_exact", "SHAPE"),
    "prompts-exchanged": ("outputs_exact", "BYTES"),
    "another-token-fed-back": ("outputs_exact", "BYTES"),
    "determinism-left-off": ("layout_restored", "LAYOUT"),
    "last-step-left-out": ("outputs_exact", "INCOMPLETE"),
    "store-into-the-embedding": ("contents_preserved", "MUTATED"),
    "a-product-for-each-projection": ("kernel_witnessed", "WRONG_KERNEL"),
    # Planted in layers, and at home in models as well.
    "silent-disk-load-by-read": ("route_witnessed", "WRONG_ROUTE"),
    "copied-by-value": ("pointers_shared", "NOT_SHARED"),
    "weight-transposed-twice": ("layout_restored", "LAYOUT"),
    "death-after-the-end": ("capability", "CRASHED"),
}


MODEL = ModelSpec(name="tiny", scheme=Scheme.FP8, source=TINY)
CASE = ModelCaseSpec(model=MODEL, transport="memfd-writable")


def prove(prover: Prover, folder: Path, defect: str | None, case: ModelCaseSpec = CASE) -> CaseRecord:
    checkpoint = folder / "checkpoint"
    write_model(checkpoint, TINY, Scheme.FP8)
    return prove_checkpoint(prover, case, checkpoint, defect)


def assert_found(record: CaseRecord, defect: str) -> None:
    """By its own check, and the first place that differs where outputs do."""
    assert_caught(record, *CAUGHT[defect])
    outputs = next(c for c in record.checks if c.name == "outputs_exact")
    first = outputs.evidence.get("first_divergence")
    assert (first and (first["layer"], first["step"], first["prompt"])) == FIRST.get(defect), outputs


def test_every_defect_of_models_is_listed_here() -> None:
    from loadproof.harness.defects import MODEL_DEFECTS

    found = {name: (d.caught_by, d.verdict.value) for name, d in MODEL_DEFECTS.items()}
    assert found.items() <= CAUGHT.items()


def test_every_check_of_models_has_a_defect_that_it_catches() -> None:
    from loadproof.harness.checks import MODEL_CHECKS

    assert {check for check, _ in CAUGHT.values()} == set(MODEL_CHECKS)


@pytest.mark.parametrize("defect", sorted(CAUGHT))
def test_defect_is_caught_by_its_own_check(prover: Prover, tmp_path: Path, defect: str) -> None:
    assert_found(prove(prover, tmp_path, defect), defect)


def test_the_same_case_without_a_defect_passes(prover: Prover, tmp_path: Path) -> None:
    assert not_passed(prove(prover, tmp_path, None)) == {}
