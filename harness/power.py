"""Detection power: every planted defect in the case in which it can happen, and the same case without it."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .controls import control_record, control_request
from .defects import DEFECTS
from .matrix import layer_spec
from .proof import Prover
from .record import CaseRecord, ControlRecord
from .scratch import make_scratch, remove_scratch
from .spec import CaseSpec, ForeignSource, ProjectionKind, Refusal, Scheme, SyntheticSource

SEED = 3
WIDTHS, K = (43, 17, 9), 48
"""Fused, of unequal scales and padded."""
HANG_SECONDS, PHASE_SECONDS = 2.0, 30.0

_OF_A_REFUSED_SCHEME = (
    "refused-scheme-loaded",
    "refusal-after-reading",
    "refusal-without-a-name",
    "daemon-reads-before-it-refuses",
    "daemon-refuses-without-a-name",
)
_OF_A_REFUSED_KERNEL = (
    "undeclared-backend-attaches",
    "refusal-after-attaching",
    "wrong-activations-on-fallback",
)
_OF_ANOTHER_KEY = ("key-mismatch-hidden-by-fallback", "key-mismatch-without-fields")


@dataclass(frozen=True, slots=True)
class Detection:
    """What came of one planted defect."""

    control: ControlRecord
    holds_without: bool
    """Whether the same case, without the defect, ends as it claims; nothing is detected where it does not."""

    @property
    def caught(self) -> bool:
        """True when the check meant for the defect said so, and would not have said it anyway."""
        return self.control.caught and self.holds_without


def defect_case(defect: str | None) -> CaseSpec:
    """The case of the CPU default in which a defect can happen; None for the one that most happen in."""
    per_channel = defect == "channel-scales-padded-with-zero"
    scheme = Scheme.FP8_PER_CHANNEL_PER_TOKEN if per_channel else Scheme.FP8
    case = CaseSpec(
        layer=layer_spec(ProjectionKind.QKV, scheme, WIDTHS, K),
        projection=ProjectionKind.QKV,
        source=SyntheticSource(seed=SEED),
        transport="memfd" if defect in DEFECTS and DEFECTS[defect].sealed else "memfd-writable",
        m_values=(1, 2, 17),
        daemon_killed=defect == "loss-of-the-daemon-unnoticed",
    )
    if defect in _OF_A_REFUSED_SCHEME:
        refusal = Refusal(error="RefusedScheme", names=(case.layer.name, "NVFP4"), every_route=True)
        source = ForeignSource(seed=SEED, quant_algo="NVFP4")
        return dataclasses.replace(case, source=source, refusal=refusal)
    if defect in _OF_A_REFUSED_KERNEL:
        refusal = Refusal(error="RefusedKernel", names=(case.layer.name,), every_route=False)
        return dataclasses.replace(case, kernel="torch-scaled-mm", refusal=refusal)
    if defect in _OF_ANOTHER_KEY:
        refusal = Refusal(error="KeyMismatch", names=("kernel:",), every_route=False)
        return dataclasses.replace(case, daemon_kernel="torch-scaled-mm", refusal=refusal)
    return case


def detections(names: Iterable[str]) -> Iterator[Detection]:
    """Plant each defect once, in order; a case is also proven without a defect, once."""
    without: dict[CaseSpec, CaseRecord] = {}
    with Prover() as prover:
        for name in names:
            case = defect_case(name)
            if case not in without:
                without[case] = _proven(prover, case, None)
            control = control_record(name, _proven(prover, case, name))
            yield Detection(control, without[case].holds)


def _proven(prover: Prover, case: CaseSpec, defect: str | None) -> CaseRecord:
    folder = make_scratch()
    try:
        seconds = HANG_SECONDS if defect == "hang" else PHASE_SECONDS
        return prover.prove(control_request(case, defect, folder, "power", "", seconds))
    finally:
        remove_scratch(folder)
