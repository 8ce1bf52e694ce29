"""The two loaders: from the disk, and from the weight cache with or without fallback."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .cache.client import Attached, CacheClient
from .cache.key import make_key
from .cache.placement import Served
from .cache.views import restore, restore_plain, views
from .checkpoint.config import read_quantization
from .checkpoint.layers import checked_projections, require_nothing_more, tensor_names, wrong
from .checkpoint.names import Group
from .checkpoint.reader import CheckpointReader
from .checkpoint.schemes import SchemePlan
from .errors import DaemonUnavailable, WrongTensor
from .formats import FORMATS, ProcessedLayer
from .kernels import Kernel, require_preprocessed
from .model_spec import PlainTensor
from .spec import LayerSpec
from .tensor_bytes import dtype_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Layers that are ready to run, and how they came."""

    layers: list[ProcessedLayer]
    route_taken: str
    """`disk`, `fallback` or `attach`: set where it happens, and checked against the witnesses."""
    bytes_read: int = 0
    attached: Attached | None = None
    plain: dict[str, torch.Tensor] = field(default_factory=dict)
    """By name: what a model uses as the checkpoint stores it."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them, by full name."""
        return {f"{layer.name}.{name}": t for layer in self.layers for name, t in layer.tensors.items()} | (
            self.plain
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    """How to reach the daemon."""

    socket: Path
    transport: str
    expected_content: str
    fallback_allowed: bool
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class PlainModule:
    """Tensors of one module that are served as the checkpoint stores them."""

    name: str
    tensors: dict[str, torch.Tensor]
    layout: None = None


class LayerStream:
    """The layers of a checkpoint, each as soon as its tensors are read; in the files' order, and once.

    Memory holds the tensors of unfinished layers only: few, where files hold a layer's tensors together.
    """

    def __init__(
        self, checkpoint: Path, layers: Sequence[LayerSpec], plain: Sequence[PlainTensor] = ()
    ) -> None:
        """Take what is asked; raises RefusedScheme or ConfigError, before a weight is read."""
        _require_schemes(checkpoint, layers)
        self._checkpoint = checkpoint
        self._layers = layers
        self._plain = {each.name: each for each in plain}
        self.content = ""
        """Digest of the whole checkpoint, once iterated: of exactly the bytes that the layers come from."""

    def __iter__(self) -> Iterator[Served]:
        """Read, hash and process; raises CheckpointError, as named."""
        with CheckpointReader(self._checkpoint) as reader:
            require_nothing_more(self._layers, reader.names, self._checkpoint)
            names = [name for layer in self._layers for name in tensor_names(layer)]
            yield from self._processed(reader.stream([*names, *self._plain]))
            self.content = reader.content

    def _processed(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Served]:
        waiting = [(layer, set(tensor_names(layer))) for layer in self._layers]
        held: dict[str, torch.Tensor] = {}
        for name, tensor in tensors:
            if name in self._plain:
                wanted = self._plain[name]
                leaf = name.rpartition(".")[2]
                yield PlainModule(wanted.module, {leaf: _checked_plain(wanted, tensor, self._checkpoint)})
                del tensor
                continue
            held[name] = tensor
            del tensor
            for layer, _ in [each for each in waiting if each[1] <= held.keys()]:
                yield process_layer(layer, held, self._checkpoint)
            waiting = [each for each in waiting if not each[1] <= held.keys()]
            unread = {name for _, names in waiting for name in names}
            held = {name: tensor for name, tensor in held.items() if name in unread}


def _checked_plain(wanted: PlainTensor, tensor: torch.Tensor, checkpoint: Path) -> torch.Tensor:
    found = (dtype_name(tensor.dtype), tuple(tensor.shape))
    if found != (wanted.dtype, wanted.shape):
        raise wrong(f"{checkpoint}: {wanted.name}", f"{wanted.dtype} {list(wanted.shape)}", found)
    return tensor


def process_layer(layer: LayerSpec, tensors: Mapping[str, torch.Tensor], checkpoint: Path) -> ProcessedLayer:
    """Check a layer's tensors and run its post-load processing; raises CheckpointError."""
    return FORMATS[layer.scheme].process(layer, checked_projections(layer, tensors, checkpoint))


def load_from_disk(
    checkpoint: Path,
    layers: Sequence[LayerSpec],
    *,
    plain: Sequence[PlainTensor] = (),
    links_into: Path | None = None,
    device: str = "cpu",
    route_taken: str = "disk",
) -> Loaded:
    """Read the layers from disk, in the order asked, and run their post-load processing.

    Args:
        plain: what is taken as the checkpoint stores it.
        links_into: the one folder that symbolic links in the checkpoint may lead into.
        device: where the processed layers go.
        route_taken: `disk`, or `fallback` where a cache loader comes here.

    Raises:
        RefusedScheme: by the checkpoint's quant_algo, or a layer's own, before a weight is read.
        CheckpointError: as named.
    """
    _require_schemes(checkpoint, layers)
    with CheckpointReader(checkpoint, links_into=links_into) as reader:
        require_nothing_more(layers, reader.names, checkpoint)
        processed = [
            process_layer(layer, reader.load(tensor_names(layer)), checkpoint).to(device) for layer in layers
        ]
        as_stored = {
            each.name: _checked_plain(each, reader.load([each.name])[each.name], checkpoint).to(device)
            for each in plain
        }
        return Loaded(
            layers=processed, route_taken=route_taken, bytes_read=reader.bytes_read, plain=as_stored
        )


def load_from_cache(
    checkpoint: Path,
    layers: Sequence[LayerSpec],
    kernel: Kernel,
    request: CacheRequest,
    *,
    plain: Sequence[PlainTensor] = (),
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
        return load_from_disk(
            checkpoint,
            layers,
            plain=plain,
            links_into=links_into,
            device=request.device,
            route_taken="fallback",
        )
    # An error keeps its frames alive, and with them what they hold, until it has been dealt with.
    with ExitStack() as on_error:
        on_error.callback(client.close)
        require_preprocessed(kernel, ", ".join(layer.name for layer in layers))
        key = make_key(checkpoint, request.expected_content, list(layers), kernel, request.device, plain)
        attached = client.attach(key, request.transport)
        on_error.callback(attached.arena.close)
        held = views(attached.manifest, attached.arena)
        restored = [restore(attached.manifest, held, layer) for layer in layers]
        as_stored = restore_plain(attached.manifest, held, plain)
        on_error.pop_all()
    return Loaded(layers=restored, route_taken="attach", attached=attached, plain=as_stored)


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
