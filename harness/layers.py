"""The fused FP8 linear layer: a processed layer and a kernel."""

import torch

from .formats import FORMATS, ProcessedLayer
from .formats.padding import padded_activation
from .kernels import Kernel
from .tensor_bytes import dtype_of


class FusedFp8Linear:
    """One GEMM for all projections that share an input."""

    def __init__(self, processed: ProcessedLayer, kernel: Kernel) -> None:
        """Take tensors and layout, from post-load processing or from an attachment."""
        self.processed = processed
        self.kernel = kernel

    def quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, logical_k] to E4M3 [M, padded_k] and its scale, () or [M, 1]."""
        form = FORMATS[self.processed.spec.scheme]
        quantized, scale = form.quantize_activation(x, self.processed)
        return padded_activation(quantized, self.processed.layout.padded_k), scale

    def multiply(self, quantized: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """E4M3 [M, padded_k] to the output [M, logical_width], packed."""
        tensors = self.processed.tensors
        out = self.kernel.scaled_mm(
            quantized,
            tensors["weight"],
            scale,
            tensors["weight_scale"],
            tensors.get("bias"),
            dtype_of(self.processed.spec.out_dtype),
        )
        return out[:, : self.processed.layout.logical_width].contiguous()
