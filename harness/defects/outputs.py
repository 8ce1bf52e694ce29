"""Planted in what an engine computes."""

from collections.abc import Callable

import torch

from .. import engine
from ..formats.e4m3 import E4M3
from ..kernels import Kernel, make_kernel
from ..kernels.torch_scaled_mm import TorchScaledMm
from ..layers import FusedFp8Linear
from ..outcome import Outcome
from .registry import defect, is_attached, replace


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
    original = FusedFp8Linear.multiply
    replace(FusedFp8Linear, "multiply", lambda *arguments: edit(original(*arguments)))


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
    """The attached engine runs another kernel under the name and the key of its own."""

    def make_impostor(name: str) -> Kernel:
        impostor = TorchScaledMm()
        replace(impostor, "name", name)
        replace(impostor, "accepts_preprocessed", True)
        replace(impostor, "build_id", make_kernel(name).build_id)
        return impostor

    if process == "engine" and loader == "cache":
        replace(engine, "make_kernel", make_impostor)


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
        private = not is_attached(layer.processed.tensors["weight"])
        return original(layer, {n: -x for n, x in inputs.items()} if private else inputs)

    if process == "engine" and loader == "cache":
        replace(engine, "run_layer", run)


@defect("kernel_witnessed", Outcome.WRONG_KERNEL)
def a_second_kernel(process: str, loader: str) -> None:
    """The attached engine runs another kernel beside its own."""
    original = FusedFp8Linear.multiply

    def multiply(self: FusedFp8Linear, quantized: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        other, one = TorchScaledMm(), torch.ones((), device=quantized.device)
        square = torch.ones(16, 16, device=quantized.device).to(E4M3)
        other.scaled_mm(square, square.t(), one, one, None, torch.bfloat16)
        self.kernel.launched += other.launched
        return original(self, quantized, scale)

    if process == "engine" and loader == "cache":
        replace(FusedFp8Linear, "multiply", multiply)
