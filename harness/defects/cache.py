"""Planted in the way that weights take: copies, hidden reads, a key that covers too little, stores."""

import dataclasses
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import daemon, engine, loaders
from ..cache import key
from ..cache.client import CacheClient
from ..formats import ProcessedLayer
from ..formats.e4m3 import E4M3
from ..layers import FusedFp8Linear
from ..outcome import Outcome
from .registry import defect, edit_attached, edit_processed, is_attached, replace, with_tensors


@defect("pointers_shared", Outcome.NOT_SHARED)
def copied_by_value(process: str, loader: str) -> None:
    """The attached engine clones what it should share; every byte and digest is right."""

    def copy(layer: ProcessedLayer) -> ProcessedLayer:
        copies = {n: t.t().clone().t() if t.dim() == 2 else t.clone() for n, t in layer.tensors.items()}
        return dataclasses.replace(layer, tensors=copies)

    if process == "engine":
        edit_attached(copy)


@defect("pointers_shared", Outcome.NOT_SHARED)
def rebound_after_attaching(process: str, loader: str) -> None:
    """The attached engine computes with a copy of its weight; every byte and digest is right."""
    if process != "engine" or loader != "cache":
        return
    original = engine.run_layer

    def run(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held = layer.processed.tensors
        if is_attached(held["weight"]):
            held["weight"] = held["weight"].t().clone().t()
        return original(layer, inputs)

    replace(engine, "run_layer", run)


@defect("route_witnessed", Outcome.WRONG_ROUTE)
def silent_disk_load_by_read(process: str, loader: str) -> None:
    """The engine reads the weight files beside attaching, and keeps quiet about it."""
    touch_weights(process, loader, lambda file: file.read_bytes())


@defect("route_witnessed", Outcome.WRONG_ROUTE)
def silent_disk_load_by_mmap(process: str, loader: str) -> None:
    """As above, through mmap, which /proc/self/io does not see."""

    def map_it(file: Path) -> None:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped[-1]

    touch_weights(process, loader, map_it)


def touch_weights(process: str, loader: str, touch: Callable[[Path], object]) -> None:
    if process != "engine" or loader != "cache":
        return
    original = engine.load

    def load(job: engine.EngineJob, kernel: Any) -> loaders.Loaded:
        for file in job.checkpoint.glob("*.safetensors"):
            touch(file)
        return original(job, kernel)

    replace(engine, "load", load)


@defect("route_witnessed", Outcome.WRONG_ROUTE)
def disk_instead_of_attach(process: str, loader: str) -> None:
    """The engine loads from disk in an ipc route and claims to have attached; it meets the decoy."""
    if process == "engine" and loader == "cache":
        original = loaders.load_from_cache

        def load(*arguments: Any, **named: Any) -> loaders.Loaded:
            loaded = original(*arguments, **named)
            if loaded.route_taken != "attach":
                return loaded
            read = loaders.load_from_disk(arguments[0], arguments[1], device=arguments[3].device)
            return dataclasses.replace(loaded, layers=read.layers)

        replace(engine, "load_from_cache", load)


@defect("outputs_exact", Outcome.BYTES)
def header_only_key(process: str, loader: str) -> None:
    """The daemon holds a stale checkpoint with equal headers, and the key does not cover content."""
    original = key.make_key

    def make_key(*arguments: Any) -> Any:
        return original(*arguments) | {"content": "headers only"}

    replace(daemon, "make_key", make_key)
    replace(loaders, "make_key", make_key)
    if process == "daemon":
        edit_processed(lambda layer: with_tensors(layer, weight=_other_values(layer.tensors["weight"])))


def _other_values(weight: torch.Tensor) -> torch.Tensor:
    return (weight.t().contiguous().view(torch.uint8) ^ 0x80).view(E4M3).t()


@defect("contents_preserved", Outcome.MUTATED)
def store_into_shared_memory(process: str, loader: str) -> None:
    """The engine stores one byte into the daemon's memory, after its run."""
    if process == "engine" and loader == "cache":
        _store_after_the_run()


@defect("outputs_exact", Outcome.CRASHED, sealed=True)
def store_into_sealed_memory(process: str, loader: str) -> None:
    """As above, where the memory is read-only: the store is refused, and ends the engine."""
    if process == "engine" and loader == "cache":
        _store_after_the_run()


def _store_after_the_run() -> None:
    original = engine.run_layer

    def run(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        results = original(layer, inputs)
        weight = layer.processed.tensors["weight"]
        if is_attached(weight):
            weight.t().view(torch.uint8)[0, 0].bitwise_xor_(1)
        return results

    replace(engine, "run_layer", run)


@defect("route_witnessed", Outcome.WRONG_ROUTE)
def loss_of_the_daemon_unnoticed(process: str, loader: str) -> None:
    """The engine takes a daemon that was killed for one that lives."""
    if process == "engine":
        replace(CacheClient, "lost", lambda self: False)


@defect("route_witnessed", Outcome.WRONG_ROUTE)
def attached_twice(process: str, loader: str) -> None:
    """The engine attaches once more than it says, and leaves that mapping open."""
    original = CacheClient.attach

    def attach(self: CacheClient, *arguments: Any) -> Any:
        original(self, *arguments)
        return original(self, *arguments)

    if process == "engine":
        replace(CacheClient, "attach", attach)
