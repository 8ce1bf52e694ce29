"""Projections of a transformers model over one fused linear layer: one GEMM for all that share an input.

The model's own forward stays as it is: it calls q, k and v one after the other with the same tensor. The
first of them computes for all, and the others take their columns of that result.
"""

import torch
from torch import nn

from ..errors import BrokenFusion
from ..layers import FusedFp8Linear


class FusedGroup:
    """The projections of one fused layer, and the result that they share within one forward pass."""

    def __init__(self, linear: FusedFp8Linear) -> None:
        """Take the fused layer, processed or attached."""
        self.linear = linear
        self.gemms = 0
        """How often the layer was multiplied."""
        self._input: torch.Tensor | None = None
        self._output: torch.Tensor | None = None
        self._next = 0

    def project(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The columns of projection `index`: [..., logical_k] to [..., its logical width], packed.

        Raises:
            BrokenFusion: the projections are called out of order, or not with one and the same tensor.
        """
        projections = self.linear.processed.spec.projections
        if index != self._next or (index and x is not self._input):
            self._raise(index, x)
        if index == 0:
            self._input, self._output = x, self._multiply(x)
        assert self._output is not None
        start = sum(each.logical_width for each in projections[:index])
        width = projections[index].logical_width
        own = self._output[:, start : start + width].contiguous().reshape(*x.shape[:-1], width)
        self._next = (index + 1) % len(projections)
        if self._next == 0:
            self._input = self._output = None
        return own

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        self.gemms += 1
        return self.linear.multiply(*self.linear.quantize(x.reshape(-1, x.shape[-1])))

    def _raise(self, index: int, x: torch.Tensor) -> None:
        spec = self.linear.processed.spec
        found = "another tensor" if index == self._next else f"{spec.projections[index].name}"
        raise BrokenFusion(
            spec.name,
            expected=f"{spec.projections[self._next].name} next, with the tensor of the first projection",
            found=f"{found}, {list(x.shape)}",
            remedy="Correct the architecture's groups: only projections of one tensor can be fused.",
        )


class FusedProjection(nn.Module):
    """Stands in a model where a linear layer stood; holds no tensors of its own."""

    def __init__(self, group: FusedGroup, index: int) -> None:
        super().__init__()
        self.group = group
        self.index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., logical_k] to [..., the projection's logical width]."""
        return self.group.project(self.index, x)

    def extra_repr(self) -> str:
        """Which projection of which layer, and how it is laid out: part of a model's description."""
        processed = self.group.linear.processed
        name = processed.spec.projections[self.index].name
        return f"{name}, {processed.spec.to_json()}, {processed.layout.to_json()}"
