"""The two loaders: from the disk, and from the weight cache with or without fallback."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .cache.client import Attached, CacheClient
from .cache.key import make_key
from .cache.manifest import restore
from .checkpoint.config import read_quantization
from .checkpoint.layers import checked_projections, tensor_names
from .checkpoint.names import Group
from .checkpoint.reader import CheckpointReader
from .checkpoint.schemes import SchemePlan
from .errors import DaemonUnavailable, RefusedKernel, WrongTensor
from .formats import FORMATS, ProcessedLayer
from .kernels import Kernel
from .spec import LayerSpec
from .tensor_bytes import give_back_freed_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Layers that are ready to run, and how they came."""

    layers: list[ProcessedLayer]
    route_taken: str
    """`disk`, `fallback` or `attach`: set where it happens, and checked against the witnesses."""
    bytes_read: int = 0
    attached: Attached | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    """How to reach the daemon."""

    socket: Path
    transport: str
    expected_content: str
    fallback_allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRead:
    """What one pass over the checkpoint gave."""

    layers: list[ProcessedLayer]
    content: str
    """Digest of the checkpoint; "" unless it was asked for."""
    bytes_read: int


def read_layers(
    checkpoint: Path,
    layers: Sequence[LayerSpec],
    *,
    digested: bool = False,
    links_into: Path | None = None,
) -> DiskRead:
    """Read the layers from disk and run their post-load processing.

    Args:
        links_into: the one folder that symbolic links in the checkpoint may lead into.
        digested: hash the whole checkpoint in the same pass, so that what is loaded is what was hashed.

    Raises:
        RefusedScheme: by the checkpoint's quant_algo, or a layer's own, before a weight is read.
        CheckpointError: as named.
    """
    _require_schemes(checkpoint, layers)
    with CheckpointReader(checkpoint, links_into=links_into) as reader:
        names = [name for layer in layers for name in tensor_names(layer)]
        tensors, content = reader.load_digested(names) if digested else (reader.load(names), "")
        bytes_read = reader.bytes_read
    processed = []
    last_users = {name: i for i, layer in enumerate(layers) for name in tensor_names(layer)}
    for i, layer in enumerate(layers):
        projections = checked_projections(layer, tensors, checkpoint)
        processed.append(FORMATS[layer.scheme].process(layer, projections))
        # Memory for one copy of the checkpoint and one layer, not for two copies.
        del projections
        for name in tensor_names(layer):
            if last_users[name] == i:
                del tensors[name]
        give_back_freed_memory()
    return DiskRead(layers=processed, content=content, bytes_read=bytes_read)


def load_from_disk(
    checkpoint: Path,
    layers: Sequence[LayerSpec],
    *,
    links_into: Path | None = None,
    route_taken: str = "disk",
) -> Loaded:
    """The disk loader; raises as `read_layers` does."""
    read = read_layers(checkpoint, layers, links_into=links_into)
    return Loaded(layers=read.layers, route_taken=route_taken, bytes_read=read.bytes_read)


def load_from_cache(
    checkpoint: Path,
    layers: Sequence[LayerSpec],
    kernel: Kernel,
    request: CacheRequest,
    *,
    links_into: Path | None = None,
) -> Loaded:
    """The cache loader. Only the absence of a daemon permits fallback; every other error stands.

    Raises:
        RefusedScheme: by the checkpoint's quant_algo, before daemon or weights are asked for.
        RefusedKernel: there is a daemon, and the backend does not declare support for its weights.
        CacheError: as named.
    """
    _require_schemes(checkpoint, layers)
    try:
        client = CacheClient(request.socket)
    except DaemonUnavailable:
        if not request.fallback_allowed:
            raise
        return load_from_disk(checkpoint, layers, links_into=links_into, route_taken="fallback")
    # An error keeps its frames alive, and with them what they hold, until it has been dealt with.
    with ExitStack() as on_error:
        on_error.callback(client.close)
        _require_preprocessed(kernel, layers)
        key = make_key(checkpoint, request.expected_content, list(layers), kernel)
        attached = client.attach(key, request.transport)
        on_error.callback(attached.arena.close)
        restored = [restore(attached.manifest, attached.arena, layer) for layer in layers]
        on_error.pop_all()
    return Loaded(layers=restored, route_taken="attach", attached=attached)


def _require_preprocessed(kernel: Kernel, layers: Sequence[LayerSpec]) -> None:
    if not kernel.accepts_preprocessed:
        raise RefusedKernel(
            f"layer {', '.join(layer.name for layer in layers)}",
            expected="a kernel backend that declares support for pre-processed weights",
            found=f"backend {kernel.name!r}",
            remedy="Use a backend that does (reference on a CPU) with a weight cache, or load from disk.",
        )


def _require_schemes(checkpoint: Path, layers: Sequence[LayerSpec]) -> None:
    plan = SchemePlan(read_quantization(checkpoint), checkpoint)
    for layer in layers:
        scheme = plan.scheme(Group.of(layer))
        if layer.scheme is not scheme:
            raise WrongTensor(
                f"{checkpoint}: {layer.name}",
                expected=f"quant_algo {layer.scheme}",
                found=f"quant_algo {scheme}",
                remedy="Ask for the layer in the scheme in which the checkpoint was exported.",
            )
