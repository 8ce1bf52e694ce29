"""One engine life: get the weights by the route's loader, run every M, report, exit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file

from .channel import Channel
from .errors import LoadproofError
from .fingerprint import fingerprint
from .formats import ProcessedLayer
from .kernels import Kernel, make_kernel
from .layers import FusedFp8Linear
from .loaders import CacheRequest, Loaded, load_from_cache, load_from_disk
from .memory_in_use import memory_in_use
from .model_spec import PlainTensor
from .scratch import save_tensors
from .spec import LayerSpec
from .tensor_bytes import dtype_name, memory_bytes, sha256
from .witness.cupti import KernelWitness
from .witness.memory import memory_identities

SYMBOL_CHARACTERS = 200
"""Kept of a kernel's symbol: a template's goes on for thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """What an engine is asked to do."""

    loader: str
    """`disk` or `cache`."""
    checkpoint: Path
    links_into: Path | None
    """The folder that symbolic links in `checkpoint` lead into; None where its files are real."""
    layers: tuple[LayerSpec, ...]
    plain: tuple[PlainTensor, ...]
    """What a model uses as the checkpoint stores it."""
    new_tokens: int
    """To generate with the model that the layers belong to; 0: the one layer is run alone."""
    kernel: str
    device: str
    """`cpu` or `cuda`."""
    transport: str
    socket: Path
    expected_content: str
    fallback_allowed: bool
    inputs: Path
    """safetensors: `x.<m>`, [m, logical_k] in the output dtype; for a model `prompts`, int64 [P, L]."""
    results: Path
    """safetensors, written by the engine: see `run_layer` and `stored`; for a model `models.generate`."""
    defect: str | None = None

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__slots__}
        paths = {n: str(data[n]) for n in ("checkpoint", "socket", "inputs", "results")}
        links = None if self.links_into is None else str(self.links_into)
        asked = {n: [each.to_json() for each in data[n]] for n in ("layers", "plain")}
        return data | paths | asked | {"links_into": links}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "EngineJob":
        paths = {n: Path(data[n]) for n in ("checkpoint", "socket", "inputs", "results")}
        links = None if data["links_into"] is None else Path(data["links_into"])
        layers = tuple(LayerSpec.from_json(layer) for layer in data["layers"])
        plain = tuple(PlainTensor.from_json(each) for each in data["plain"])
        return cls(**{**data, **paths, "layers": layers, "plain": plain, "links_into": links})


class Reporter:
    """Sends what is known as soon as it is known, so that a crash later loses nothing."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._started = time.monotonic()

    def phase(self, name: str, **observed: Any) -> None:
        """Report that a phase is over, with what it found (builtins only)."""
        elapsed_ms = (time.monotonic() - self._started) * 1e3
        self._channel.send({"phase": name, "ms": round(elapsed_ms, 3), "observed": observed})

    def await_go(self) -> None:
        """Wait until the harness has looked at what was reported."""
        self._channel.receive(timeout=60)


def main(channel: Channel, described_job: dict[str, Any]) -> None:
    """An engine life under the harness: job in, phases out, results in a file."""
    job = EngineJob.from_json(described_job)
    reporter = Reporter(channel)
    # One thread, recorded: a sum split over threads would be another order of additions.
    torch.set_num_threads(1)
    try:
        live(job, reporter)
    except LoadproofError as error:
        described = {"type": type(error).__name__, "message": str(error)}
        reporter.phase("failed", error=described, outcome=error.outcome.value)


class Work(Protocol):
    """What an engine does with its weights."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """By full name, what it computes with, as it holds it now."""

    def run(self) -> dict[str, torch.Tensor]:
        """Do it; returns results by name, on whatever device."""

    def observed(self) -> dict[str, Any]:
        """What is to be said of it afterwards, in builtins."""


def live(job: EngineJob, reporter: Reporter) -> None:
    """Load, prove where the memory is, run, and show that running changed nothing."""
    reporter.phase("started", threads=torch.get_num_threads())
    kernel = make_kernel(job.kernel)
    memory = memory_in_use("before", job.device)
    loaded = load(job, kernel)
    memory |= memory_in_use("loaded", job.device)
    reporter.phase("loaded", **describe(loaded))
    if loaded.attached:
        reporter.await_go()
        reporter.phase("probed", probe=loaded.attached.arena.read_probe().hex())
    work = make_work(job, loaded, kernel)
    with watched_kernels(kernel, job.device) as launched:
        results = work.run()
    reporter.phase("located", places_after=places(work.tensors()))
    memory |= memory_in_use("ran", job.device)
    reporter.phase("ran", kernels=launched, memory_bytes=memory, **work.observed())
    save_tensors({name: tensor.cpu() for name, tensor in results.items()}, job.results)
    lost = loaded.attached is not None and loaded.attached.client.lost()
    reporter.phase("finished", tensors_after=digests(work.tensors()), daemon_lost=lost)


def load(job: EngineJob, kernel: Kernel) -> Loaded:
    """By the job's loader; raises as the loaders do."""
    if job.loader == "disk":
        return load_from_disk(
            job.checkpoint, job.layers, plain=job.plain, links_into=job.links_into, device=job.device
        )
    request = CacheRequest(
        socket=job.socket,
        transport=job.transport,
        expected_content=job.expected_content,
        fallback_allowed=job.fallback_allowed,
        device=job.device,
    )
    return load_from_cache(
        job.checkpoint, job.layers, kernel, request, plain=job.plain, links_into=job.links_into
    )


