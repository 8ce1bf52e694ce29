"""Negative controls: a few planted defects that run beside the cases and must be caught.

They show in each run that the checks can fail, on the kernel and the transports that the run is about.
`cases/selfcheck/test_defects.py` runs every defect there is, and cases/gpu/test_defects.py on a GPU.
"""

import inspect
from pathlib import Path

from .backends import SEED, Backends
from .checkpoint.digest import content_digest
from .checkpoint.writer import write_source
from .defects import DEFECTS
from .matrix import layer_spec
from .proof import ProofRequest
from .record import CaseRecord, ControlRecord
from .runner import PHASE_SECONDS
from .spec import CaseSpec, ProjectionKind, RealSource, Scheme, SyntheticSource

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


def control_request(
    case: CaseSpec,
    defect: str | None,
    folder: Path,
    run_id: str,
    node_id: str,
    phase_seconds: float = PHASE_SECONDS,
) -> ProofRequest:
    """The proof of a synthetic case with the defect planted, if any; writes its checkpoint into `folder`."""
    assert not isinstance(case.source, RealSource)
    checkpoint = folder / "checkpoint"
    write_source(checkpoint, case.layer, case.source)
    return ProofRequest(
        case=case,
        checkpoint=checkpoint,
        content=content_digest(checkpoint),
        origin=str(case.describe()["source"]),
        run_id=run_id,
        node_id=node_id,
        defect=defect,
        phase_seconds=phase_seconds,
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
