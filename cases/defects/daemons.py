"""A small padded layer on disk, daemons that hold it, and engines that ask for it; holds no test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadproof.harness.cache.client import CacheClient
from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob, Serving, serving
from loadproof.harness.kernels.reference import ReferenceKernel
from loadproof.harness.loaders import CacheRequest, Loaded, load_from_cache
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme

LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)
ARENA = "/memfd:loadproof-arena"


def write(folder: Path, seed: int = 3) -> Path:
    """A checkpoint of LAYER; other seeds give other values under equal headers."""
    write_checkpoint(folder, synthetic_tensors(LAYER, seed, False), Scheme.FP8)
    return folder


@contextmanager
def serves(checkpoint: Path, socket: Path, transport: str = "memfd") -> Iterator[Serving]:
    """A daemon in this process."""
    job = DaemonJob(
        checkpoint=checkpoint, layers=(LAYER,), socket=socket, transport=transport, kernel="reference"
    )
    with serving(job) as ready:
        yield ready


def load(
    checkpoint: Path, socket: Path, *, fallback_allowed: bool = False, transport: str = "memfd"
) -> Loaded:
    """What an engine gets that asks for LAYER as `checkpoint` holds it now."""
    request = CacheRequest(
        socket=socket,
        transport=transport,
        expected_content=content_digest(checkpoint),
        fallback_allowed=fallback_allowed,
    )
    return load_from_cache(checkpoint, [LAYER], ReferenceKernel(), request)


def digests(socket: Path) -> dict[str, str]:
    """The arena's bytes as the daemon hashes them now."""
    client = CacheClient(socket)
    try:
        return client.digests()
    finally:
        client.close()


def detach(loaded: Loaded) -> None:
    """Drop an engine's hold."""
    assert loaded.attached is not None
    loaded.attached.arena.close()
    loaded.attached.client.close()


def arena_mappings() -> int:
    """Mappings of any arena in this process."""
    return Path("/proc/self/maps").read_text().count(ARENA)
