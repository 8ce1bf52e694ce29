"""The twin of a layer case: loadproof's own layers through `prove_twin`, as anybody's would go."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from .checkpoint.layers import checked_projections
from .errors import LoadproofError
from .formats import Layout, ProcessedLayer
from .inputs import make_inputs
from .kernels import Kernel, make_kernel
from .layers import FusedFp8Linear
from .loaders import process_layer
from .one_thread import one_thread
from .outcome import Outcome
from .record import TwinRecord
from .spec import CaseSpec, LayerSpec
from .twin import TwinFailure, TwinProof, prove_twin


class FusedFp8Module(torch.nn.Module):
    """A fused FP8 layer: loaded tensors, and once processed, its tensors as buffers and its layout."""

    def __init__(self, spec: LayerSpec, kernel: Kernel) -> None:
        super().__init__()
        self._spec = spec
        self._kernel = kernel
        self._loaded: dict[str, torch.Tensor] = {}
        self._layout: Layout | None = None

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the checkpoint's tensors, by checkpoint name."""
        self._loaded = {name: tensor.clone() for name, tensor in tensors.items()}

    def process(self, origin: Path, device: str) -> None:
        """Post-load processing, and to the device; raises CheckpointError."""
        self._hold(process_layer(self._spec, self._loaded, origin).to(device))

    def attach(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take processed tensors, and restore the layout that they do not carry."""
        self._hold(restore(self._spec, tensors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[M, logical_k] to [M, logical_width], both in the output dtype."""
        if self._layout is None:
            raise RuntimeError(f"{self._spec.name} was neither processed nor attached")
        held = ProcessedLayer(spec=self._spec, layout=self._layout, tensors=dict(self.named_buffers()))
        layer = FusedFp8Linear(held, self._kernel)
        return layer.multiply(*layer.quantize(x))

    def _hold(self, processed: ProcessedLayer) -> None:
        for name, tensor in processed.tensors.items():
            self.register_buffer(name, tensor)
        self._layout = processed.layout


def restore(spec: LayerSpec, tensors: Mapping[str, torch.Tensor]) -> ProcessedLayer:
    """The processed layer on another's tensors; nothing is copied."""
    return ProcessedLayer(spec=spec, layout=Layout.of(spec), tensors=dict(tensors))


def twin_record(case: CaseSpec, tensors: Mapping[str, torch.Tensor], origin: Path, run_id: str) -> TwinRecord:
    """Run a case's twin on its device; an error of loadproof's own is the record's verdict.

    Args:
        case: of transport `alias`.
        tensors: the layer's, by checkpoint name, on the CPU.
        origin: of the tensors, for messages.
        run_id: of the run that asks.
    """
    started, kernel = time.perf_counter(), make_kernel(case.kernel)
    record = partial(TwinRecord, run_id=run_id, case=case.describe(), kernels=kernel.launched)
    try:
        with one_thread():
            proof = _prove(case, kernel, tensors, origin)
    except TwinFailure as failure:
        ended = partial(record, verdict=Outcome(failure.verdict), detail=str(failure))
    except LoadproofError as error:
        ended = partial(record, verdict=error.outcome, detail=f"{error.type_name}: {error}")
    else:
        ended = partial(record, verdict=Outcome.PASS, compared=proof.compared)
    return ended(duration_ms=round((time.perf_counter() - started) * 1e3, 3))


def _prove(case: CaseSpec, kernel: Kernel, tensors: Mapping[str, torch.Tensor], origin: Path) -> TwinProof:
    inputs = make_inputs(case, checked_projections(case.layer, tensors, origin))
    return prove_twin(
        make=lambda: FusedFp8Module(case.layer, kernel),
        load=lambda layer: layer.load(tensors),
        process=lambda layer: layer.process(origin, case.device),
        attach=FusedFp8Module.attach,
        apply=FusedFp8Module.forward,
        inputs=[x.to(case.device) for x in inputs.values()],
    )
