"""The four-way proof of one case: run the four routes in order, observe, check, record."""

import time
from pathlib import Path
from types import TracebackType

from .checkpoint.digest import content_digest
from .checkpoint.layers import ProjectionTensors, checked_projections, tensor_names
from .checkpoint.reader import CheckpointReader
from .errors import CheckpointChanged
from .inputs import make_inputs
from .kernels import make_kernel
from .launch import Forkserver
from .observation import CaseObservation
from .record import CaseRecord
from .recording import record_case
from .runner import ProofRequest, Runner
from .scratch import make_scratch, remove_scratch, save_tensors
from .spec import LayerSpec
from .subjects.builtin import BuiltinSubject
from .subjects.protocol import Subject

__all__ = ["ProofRequest", "Prover", "prove"]


def read_projections(layer: LayerSpec, checkpoint: Path) -> list[ProjectionTensors]:
    """The layer's tensors as the harness itself reads them; raises CheckpointError."""
    with CheckpointReader(checkpoint) as reader:
        return checked_projections(layer, reader.load(tensor_names(layer)), checkpoint)


class Prover:
    """A forkserver and the built-in subject; a context manager that leaves no process behind."""

    def __enter__(self) -> "Prover":
        self._forkserver = Forkserver()
        self._subject = BuiltinSubject(self._forkserver)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forkserver.close()

    def prove(self, request: ProofRequest) -> CaseRecord:
        """See `prove`."""
        return prove(request, self._subject)


def prove(request: ProofRequest, subject: Subject) -> CaseRecord:
    """Run the four routes and all checks; every way a route can end is in the record.

    Raises:
        CheckpointError: the checkpoint cannot be used, or changed while the routes ran.
    """
    started = time.monotonic()
    # Short and private: a socket path has 107 bytes, and other users have no business in it.
    scratch = make_scratch()
    try:
        projections = read_projections(request.case.layer, request.checkpoint)
        inputs = make_inputs(request.case, projections)
        save_tensors(inputs, scratch / "inputs.safetensors")
        runner = Runner(request, subject, scratch)
        routes, daemon = runner.run()
        seen = CaseObservation(
            case=request.case,
            routes=routes,
            daemon=daemon,
            projections=projections,
            inputs=inputs,
            kernel_accepts_preprocessed=make_kernel(request.case.kernel).accepts_preprocessed,
        )
        _require_unchanged(request)
        return record_case(request, seen, (time.monotonic() - started) * 1e3)
    finally:
        remove_scratch(scratch)


def _require_unchanged(request: ProofRequest) -> None:
    content = content_digest(request.checkpoint)
    if content != request.content:
        raise CheckpointChanged(
            request.checkpoint,
            expected=f"content {request.content}, as before the first route",
            found=f"content {content} after the last",
            remedy="Something writes to the checkpoint while it is validated; stop that and run again.",
        )
