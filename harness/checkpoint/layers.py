"""The tensors of one fused layer: their names, and checks of what was loaded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import BadScale, MissingTensor, WrongTensor
from ..spec import LayerSpec, Projection, Scheme

BIAS_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
REMEDY = "Export the checkpoint again, or ask for the layer as the checkpoint holds it."
OF_THE_KV_CACHE = ("k_scale", "v_scale", "k_bias", "v_bias", "output_scale")
"""What may stand beside a projection without being part of it; see `kv_scales`."""
NAN_CODE = 0x7F
"""E4M3 has one NaN of either sign: 0x7f and 0xff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionTensors:
    """One projection as stored, checked; scale shapes are normalised."""

    projection: Projection
    weight: torch.Tensor
    """[logical_width, logical_k], float8_e4m3fn, without NaN."""
    weight_scale: torch.Tensor
    """float32: () for FP8, [logical_width] per channel."""
    input_scale: torch.Tensor | None
    """float32 (); None where activations are scaled per token."""
    bias: torch.Tensor | None
    """[logical_width], bfloat16, float16 or float32."""


def tensor_names(layer: LayerSpec) -> list[str]:
    """The names of all tensors that the layer needs, projection by projection."""
    suffixes = ["weight", "weight_scale"]
    suffixes += ["input_scale"] if layer.scheme is Scheme.FP8 else []
    suffixes += ["bias"] if layer.bias else []
    return [f"{projection.name}.{suffix}" for projection in layer.projections for suffix in suffixes]


def require_nothing_more(layers: Sequence[LayerSpec], names: Iterable[str], origin: Path) -> None:
    """Raise WrongTensor where a projection has tensors that its scheme does not use.

    A bias, a pre-quantisation scale or a second weight scale that nobody reads would change every output.

    Args:
        layers: what is asked.
        names: of all tensors of the checkpoint.
        origin: file or folder that the message names.
    """
    used: dict[str, set[str]] = {}
    for layer in layers:
        asked = set(tensor_names(layer))
        for projection in layer.projections:
            # Where several layers ask for one, what only some of them use is read by none of the others.
            used[projection.name] = asked & used.get(projection.name, asked)
    for name in names:
        module, _, suffix = name.rpartition(".")
        if module in used and name not in used[module] and suffix not in OF_THE_KV_CACHE:
            raise wrong(
                f"{origin}: {name}", f"only {', '.join(sorted(used[module]))}", "a tensor beside them"
            )


def checked_projections(
    layer: LayerSpec, tensors: Mapping[str, torch.Tensor], origin: Path
) -> list[ProjectionTensors]:
    """Check the layer's tensors against its scheme.

    Args:
        layer: what is asked.
        tensors: at least `tensor_names(layer)`.
        origin: file or folder that the messages name.

    Returns:
        One a projection, in the layer's order; weights share memory with `tensors`.

    Raises:
        MissingTensor: one is not in `tensors`.
        WrongTensor: another dtype or shape, or a weight that is NaN.
        BadScale: a scale is NaN, infinite, zero, negative, or too small to be inverted.
    """
    return [_checked(layer, projection, tensors, origin) for projection in layer.projections]


def _checked(
    layer: LayerSpec, projection: Projection, tensors: Mapping[str, torch.Tensor], origin: Path
) -> ProjectionTensors:
    width = projection.logical_width
    weight = _weight(*_taken(projection, "weight", tensors, origin), (width, layer.logical_k))
    weight_scale, input_scale = checked_scales(layer, projection, tensors, origin)
    return ProjectionTensors(
        projection=projection,
        weight=weight,
        weight_scale=weight_scale,
        input_scale=input_scale,
        bias=_bias(*_taken(projection, "bias", tensors, origin), width) if layer.bias else None,
    )


def checked_scales(
    layer: LayerSpec, projection: Projection, tensors: Mapping[str, torch.Tensor], origin: Path
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight scale and input scale, as in `ProjectionTensors`; raises as `checked_projections`."""
    weight_scale, where = _taken(projection, "weight_scale", tensors, origin)
    if layer.scheme is not Scheme.FP8:
        return checked_scale(weight_scale, where, projection.logical_width), None
    input_scale = checked_scale(*_taken(projection, "input_scale", tensors, origin))
    return checked_scale(weight_scale, where), input_scale


def _taken(
    projection: Projection, suffix: str, tensors: Mapping[str, torch.Tensor], origin: Path
) -> tuple[torch.Tensor, str]:
    name = f"{projection.name}.{suffix}"
    where = f"{origin}: {name}"
    if name not in tensors:
        raise MissingTensor(where, expected="this tensor", found="none", remedy=REMEDY)
    return tensors[name], where


def wrong(where: str, expected: object, found: object) -> WrongTensor:
    """The error of a tensor that the scheme does not prescribe."""
    return WrongTensor(where, expected=expected, found=found, remedy=REMEDY)


def _weight(weight: torch.Tensor, where: str, shape: tuple[int, int]) -> torch.Tensor:
    if weight.dtype is not torch.float8_e4m3fn:
        raise wrong(where, "dtype torch.float8_e4m3fn", weight.dtype)
    if tuple(weight.shape) != shape:
        raise wrong(where, f"shape {list(shape)}", list(weight.shape))
    # numpy, whose one thread waits for no other: torch's take eight times as long where all cores are busy.
    magnitudes = weight.view(torch.uint8).numpy() & NAN_CODE
    if magnitudes.max(initial=0) == NAN_CODE:
        nan = torch.from_numpy(magnitudes == NAN_CODE)
        raise wrong(where, "weights that are numbers", f"NaN weights, the first at {_first(nan)}")
    return weight


def checked_scale(scale: torch.Tensor, where: str, channels: int | None = None) -> torch.Tensor:
    """Check a float32 scale and normalise its shape.

    Args:
        scale: () or (1,) per tensor; [channels] or [channels, 1] per channel, also of one channel.
        where: file and tensor, for messages.
        channels: None for a scale per tensor.

    Returns:
        () per tensor, [channels] per channel.

    Raises:
        WrongTensor: another dtype or shape.
        BadScale: NaN, infinite, zero, negative, or too small to be inverted.
    """
    if scale.dtype is not torch.float32:
        raise wrong(where, "dtype torch.float32", scale.dtype)
    allowed = [(), (1,)] if channels is None else [(channels,), (channels, 1)]
    if tuple(scale.shape) not in allowed:
        raise wrong(where, f"shape {' or '.join(str(list(s)) for s in allowed)}", list(scale.shape))
    # A denormal is positive and finite, but its inverse is not: requantisation multiplies by the inverse.
    usable = (scale > 0) & scale.isfinite() & scale.reciprocal().isfinite()
    if not usable.all():
        index = _first(~usable)
        value = scale[tuple(index)].item()
        raise BadScale(
            where,
            expected="positive finite scales",
            found=f"{_kind(value)} at index {index} (value {value:.9g})",
            remedy="Calibrate and export the checkpoint again.",
        )
    return scale.reshape(allowed[0])


def _bias(bias: torch.Tensor, where: str, width: int) -> torch.Tensor:
    if bias.dtype not in BIAS_DTYPES:
        raise wrong(where, f"dtype {', '.join(map(str, BIAS_DTYPES))}", bias.dtype)
    if tuple(bias.shape) != (width,):
        raise wrong(where, f"shape {[width]}", list(bias.shape))
    return bias


def _first(mask: torch.Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero()[0]]


def _kind(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "inf"
    if value == 0:
        return "zero"
    return "negative" if value < 0 else "denormal"
