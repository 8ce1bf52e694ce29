"""Detection power on a GPU: the planted defects beside real kernels and arenas."""

import dataclasses
from pathlib import Path

import pytest

from loadproof.cases.selfcheck import test_model_defects
from loadproof.cases.selfcheck.proofs import assert_caught, not_passed
from loadproof.cases.selfcheck.test_defects import CAUGHT, case_for, prove
from loadproof.harness.backends import BACKENDS
from loadproof.harness.outcome import Outcome
from loadproof.harness.proof import Prover
from loadproof.harness.spec import CaseSpec

# The CUTLASS library may have to be compiled first.
pytestmark = pytest.mark.timeout(900)

ON_CPU, ON_GPU = BACKENDS["cpu"], BACKENDS["cuda"]
WITHIN_A_SUM = {"output-one-step-off"}
"""Not caught here: it is less than what a tensor core's own sum may be off."""


def on_gpu(case: CaseSpec) -> CaseSpec:
    """The same case on the GPU's backends."""
    instead = dict(zip(ON_CPU.transports, ON_GPU.transports, strict=True))
    instead |= dict(zip(ON_CPU.attaching, ON_GPU.attaching, strict=False))
    return dataclasses.replace(
        case,
        device="cuda",
        transport=instead[case.transport],
        kernel=instead.get(case.kernel, case.kernel),
    )


@pytest.mark.parametrize("defect", sorted(CAUGHT.keys() - WITHIN_A_SUM))
def test_defect_is_caught_by_its_own_check(prover: Prover, tmp_path: Path, defect: str) -> None:
    record = prove(prover, tmp_path, defect, case=on_gpu(case_for(defect)))
    assert_caught(record, *CAUGHT[defect])


@pytest.mark.parametrize("defect", sorted(test_model_defects.CAUGHT))
def test_defect_of_a_model_is_caught_by_its_own_check(prover: Prover, tmp_path: Path, defect: str) -> None:
    writable, kernel = ON_GPU.transports[1], ON_GPU.attaching[0]
    case = dataclasses.replace(test_model_defects.CASE, device="cuda", transport=writable, kernel=kernel)
    test_model_defects.assert_found(test_model_defects.prove(prover, tmp_path, defect, case), defect)


@pytest.mark.parametrize("transport", ON_GPU.transports)
def test_the_same_case_without_a_defect_passes(prover: Prover, tmp_path: Path, transport: str) -> None:
    case = dataclasses.replace(on_gpu(case_for(None)), transport=transport)
    assert not_passed(prove(prover, tmp_path, None, case=case)) == {}


def test_store_into_sealed_memory_is_refused_by_the_gpu(prover: Prover, tmp_path: Path) -> None:
    record = prove(
        prover, tmp_path, "store-into-sealed-memory", case=on_gpu(case_for("store-into-sealed-memory"))
    )
    assert record.case["transport"] == "cuda-vmm"
    assert record.routes["ipc"].outcome is Outcome.CRASHED
    assert "CUDA error" in record.routes["ipc"].stderr_tail
