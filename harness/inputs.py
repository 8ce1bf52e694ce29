"""Activations for a case: seeded, and made to reach the corners of quantisation."""

import torch

from .checkpoint.layers import ProjectionTensors
from .formats.e4m3 import E4M3_MAX
from .spec import CaseSpec
from .tensor_bytes import dtype_of

SEED = 1


def make_inputs(case: CaseSpec, projections: list[ProjectionTensors]) -> dict[str, torch.Tensor]:
    """`x.<m>` [m, logical_k] in the output dtype, for every M of the case.

    Values fill the range of the static input scale; some lie beyond it, so that clamping is seen. For
    m >= 2 the last row is zero, so that the floor of a per-token scale and the sign of zero are seen.
    """
    generator = torch.Generator().manual_seed(SEED)
    scales = [p.input_scale.item() for p in projections if p.input_scale is not None]
    spread = max(scales) * E4M3_MAX / 3 if scales else 1.0
    inputs: dict[str, torch.Tensor] = {}
    for m in case.m_values:
        x = torch.randn(m, case.layer.logical_k, generator=generator) * spread
        if m:
            x[0, 0] = 8 * spread
        if m >= 2:
            x[-1] = 0
        inputs[f"x.{m}"] = x.to(dtype_of(case.layer.out_dtype))
    return inputs
