"""Negative controls: a few planted defects that run beside the cases and must be caught.

They show in each run that the checks can fail, on the kernel and the transports that the run is about.
`cases/selfcheck/test_defects.py` runs every defect there is, and cases/gpu/test_defects.py on a GPU.
"""

import inspect
from pathlib import Path

from .backends import Backends
from .checkpoint.digest import content_digest
from .checkpoint.writer import synthetic_tensors, write_checkpoint
from .defects import DEFECTS
from .matrix import layer_spec
from .proof import ProofRequest
from .record import CaseRecord, ControlRecord
from .spec import CaseSpec, ProjectionKind, Scheme, SyntheticSource

SEED = 20261130
WIDTHS, K = (43, 17, 9), 48
"""Fused, of unequal scales and padded: the layer in which each of these defects can happen."""


def control_case(defect: str, on: Backends, kernel: str) -> CaseSpec:
    """The case in which the defect is planted; without it, it passes."""
    sealed, writable = on.transports
    return CaseSpec(
        layer=layer_spec(ProjectionKind.QKV, Scheme.FP8, WIDTHS, K),
        projection=ProjectionKind.QKV,
        source=SyntheticSource(seed=SEED),
        transport=sealed if DEFECTS[defect].sealed else writable,
        kernel=kernel,
        device=on.device,
        m_values=(1, 17),
    )


def control_request(case: CaseSpec, defect: str, folder: Path, run_id: str, node_id: str) -> ProofRequest:
    """The proof of a `control_case` with the defect planted; writes its checkpoint into `folder`."""
    checkpoint = folder / "checkpoint"
    tensors = synthetic_tensors(case.layer, SEED, equal_scales=False)
    write_checkpoint(checkpoint, tensors, case.layer.scheme)
    return ProofRequest(
        case=case,
        checkpoint=checkpoint,
        content=content_digest(checkpoint),
        origin=str(case.describe()["source"]),
        run_id=run_id,
        node_id=node_id,
        defect=defect,
    )


def control_record(name: str, record: CaseRecord) -> ControlRecord:
    """What the check that is meant for the defect said of it."""
    defect = DEFECTS[name]
    check = next(check for check in record.checks if check.name == defect.caught_by)
    return ControlRecord(
        name=name,
        plants=(inspect.getdoc(defect.plant) or "").partition("\n")[0],
        case_id=record.id,
        check=check.name,
        due=defect.verdict,
        said=check.verdict,
        detail=check.detail,
    )
