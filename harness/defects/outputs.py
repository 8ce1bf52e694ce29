"""Planted in what an engine computes."""

from collections.abc import Callable

import torch

from .. import engine
from ..kernels.reference import ReferenceKernel
from ..layers import FusedFp8Linear
from ..outcome import Outcome
from ..witness.maps import memory_identity
from .registry import defect, replace


@defect("outputs_exact", Outcome.BYTES)
def negative_zero(process: str, loader: str) -> None:
    """The attached engine's kernel gives -0 where the others give +0; equal as values."""
    if process == "engine" and loader == "cache":
        _edit_outputs(lambda out: torch.where(out == 0, torch.full_like(out, -0.0), out))


@defect("gemm_bounded", Outcome.BOUND)
def output_scaled_by_ten_percent(process: str, loader: str) -> None:
    """Every route's kernel is off by 10 %: equal four times, and wrong four times."""
    if process == "engine":
        _edit_outputs(lambda out: (out * 1.1).to(out.dtype))


def _edit_outputs(edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
    original = ReferenceKernel.scaled_mm
    replace(ReferenceKernel, "scaled_mm", lambda *arguments: edit(original(*arguments)))


@defect("activation_exact", Outcome.BYTES)
def activation_scale_off_by_one_ulp(process: str, loader: str) -> None:
    """Activations are quantised with the next larger scale, in every engine."""
    original = FusedFp8Linear.quantize

    def quantize(self: FusedFp8Linear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quantized, scale = original(self, x)
        return quantized, torch.nextafter(scale, torch.full_like(scale, torch.inf))

    if process == "engine":
        replace(FusedFp8Linear, "quantize", quantize)


@defect("kernel_witnessed", Outcome.WRONG_KERNEL)
def another_kernel(process: str, loader: str) -> None:
    """The attached engine runs another kernel that happens to give the same bytes."""
    if process == "engine" and loader == "cache":
        replace(ReferenceKernel, "_note", lambda self, name: self.launched.append("some_other_gemm"))


@defect("gemm_bounded", Outcome.DTYPE)
def output_in_float32(process: str, loader: str) -> None:
    """Every route's kernel leaves its output in float32, and has the right values."""
    if process == "engine":
        _edit_outputs(lambda out: out.to(torch.float32))


@defect("gemm_bounded", Outcome.BOUND)
def output_one_step_off(process: str, loader: str) -> None:
    """Every route's kernel gives the neighbour of the nearest number."""
    if process == "engine":
        _edit_outputs(lambda out: torch.where(out != 0, (out.view(torch.int16) + 1).view(out.dtype), out))


@defect("outputs_exact", Outcome.BYTES)
def wrong_activations_on_fallback(process: str, loader: str) -> None:
    """The fallback route flips the sign of every activation; the others do not."""
    original = engine.run_layer

    def run(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        private = "memfd" not in memory_identity(layer.processed.tensors["weight"])[0]
        return original(layer, {n: -x for n, x in inputs.items()} if private else inputs)

    if process == "engine" and loader == "cache":
        replace(engine, "run_layer", run)


@defect("kernel_witnessed", Outcome.WRONG_KERNEL)
def a_second_kernel(process: str, loader: str) -> None:
    """The attached engine runs another kernel beside its own."""
    original = ReferenceKernel._note

    def note(self: ReferenceKernel, kernel: str) -> None:
        original(self, kernel)
        original(self, "some_other_gemm")

    if process == "engine" and loader == "cache":
        replace(ReferenceKernel, "_note", note)
