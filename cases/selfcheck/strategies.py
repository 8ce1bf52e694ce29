"""What the properties are tried on, and the one profile under which they are tried.

Examples follow from the test alone (`derandomize`), so that a red run is red again; and there is no
deadline, since torch warms up and some properties start processes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from loadproof.harness.checkpoint.layers import ProjectionTensors
from loadproof.harness.spec import LayerSpec, Projection, Scheme

settings.register_profile(
    "loadproof",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def examples(count: int) -> settings:
    """The profile with `count` examples."""
    return settings(settings.get_profile("loadproof"), max_examples=count)


FLOAT32_MAX = float(np.finfo(np.float32).max)
SMALLEST_SCALE = float(np.nextafter(np.float32(2.0**-128), np.float32(1)))
"""A denormal; the inverse of any smaller float32 is infinite, and the reader refuses it."""

any_float32 = st.floats(width=32)
legal_scales = st.floats(min_value=SMALLEST_SCALE, max_value=FLOAT32_MAX, width=32)
float16_scales = st.floats(min_value=2.0**-14, max_value=128.0, width=32)
"""Scales that float16 holds as normal numbers, and so small that 448 times them is finite in it."""
schemes = st.sampled_from(list(Scheme))
seeds = st.integers(0, 2**32 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
"""What a JSON document may hold; infinite numbers included, since `1e999` is JSON and reads as one."""


def any_codes(seed: int, rows: int, columns: int) -> torch.Tensor:
    """E4M3 [rows, columns] of every code but the two NaNs, evenly: extremes, denormals and -0 too."""
    codes = np.random.default_rng(seed).integers(0, 256, (rows, columns), dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] ^= 1
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


@st.composite
def layers(
    draw: st.DrawFn,
    *,
    scheme: st.SearchStrategy[Scheme] = schemes,
    widths: st.SearchStrategy[int] = st.integers(1, 70),  # noqa: B008  (strategies are values)
    most: int = 3,
) -> LayerSpec:
    """Fused layers of 1 to `most` projections, K from 1 to 70, with and without bias."""
    count = draw(st.integers(1, most))
    return LayerSpec(
        name="model.layers.0.fused",
        scheme=draw(scheme),
        projections=tuple(
            Projection(name=f"model.layers.0.part{i}", logical_width=draw(widths)) for i in range(count)
        ),
        logical_k=draw(st.integers(1, 70)),
        bias=draw(st.booleans()),
        out_dtype=draw(st.sampled_from(["bfloat16", "float16"])),
    )


@st.composite
def projections_of(
    draw: st.DrawFn, layer: LayerSpec, scale: st.SearchStrategy[float] = float16_scales
) -> list[ProjectionTensors]:
    """What a checkpoint holds of `layer`, as the reader hands it on."""
    static = layer.scheme is Scheme.FP8
    seed = draw(seeds)

    def scalar() -> torch.Tensor:
        return torch.tensor(draw(scale), dtype=torch.float32)

    def channels(n: int) -> torch.Tensor:
        drawn = draw(st.lists(scale, min_size=1, max_size=4))
        return torch.tensor(drawn, dtype=torch.float32).repeat(n // len(drawn) + 1)[:n]

    return [
        ProjectionTensors(
            projection=p,
            weight=any_codes(seed + i, p.logical_width, layer.logical_k),
            weight_scale=scalar() if static else channels(p.logical_width),
            input_scale=scalar() if static else None,
            bias=_bias(seed + i, p.logical_width) if layer.bias else None,
        )
        for i, p in enumerate(layer.projections)
    ]


@st.composite
def layers_with_tensors(draw: st.DrawFn, **options: Any) -> tuple[LayerSpec, list[ProjectionTensors]]:
    """A layer, and what its checkpoint holds; `options` as for `layers`."""
    layer = draw(layers(**options))
    return layer, draw(projections_of(layer))


def stored(projections: Sequence[ProjectionTensors]) -> dict[str, torch.Tensor]:
    """The projections by checkpoint name."""
    suffixes = ("weight", "weight_scale", "input_scale", "bias")
    held = {f"{p.projection.name}.{s}": getattr(p, s) for p in projections for s in suffixes}
    return {name: tensor for name, tensor in held.items() if tensor is not None}


def _bias(seed: int, n: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=n).astype(np.float32)).to(torch.bfloat16)


DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip

shapes: st.SearchStrategy[tuple[int, ...]] = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = DTYPES) -> torch.Tensor:
    """Any bytes as any dtype in any shape, zero-size and zero-dim included; NaNs of every payload."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(shapes)
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return torch.empty(shape, dtype=dtype)
    data = np.random.default_rng(draw(seeds)).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    raw = torch.from_numpy(data & 1 if dtype is torch.bool else data)
    return raw.view(dtype).reshape(shape)


tensor_dictionaries = st.dictionaries(names, tensors(), min_size=1, max_size=5)


def paths_into(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below `document`, containers too, in a fixed order."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    found: list[tuple[Any, ...]] = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += paths_into(value, (*path, key))
    return found


def edited(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], object]) -> None:
    """Apply `change(container, key)` to the value at `path`, in place."""
    *parents, last = path
    for key in parents:
        document = document[key]
    change(document, last)
