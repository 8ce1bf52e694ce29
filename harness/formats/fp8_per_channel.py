"""ModelOpt `FP8_PER_CHANNEL_PER_TOKEN`: static scale per output channel, dynamic scale per token."""

from collections.abc import Sequence

import torch

from ..checkpoint.layers import ProjectionTensors
from ..spec import LayerSpec, Scheme
from .e4m3 import quantize_per_token
from .padding import fused_bias, fused_weight, padded_channel_scale, weight_and_bias
from .protocol import Layout, ProcessedLayer, TensorLayout


class PerChannelFp8:
    """Scales are kept as they are; only fused, transposed and padded."""

    scheme = Scheme.FP8_PER_CHANNEL_PER_TOKEN

    def tensors_of(self, layer: LayerSpec) -> dict[str, TensorLayout]:
        """See `Format.tensors_of`."""
        scale = TensorLayout(dtype=torch.float32, shape=(layer.padded_width,), stride=(1,))
        return weight_and_bias(layer) | {"weight_scale": scale}

    def process(self, layer: LayerSpec, projections: Sequence[ProjectionTensors]) -> ProcessedLayer:
        """See `Format.process`; no arithmetic touches the weight or its scales."""
        scale = torch.cat([p.weight_scale for p in projections])
        tensors = {
            "weight": fused_weight([p.weight for p in projections], layer),
            "weight_scale": padded_channel_scale(scale, layer),
            **fused_bias(layer, projections),
        }
        return ProcessedLayer(spec=layer, layout=Layout.of(layer), tensors=tensors)

    def quantize_activation(
        self, x: torch.Tensor, processed: ProcessedLayer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Format.quantize_activation`; the scale is [M, 1]."""
        return quantize_per_token(x)
