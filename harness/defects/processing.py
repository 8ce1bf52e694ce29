"""Planted in post-load processing and in restoring its layout."""

import dataclasses

import torch

from ..formats import FORMATS, ProcessedLayer
from ..formats.e4m3 import E4M3, dequantize_fp16, quantize_static
from ..outcome import Outcome
from ..spec import Scheme
from .registry import defect, edit_attached, edit_processed, replace, with_tensors


@defect("layout_restored", Outcome.LAYOUT)
def weight_transposed_twice(process: str, loader: str) -> None:
    """The attached engine repeats the transposition that the daemon has already done."""
    if process == "engine":
        edit_attached(lambda layer: with_tensors(layer, weight=layer.tensors["weight"].t()))


@defect("processed_exact", Outcome.PROCESSED)
def requantised_again(process: str, loader: str) -> None:
    """The attached engine requantises the daemon's weight once more, with a projection's old scale."""

    def again(layer: ProcessedLayer) -> ProcessedLayer:
        scale = layer.tensors["weight_scale"]
        if layer.spec.scheme is not Scheme.FP8:
            scale = scale.max()
        weight = layer.tensors["weight"].t()
        return with_tensors(layer, weight=quantize_static(dequantize_fp16(weight, scale * 0.5), scale).t())

    if process == "engine":
        edit_attached(again)


@defect("layout_restored", Outcome.LAYOUT)
def padded_twice(process: str, loader: str) -> None:
    """The attached engine pads a width that is padded already."""

    def again(layer: ProcessedLayer) -> ProcessedLayer:
        rows = layer.tensors["weight"].t().view(torch.uint8)
        wider = torch.nn.functional.pad(rows, (0, 0, 0, 16)).view(E4M3).t()
        scale = layer.tensors["weight_scale"]
        wider_scale = torch.nn.functional.pad(scale, (0, 16), value=1.0) if scale.dim() else scale
        return with_tensors(layer, weight=wider, weight_scale=wider_scale)

    if process == "engine":
        edit_attached(again)


@defect("outputs_exact", Outcome.SHAPE)
def logical_width_lost(process: str, loader: str) -> None:
    """The attached engine takes the padded width for the logical one."""

    def lose(layer: ProcessedLayer) -> ProcessedLayer:
        layout = dataclasses.replace(layer.layout, logical_width=layer.layout.padded_width)
        return dataclasses.replace(layer, layout=layout)

    if process == "engine":
        edit_attached(lose)


@defect("processed_exact", Outcome.PROCESSED)
def channel_scales_padded_with_zero(process: str, loader: str) -> None:
    """Post-load processing pads channel scales with 0 instead of 1, in every process."""

    def pad(layer: ProcessedLayer) -> ProcessedLayer:
        scale = layer.tensors["weight_scale"].clone()
        if scale.dim():
            scale[layer.layout.logical_width :] = 0
        return with_tensors(layer, weight_scale=scale)

    edit_processed(pad)


@defect("processed_exact", Outcome.PROCESSED)
def first_input_scale(process: str, loader: str) -> None:
    """The input scale of projection 0 is taken instead of the largest, in every process."""
    form = FORMATS[Scheme.FP8]
    replace(form, "largest_input_scale", lambda projections: projections[0].input_scale)


@defect("processed_exact", Outcome.PROCESSED)
def flipped_bit_in_padding(process: str, loader: str) -> None:
    """One bit of a padded row is set in the daemon, before it digests what it serves."""

    def flip(layer: ProcessedLayer) -> ProcessedLayer:
        rows = layer.tensors["weight"].t().contiguous().view(torch.uint8).clone()
        rows[-1, 0] ^= 1
        return with_tensors(layer, weight=rows.view(E4M3).t())

    if process == "daemon":
        edit_processed(flip)


@defect("processed_exact", Outcome.PROCESSED)
def weight_scale_off_by_ten_percent(process: str, loader: str) -> None:
    """Post-load processing scales the weight scale by 1.1, in every process alike."""
    edit_processed(lambda layer: with_tensors(layer, weight_scale=layer.tensors["weight_scale"] * 1.1))
