"""ModelOpt `FP8`: static per-tensor weight scale and static input scale, one per projection.

Source: vLLM 0.33.0, the ModelOpt quantisation layer and its `requantize_with_max_scale`.
"""

from collections.abc import Sequence

import torch

from ..checkpoint.layers import ProjectionTensors
from ..errors import BadScale
from ..spec import LayerSpec, Scheme
from .e4m3 import E4M3, dequantize_fp16, quantize_static
from .padding import fused_bias, fused_weight, weight_and_bias
from .protocol import Layout, ProcessedLayer, TensorLayout


def requantized_to(scale: torch.Tensor, projection: ProjectionTensors) -> torch.Tensor:
    """The projection's E4M3 [N, K] weight, expressed in the fused layer's weight scale.

    Raises:
        BadScale: float16 cannot hold the projection's scale, or a weight times it.
    """
    half = projection.weight_scale.to(torch.float16)
    if not (torch.isfinite(half) and half > 0):
        raise _not_in_float16(projection, f"which rounds to {half.item():g}")
    # One scale for all weights sends each E4M3 code to another: the arithmetic is done once a code.
    codes = torch.arange(256, dtype=torch.uint8, device=projection.weight.device)
    wide = dequantize_fp16(codes.view(E4M3), projection.weight_scale)
    held = projection.weight.view(torch.uint8).flatten().to(torch.int32)
    # Infinity would become 448 times the largest scale: another weight, and no error.
    infinite = wide.isinf()
    if infinite.any() and infinite.index_select(0, held).any():
        raise _not_in_float16(projection, "which makes a weight infinite")
    requantized = quantize_static(wide, scale).view(torch.uint8).index_select(0, held)
    return requantized.view(projection.weight.shape).view(E4M3)


def _not_in_float16(projection: ProjectionTensors, found: str) -> BadScale:
    return BadScale(
        f"{projection.projection.name}.weight_scale",
        expected="a scale that float16 can hold, also times each weight: requantisation dequantises in it",
        found=f"{projection.weight_scale.item():.9g}, {found}",
        remedy="Export the fused projections with equal scales, or with scales between 6e-8 and 146.",
    )


class PerTensorFp8:
    """One weight scale and one input scale for the whole fused layer: the largest of each."""

    scheme = Scheme.FP8

    def tensors_of(self, layer: LayerSpec) -> dict[str, TensorLayout]:
        """See `Format.tensors_of`."""
        scale = TensorLayout(dtype=torch.float32, shape=(), stride=())
        return weight_and_bias(layer) | {"weight_scale": scale, "input_scale": scale}

    def process(self, layer: LayerSpec, projections: Sequence[ProjectionTensors]) -> ProcessedLayer:
        """See `Format.process`. Equal weight scales leave the weight's bytes untouched."""
        scales = torch.stack([p.weight_scale for p in projections])
        fused_scale = scales.max()
        if bool((scales == scales[0]).all()):
            weights = [p.weight for p in projections]
        else:
            weights = [requantized_to(fused_scale, p) for p in projections]
        tensors = {
            "weight": fused_weight(weights, layer),
            "weight_scale": fused_scale,
            "input_scale": self.largest_input_scale(projections),
            **fused_bias(layer, projections),
        }
        return ProcessedLayer(spec=layer, layout=Layout.of(layer), tensors=tensors)

    def largest_input_scale(self, projections: Sequence[ProjectionTensors]) -> torch.Tensor:
        """float32 (): the input is quantised once for all projections, so the largest scale rules."""
        return torch.stack([p.input_scale for p in projections if p.input_scale is not None]).max()

    def quantize_activation(
        self, x: torch.Tensor, processed: ProcessedLayer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Format.quantize_activation`; the scale is ()."""
        scale = processed.tensors["input_scale"]
        return quantize_static(x, scale), scale