def make_work(job: EngineJob, loaded: Loaded, kernel: Kernel) -> Work:
    """One layer on its inputs, or a model on its prompts."""
    if not job.new_tokens:
        return LayerWork(FusedFp8Linear(loaded.layers[0], kernel), load_file(job.inputs, device=job.device))
    # transformers takes seconds to import, and only models need it.
    from .models.work import ModelWork

    prompts = load_file(job.inputs)["prompts"]
    return ModelWork(job.checkpoint, loaded, kernel, prompts, job.new_tokens, job.device)


class LayerWork:
    """One layer, on inputs of several numbers of tokens."""

    def __init__(self, layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> None:
        self._layer = layer
        self._inputs = inputs

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `Work.tensors`."""
        processed = self._layer.processed
        return {f"{processed.name}.{name}": tensor for name, tensor in processed.tensors.items()}

    def run(self) -> dict[str, torch.Tensor]:
        """See `run_layer` and `stored`."""
        return run_layer(self._layer, self._inputs) | stored(self._layer.processed)

    def observed(self) -> dict[str, Any]:
        """Nothing beyond its results."""
        return {}


@contextmanager
def watched_kernels(kernel: Kernel, device: str) -> Iterator[list[str]]:
    """Names of the kernels launched meanwhile: by CUPTI's word on a GPU, by the backend's own on a CPU."""
    if device == "cpu":
        yield kernel.launched
        return
    launched: list[str] = []
    with KernelWitness() as witness:
        yield launched
        # A launch is seen when it is made; this only brings its errors here.
        torch.cuda.synchronize()
    launched += [symbol[:SYMBOL_CHARACTERS] for symbol in witness.kernels]


def run_layer(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """For each `x.<m>`: `output.<m>`, `activation.<m>` (E4M3) and `activation_scale.<m>`."""
    results: dict[str, torch.Tensor] = {}
    for name, x in inputs.items():
        m = name.removeprefix("x.")
        quantized, scale = layer.quantize(x)
        results[f"activation.{m}"] = quantized
        results[f"activation_scale.{m}"] = scale.clone()
        results[f"output.{m}"] = layer.multiply(quantized, scale)
    return results


def stored(processed: ProcessedLayer) -> dict[str, torch.Tensor]:
    """`processed.<tensor>`: the bytes in memory order, uint8 [nbytes], copied out of shared memory."""
    return {f"processed.{name}": memory_bytes(t).clone() for name, t in processed.tensors.items()}


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Full tensor name to the fingerprint of its bytes, as they are now."""
    return {name: fingerprint(tensor) for name, tensor in tensors.items()}


def places(tensors: dict[str, torch.Tensor]) -> dict[str, list[Any]]:
    """Full tensor name to the allocation and the offset where it lies now."""
    return {name: list(place) for name, place in memory_identities(tensors).items()}


def describe(loaded: Loaded) -> dict[str, Any]:
    """What the engine holds, in builtins: route, layouts, tensors and where they lie."""
    attached, tensors = loaded.attached, loaded.tensors
    where = memory_identities(tensors)
    return {
        "route_taken": loaded.route_taken,
        "layouts": {layer.name: layer.layout.to_json() for layer in loaded.layers},
        "tensors": [_tensor(name, tensor, *where[name]) for name, tensor in tensors.items()],
        "checkpoint_bytes_read": loaded.bytes_read,
        "mapped_bytes": attached.arena.nbytes if attached else 0,
        "daemon_pid": attached.client.daemon_pid if attached else None,
    }


def _tensor(name: str, tensor: torch.Tensor, allocation: str, offset: int) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": dtype_name(tensor.dtype),
        "sha256": sha256(tensor),
        "fingerprint": fingerprint(tensor),
        "allocation": allocation,
        "offset": offset,
    }
