"""Planted defects: named patches, each with the check that must catch it.

A harness that has never been seen to fail proves nothing. Each defect is planted in the process where
it would really happen, by replacing one function there; nothing else of the run is told.
"""

import ctypes
import dataclasses
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import engine, loaders
from .cache import key, manifest
from .formats import FORMATS, ProcessedLayer
from .formats.e4m3 import E4M3, dequantize_fp16, quantize_static
from .kernels.reference import ReferenceKernel
from .layers import FusedFp8Linear
from .outcome import Outcome
from .spec import Scheme
from .witness.maps import memory_identity

Edit = Callable[[ProcessedLayer], ProcessedLayer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One planted defect."""

    name: str
    caught_by: str
    """The check that must not pass."""
    verdict: Outcome
    """The word that this check must say."""
    plant: Callable[[str, str], None]
    """Called with the kind of process (`daemon`, `engine`) and, in engines, the loader."""


DEFECTS: dict[str, Defect] = {}


def plant(name: str, process: str, loader: str = "disk") -> None:
    """Plant a defect in this process; raises KeyError for an unknown name."""
    DEFECTS[name].plant(process, loader)


def _defect(
    caught_by: str, verdict: Outcome
) -> Callable[[Callable[[str, str], None]], Callable[[str, str], None]]:
    def register(function: Callable[[str, str], None]) -> Callable[[str, str], None]:
        name = function.__name__.strip("_").replace("_", "-")
        DEFECTS[name] = Defect(name=name, caught_by=caught_by, verdict=verdict, plant=function)
        return function

    return register


def _edit_attached(edit: Edit) -> None:
    """Change every layer that this process restores from the daemon's memory."""
    original = manifest.restore
    _replace(loaders, "restore", lambda *arguments: edit(original(*arguments)))


def _edit_processed(edit: Edit) -> None:
    """Change every layer that this process processes after loading it from disk."""
    for form in FORMATS.values():
        original = form.process
        _replace(form, "process", lambda *arguments, original=original: edit(original(*arguments)))


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _with(layer: ProcessedLayer, **tensors: torch.Tensor) -> ProcessedLayer:
    return dataclasses.replace(layer, tensors=layer.tensors | tensors)


@_defect("layout_restored", Outcome.LAYOUT)
def weight_transposed_twice(process: str, loader: str) -> None:
    """The attached engine repeats the transposition that the daemon has already done."""
    if process == "engine":
        _edit_attached(lambda layer: _with(layer, weight=layer.tensors["weight"].t()))


@_defect("processed_exact", Outcome.PROCESSED)
def requantised_again(process: str, loader: str) -> None:
    """The attached engine requantises the daemon's weight once more, with a projection's old scale."""

    def again(layer: ProcessedLayer) -> ProcessedLayer:
        scale = layer.tensors["weight_scale"]
        if layer.spec.scheme is not Scheme.FP8:
            scale = scale.max()
        weight = layer.tensors["weight"].t()
        return _with(layer, weight=quantize_static(dequantize_fp16(weight, scale * 0.5), scale).t())

    if process == "engine":
        _edit_attached(again)


@_defect("layout_restored", Outcome.LAYOUT)
def padded_twice(process: str, loader: str) -> None:
    """The attached engine pads a width that is padded already."""

    def again(layer: ProcessedLayer) -> ProcessedLayer:
        rows = layer.tensors["weight"].t().view(torch.uint8)
        wider = torch.nn.functional.pad(rows, (0, 0, 0, 16)).view(E4M3).t()
        scale = layer.tensors["weight_scale"]
        wider_scale = torch.nn.functional.pad(scale, (0, 16), value=1.0) if scale.dim() else scale
        return _with(layer, weight=wider, weight_scale=wider_scale)

    if process == "engine":
        _edit_attached(again)


@_defect("outputs_exact", Outcome.SHAPE)
def logical_width_lost(process: str, loader: str) -> None:
    """The attached engine takes the padded width for the logical one."""

    def lose(layer: ProcessedLayer) -> ProcessedLayer:
        layout = dataclasses.replace(layer.layout, logical_width=layer.layout.padded_width)
        return dataclasses.replace(layer, layout=layout)

    if process == "engine":
        _edit_attached(lose)


@_defect("processed_exact", Outcome.PROCESSED)
def channel_scales_padded_with_zero(process: str, loader: str) -> None:
    """Post-load processing pads channel scales with 0 instead of 1, in every process."""

    def pad(layer: ProcessedLayer) -> ProcessedLayer:
        scale = layer.tensors["weight_scale"].clone()
        if scale.dim():
            scale[layer.layout.logical_width :] = 0
        return _with(layer, weight_scale=scale)

    _edit_processed(pad)


@_defect("processed_exact", Outcome.PROCESSED)
def first_input_scale(process: str, loader: str) -> None:
    """The input scale of projection 0 is taken instead of the largest, in every process."""
    form = FORMATS[Scheme.FP8]
    _replace(form, "largest_input_scale", lambda projections: projections[0].input_scale)


@_defect("pointers_shared", Outcome.NOT_SHARED)
def copied_by_value(process: str, loader: str) -> None:
    """The attached engine clones what it should share; every byte and digest is right."""

    def copy(layer: ProcessedLayer) -> ProcessedLayer:
        copies = {n: t.t().clone().t() if t.dim() == 2 else t.clone() for n, t in layer.tensors.items()}
        return dataclasses.replace(layer, tensors=copies)

    if process == "engine":
        _edit_attached(copy)


@_defect("route_witnessed", Outcome.WRONG_ROUTE)
def silent_disk_load_by_read(process: str, loader: str) -> None:
    """The engine reads the weight files beside attaching, and keeps quiet about it."""
    _touch_weights(process, loader, lambda file: file.read_bytes())


@_defect("route_witnessed", Outcome.WRONG_ROUTE)
def silent_disk_load_by_mmap(process: str, loader: str) -> None:
    """As above, through mmap, which /proc/self/io does not see."""

    def map_it(file: Path) -> None:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped[-1]

    _touch_weights(process, loader, map_it)


def _touch_weights(process: str, loader: str, touch: Callable[[Path], object]) -> None:
    if process != "engine" or loader != "cache":
        return
    original = engine.load

    def load(job: engine.EngineJob, kernel: Any) -> loaders.Loaded:
        for file in job.checkpoint.glob("*.safetensors"):
            touch(file)
        return original(job, kernel)

    _replace(engine, "load", load)


@_defect("route_witnessed", Outcome.WRONG_ROUTE)
def disk_instead_of_attach(process: str, loader: str) -> None:
    """The engine loads from disk in an ipc route and claims to have attached; it meets the decoy."""
    if process == "engine" and loader == "cache":
        original = loaders.load_from_cache

        def load(*arguments: Any, **named: Any) -> loaders.Loaded:
            loaded = original(*arguments, **named)
            if loaded.route_taken != "attach":
                return loaded
            read = loaders.read_layers(arguments[0], arguments[1])
            return dataclasses.replace(loaded, layers=read.layers)

        _replace(engine, "load_from_cache", load)


@_defect("processed_exact", Outcome.PROCESSED)
def flipped_bit_in_padding(process: str, loader: str) -> None:
    """One bit of a padded row is set in the daemon, before it digests what it serves."""

    def flip(layer: ProcessedLayer) -> ProcessedLayer:
        rows = layer.tensors["weight"].t().contiguous().view(torch.uint8).clone()
        rows[-1, 0] ^= 1
        return _with(layer, weight=rows.view(E4M3).t())

    if process == "daemon":
        _edit_processed(flip)


@_defect("outputs_exact", Outcome.BYTES)
def header_only_key(process: str, loader: str) -> None:
    """The daemon holds a stale checkpoint with equal headers, and the key does not cover content."""
    original = key.make_key

    def make_key(*arguments: Any) -> Any:
        return original(*arguments) | {"content": "headers only"}

    from . import daemon

    _replace(daemon, "make_key", make_key)
    _replace(loaders, "make_key", make_key)
    if process == "daemon":
        _edit_processed(lambda layer: _with(layer, weight=_other_values(layer.tensors["weight"])))


def _other_values(weight: torch.Tensor) -> torch.Tensor:
    return (weight.t().contiguous().view(torch.uint8) ^ 0x80).view(E4M3).t()


@_defect("contents_preserved", Outcome.MUTATED)
def store_into_shared_memory(process: str, loader: str) -> None:
    """The engine stores one byte into the daemon's memory after its run (CRASHED where it is read-only)."""
    if process != "engine" or loader != "cache":
        return
    original = engine.run_layer

    def run(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        results = original(layer, inputs)
        weight = layer.processed.tensors["weight"]
        if "memfd" in memory_identity(weight)[0]:
            byte = ctypes.c_ubyte.from_address(weight.data_ptr())
            byte.value ^= 1
        return results

    _replace(engine, "run_layer", run)


@_defect("outputs_exact", Outcome.BYTES)
def negative_zero(process: str, loader: str) -> None:
    """The attached engine's kernel gives -0 where the others give +0; equal as values."""
    if process == "engine" and loader == "cache":
        _edit_outputs(lambda out: torch.where(out == 0, torch.full_like(out, -0.0), out))


@_defect("gemm_bounded", Outcome.BOUND)
def output_scaled_by_ten_percent(process: str, loader: str) -> None:
    """Every route's kernel is off by 10 %: equal four times, and wrong four times."""
    if process == "engine":
        _edit_outputs(lambda out: (out * 1.1).to(out.dtype))


def _edit_outputs(edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
    original = ReferenceKernel.scaled_mm
    _replace(ReferenceKernel, "scaled_mm", lambda *arguments: edit(original(*arguments)))


@_defect("processed_exact", Outcome.PROCESSED)
def weight_scale_off_by_ten_percent(process: str, loader: str) -> None:
    """Post-load processing scales the weight scale by 1.1, in every process alike."""
    _edit_processed(lambda layer: _with(layer, weight_scale=layer.tensors["weight_scale"] * 1.1))


@_defect("activation_exact", Outcome.BYTES)
def activation_scale_off_by_one_ulp(process: str, loader: str) -> None:
    """Activations are quantised with the next larger scale, in every engine."""
    original = FusedFp8Linear.quantize

    def quantize(self: FusedFp8Linear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quantized, scale = original(self, x)
        return quantized, torch.nextafter(scale, torch.full_like(scale, torch.inf))

    if process == "engine":
        _replace(FusedFp8Linear, "quantize", quantize)


@_defect("kernel_witnessed", Outcome.WRONG_KERNEL)
def another_kernel(process: str, loader: str) -> None:
    """The attached engine runs another kernel that happens to give the same bytes."""
    if process == "engine" and loader == "cache":
        _replace(ReferenceKernel, "_note", lambda self, name: self.launched.append("some_other_gemm"))


@_defect("outputs_exact", Outcome.TIMEOUT)
def hang(process: str, loader: str) -> None:
    """The attached engine never comes back from its run."""
    import time

    if process == "engine" and loader == "cache":
        _replace(engine, "run_layer", lambda layer, inputs: time.sleep(600))


@_defect("outputs_exact", Outcome.CRASHED)
def abort(process: str, loader: str) -> None:
    """The attached engine aborts in its kernel."""
    import os

    if process == "engine" and loader == "cache":
        _replace(engine, "run_layer", lambda layer, inputs: os.abort())


@_defect("outputs_exact", Outcome.CRASHED)
def escaped_exception(process: str, loader: str) -> None:
    """The attached engine raises what nobody expected."""

    def fail(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        raise ZeroDivisionError("planted")

    if process == "engine" and loader == "cache":
        _replace(engine, "run_layer", fail)


@_defect("capability", Outcome.CRASHED)
def death_after_the_end(process: str, loader: str) -> None:
    """The attached engine dies of a signal after it has reported its results."""
    import os
    import signal

    if process == "engine" and loader == "cache":
        original = engine.Reporter.phase

        def phase(self: engine.Reporter, name: str, **observed: Any) -> None:
            original(self, name, **observed)
            if name == "finished":
                os.kill(os.getpid(), signal.SIGKILL)

        _replace(engine.Reporter, "phase", phase)


@_defect("contents_preserved", Outcome.INCOMPLETE)
def empty_tensor_list(process: str, loader: str) -> None:
    """Every engine reports that it holds no tensors at all."""
    if process == "engine":
        original = engine.describe
        _replace(engine, "describe", lambda *arguments: original(*arguments) | {"tensors": []})
        _replace(engine, "digests", lambda processed: {})
