"""The daemon: loads and processes the layers once, then serves their memory until it is told to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache.arena import create_arena
from .cache.key import Key, make_key
from .cache.manifest import Manifest
from .cache.placement import fill, place
from .cache.server import CacheServer
from .cache.socket_path import listening
from .channel import Channel, Closed
from .errors import CheckpointChanged, LoadproofError
from .formats import FORMATS, TensorLayout
from .kernels import make_kernel
from .loaders import LayerStream
from .model_spec import PlainTensor
from .spec import LayerSpec
from .tensor_bytes import dtype_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonJob:
    """What a daemon is asked to hold."""

    checkpoint: Path
    layers: tuple[LayerSpec, ...]
    plain: tuple[PlainTensor, ...] = ()
    """Served as the checkpoint stores them."""
    socket: Path
    transport: str
    kernel: str
    device: str = "cpu"
    expected_content: str | None = None
    """Digest that the caller saw; the daemon hashes what it loads and compares."""
    defect: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": str(self.checkpoint),
            "layers": [layer.to_json() for layer in self.layers],
            "plain": [plain.to_json() for plain in self.plain],
            "socket": str(self.socket),
            "transport": self.transport,
            "kernel": self.kernel,
            "device": self.device,
            "expected_content": self.expected_content,
            "defect": self.defect,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "DaemonJob":
        layers = tuple(LayerSpec.from_json(layer) for layer in data["layers"])
        plain = tuple(PlainTensor.from_json(each) for each in data["plain"])
        paths = {"checkpoint": Path(data["checkpoint"]), "socket": Path(data["socket"])}
        return cls(**{**data, **paths, "layers": layers, "plain": plain})


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A daemon that is ready."""

    manifest: Manifest
    key: Key
    allocation: str

    def to_json(self) -> dict[str, Any]:
        return {"manifest": self.manifest.to_json(), "key": self.key, "allocation": self.allocation}


@contextmanager
def serving(job: DaemonJob) -> Iterator[Serving]:
    """Load, process and serve while the context is open; the socket goes with it.

    Raises:
        DaemonRunning, SocketPathTooLong, UnsafeSocket: before anything is loaded.
        CheckpointError, RefusedScheme, ArenaError: as named.
    """
    kernel = make_kernel(job.kernel)
    with listening(job.socket) as listener:
        layers = LayerStream(job.checkpoint, job.layers, job.plain)
        placement = place(_layouts(job))
        arena = create_arena(job.transport, placement.data_bytes)
        try:
            manifest = fill(arena, placement, layers)
            _require_content(job, layers.content)
            key = make_key(job.checkpoint, layers.content, list(job.layers), kernel, job.device, job.plain)
            server = CacheServer(listener, arena, manifest, key, job.transport)
            try:
                yield Serving(manifest=manifest, key=key, allocation=arena.allocation)
            finally:
                server.close()
        finally:
            arena.close()


def _layouts(job: DaemonJob) -> dict[str, dict[str, TensorLayout]]:
    """Layer or module to its tensors: one module's may be several."""
    layouts = {layer.name: FORMATS[layer.scheme].tensors_of(layer) for layer in job.layers}
    for plain in job.plain:
        leaf = plain.name.rpartition(".")[2]
        layouts.setdefault(plain.module, {})[leaf] = TensorLayout.packed(dtype_of(plain.dtype), plain.shape)
    return layouts


def _require_content(job: DaemonJob, content: str) -> None:
    if job.expected_content not in (None, content):
        raise CheckpointChanged(
            job.checkpoint,
            expected=f"content {job.expected_content}",
            found=f"content {content}",
            remedy="The checkpoint was written to meanwhile; run again once it is complete.",
        )


def main(channel: Channel, described_job: dict[str, Any]) -> None:
    """A daemon life under the harness: job in, `ready` out, until SIGTERM or the channel's end."""
    job = DaemonJob.from_json(described_job)
    _stop_on_sigterm()
    try:
        with serving(job) as ready:
            channel.send({"ready": ready.to_json()})
            try:
                channel.receive()
            except Closed:
                pass
    except LoadproofError as error:
        channel.send(
            {"error": {"type": type(error).__name__, "message": str(error)}, "outcome": error.outcome}
        )


def _stop_on_sigterm() -> None:
    # The exception makes the blocked receive return, so that the context managers unwind.
    def stop(signum: int, frame: object) -> None:
        raise Closed

    signal.signal(signal.SIGTERM, stop)
