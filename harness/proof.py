"""The four-way proof of one case: run the four routes in order, observe, check, record."""

import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from torch import Tensor

from .checkpoint.digest import content_digest
from .checkpoint.layers import ProjectionTensors, checked_projections, tensor_names
from .checkpoint.reader import CheckpointReader
from .errors import CheckpointChanged, LoadproofError
from .inputs import make_inputs
from .kernels import kernel_type
from .launch import Forkserver
from .model_spec import Asked, ModelCaseSpec
from .models.observe import observe_model
from .observation import CaseObservation
from .one_thread import one_thread
from .record import CaseRecord, ErrorRecord
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
    """Run the four routes and all checks; every way that a case can end is in the record.

    Raises:
        OutputUnwritable: no folder can be made below TMPDIR.
    """
    # The first engine meets the same error again, and says so in the evidence.
    with suppress(LoadproofError):
        subject.prepare(request.case)
    started = time.monotonic()
    # Short and private: a socket path has 107 bytes, and other users have no business in it.
    scratch = make_scratch()
    try:
        with one_thread():
            seen = _observe(request, Runner(request, subject, scratch), scratch)
            return record_case(request, seen, (time.monotonic() - started) * 1e3)
    finally:
        remove_scratch(scratch)


def _observe(request: ProofRequest, runner: Runner, scratch: Path) -> CaseObservation:
    seen = CaseObservation(case=request.case, kernel=kernel_type(request.case.kernel), routes=runner.seen)
    try:
        asked, inputs = _prepare(seen, request)
        save_tensors(inputs, scratch / "inputs.safetensors")
        seen.daemon = runner.run(asked)
        _require_unchanged(request)
    except LoadproofError as error:
        seen.error, seen.outcome = ErrorRecord.of(error), error.outcome
    return seen


def _prepare(seen: CaseObservation, request: ProofRequest) -> tuple[Asked, dict[str, Tensor]]:
    """Read what the checkpoint holds into `seen`; returns what is asked of the routes, and their inputs."""
    if isinstance(request.case, ModelCaseSpec):
        seen.model = observe_model(request.case.model, request.checkpoint)
        contents = seen.model.contents
        asked = Asked(layers=contents.layers, plain=contents.plain, new_tokens=seen.model.new_tokens)
        return asked, {"prompts": seen.model.prompts.ids}
    seen.projections = read_projections(request.case.layer, request.checkpoint)
    seen.inputs = make_inputs(request.case, seen.projections)
    return Asked(layers=(request.case.layer,)), seen.inputs


def _require_unchanged(request: ProofRequest) -> None:
    content = content_digest(request.checkpoint)
    if content != request.content:
        raise CheckpointChanged(
            request.checkpoint,
            expected=f"content {request.content}, as before the first route",
            found=f"content {content} after the last",
            remedy="Something writes to the checkpoint while it is validated; stop that and run again.",
        )
