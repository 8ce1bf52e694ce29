"""Attaching: the key, the manifest, and memory that is the daemon's own."""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadproof.harness.cache.arena import memfd
from loadproof.harness.cache.arena.memfd import MemfdArena
from loadproof.harness.cache.client import Attached, CacheClient
from loadproof.harness.cache.manifest import Manifest
from loadproof.harness.cache.views import restore, views
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob, Serving, serving
from loadproof.harness.errors import ArenaError, BadManifest, KeyMismatch
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme
from loadproof.harness.tensor_bytes import sha256

LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture(params=["memfd", "memfd-writable"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def daemon(tmp_path: Path, path: Path, transport: str) -> Iterator[Serving]:
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(checkpoint, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    job = DaemonJob(
        checkpoint=checkpoint, layers=(LAYER,), socket=path, transport=transport, kernel="reference"
    )
    with serving(job) as ready:
        yield ready


@pytest.fixture
def attached(path: Path, daemon: Serving, transport: str) -> Iterator[Attached]:
    client = CacheClient(path)
    try:
        attached = client.attach(daemon.key, transport)
        yield attached
        attached.arena.close()
    finally:
        client.close()


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- the key ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [["content"], ["content", "kernel_build", "torch"]])
def test_key_mismatch_names_exactly_the_differing_fields(
    path: Path, daemon: Serving, transport: str, fields: list[str]
) -> None:
    client = CacheClient(path)
    try:
        with pytest.raises(KeyMismatch) as caught:
            client.attach({**daemon.key, **dict.fromkeys(fields, "other")}, transport)
    finally:
        client.close()
    listed = caught.value.found.partition("(")[2].rstrip(")")
    assert [field.partition(":")[0] for field in listed.split("; ")] == fields


def test_other_transport_is_refused_and_its_descriptor_closed(
    path: Path, daemon: Serving, transport: str
) -> None:
    client = CacheClient(path)
    try:
        client.digests()
        before = open_fds()
        with pytest.raises(BadManifest, match="transport"):
            client.attach(daemon.key, "memfd" if transport == "memfd-writable" else "memfd-writable")
        assert open_fds() == before
    finally:
        client.close()


# --- the manifest -----------------------------------------------------------------------------


def entry_set(index: int, **fields: Any) -> Callable[[dict[str, Any]], object]:
    def lie(manifest: dict[str, Any]) -> None:
        for name, value in fields.items():
            manifest["entries"][name][index] = value

    return lie


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "two-tensors-of-one-full-name": lambda manifest: (
        [
            manifest["entries"][name].__setitem__(slice(0, 2), pair)
            for name, pair in (("layer", ["a.b", "a"]), ("tensor", ["c", "b.c"]))
        ]
        and manifest.update(layers=["a"])
    ),
    "overlap": entry_set(1, offset=0),
    "misaligned": entry_set(2, offset=5121),
    "out-of-bounds": entry_set(0, offset=1 << 30),
    "into-the-probe-page": lambda manifest: manifest.update(probe_offset=manifest["entries"]["offset"][2]),
    "negative-offset": entry_set(0, offset=-512),
    "negative-size": entry_set(0, nbytes=-1),
    "negative-stride": entry_set(0, stride=[1, -80]),
    "wrong-nbytes": entry_set(0, nbytes=1),
    "wrong-shape": entry_set(0, shape=[4800, 80]),
    "wrong-stride": entry_set(0, stride=[1, 4096]),
    "no-dtype": entry_set(0, dtype="load"),
    "boolean-offset": entry_set(0, offset=False),
    "fractional-offset": entry_set(0, offset=0.0),
    "empty": lambda manifest: [column.clear() for column in manifest["entries"].values()],
    "layout-of-no-tensors": lambda manifest: manifest.update(layers=["other"]),
    "columns-of-two-lengths": lambda manifest: manifest["entries"]["offset"].pop(),
    "probe-page-outside": lambda manifest: manifest.update(arena_bytes=manifest["probe_offset"]),
    "field-missing": lambda manifest: manifest.pop("probe_offset"),
    "entries-not-a-list": lambda manifest: manifest.update(entries=7),
    "column-not-a-list": lambda manifest: manifest["entries"].update(offset={"0": 0}),
    "field-of-no-entry": lambda manifest: manifest["entries"].update(other=[0, 0, 0]),
}


@pytest.mark.parametrize("lie", LIES)
def test_manifest_that_lies_is_bad(daemon: Serving, lie: str) -> None:
    manifest = Manifest.from_json(daemon.manifest.to_json()).to_json()
    LIES[lie](manifest)
    with pytest.raises(BadManifest):
        Manifest.from_json(manifest)


@pytest.mark.parametrize("manifest", [None, [], "x", {}])
def test_what_is_not_a_manifest_is_bad(manifest: object) -> None:
    with pytest.raises(BadManifest):
        Manifest.from_json(manifest)


def test_layer_that_the_daemon_does_not_hold_is_bad(attached: Attached) -> None:
    other = layer_spec(ProjectionKind.PLAIN, Scheme.FP8, (16,), 16)
    with pytest.raises(BadManifest, match="a layer that the daemon holds"):
        restore(attached.manifest, views(attached.manifest, attached.arena), other)


# --- the arena --------------------------------------------------------------------------------


@pytest.fixture
def sealed() -> Iterator[MemfdArena]:
    arena = MemfdArena(1000, sealed=True)
    arena.freeze()
    yield arena
    arena.close()


def test_sealed_arena_cannot_be_mapped_writable(sealed: MemfdArena) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(sealed.fd, sealed.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def test_sealed_arena_cannot_be_written_through_its_descriptor(sealed: MemfdArena) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(sealed.fd, b"x", 0)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_sealed_arena_keeps_its_size(sealed: MemfdArena, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(sealed.fd, size)


def test_sealed_arena_keeps_its_seals(sealed: MemfdArena) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(sealed.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_unsealed_twin_can_be_mapped_writable() -> None:
    arena = MemfdArena(1000, sealed=False)
    arena.freeze()
    mmap.mmap(arena.fd, arena.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()
    arena.close()


def test_full_memory_is_an_arena_error_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_fds()
    with pytest.raises(ArenaError, match="No space left on device"):
        MemfdArena(1000, sealed=True)
    assert open_fds() == before


def test_unsealed_memory_is_refused_as_sealed() -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    with pytest.raises(ArenaError, match="with seals"):
        memfd.MemfdAttachment(fd, 8192, 4096, sealed=True)


def test_memory_of_another_size_is_refused() -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(ArenaError, match="8192 bytes"):
        memfd.MemfdAttachment(fd, 8192, 4096, sealed=False)


# --- attached ---------------------------------------------------------------------------------


def test_probe_written_after_attaching_is_seen_through_the_mapping(attached: Attached) -> None:
    nonce = os.urandom(16)
    assert attached.arena.read_probe() != nonce
    attached.client.probe(nonce)
    assert attached.arena.read_probe() == nonce


def test_attached_bytes_are_those_of_the_manifest(attached: Attached) -> None:
    for entry in attached.manifest.entries:
        assert sha256(attached.arena.read(entry.offset, entry.nbytes)) == entry.sha256


def test_attached_memory_is_the_daemons(attached: Attached, daemon: Serving) -> None:
    assert attached.arena.allocation == daemon.allocation


def test_restored_weight_is_column_major_in_the_mapping(attached: Attached) -> None:
    weight = restore(attached.manifest, views(attached.manifest, attached.arena), LAYER).tensors["weight"]
    (entry,) = (e for e in attached.manifest.entries if e.tensor == "weight")
    assert tuple(weight.shape) == (LAYER.padded_k, LAYER.padded_width)
    assert weight.stride() == (1, LAYER.padded_k)
    assert weight.data_ptr() == attached.arena.read(0, 1).data_ptr() + entry.offset


def test_mapping_outlives_the_daemon(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(checkpoint, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    job = DaemonJob(
        checkpoint=checkpoint,
        layers=(LAYER,),
        socket=tmp_path / "s",
        transport="memfd",
        kernel="reference",
    )
    with serving(job) as ready:
        client = CacheClient(job.socket)
        attached = client.attach(ready.key, "memfd")
    for entry in attached.manifest.entries:
        assert sha256(attached.arena.read(entry.offset, entry.nbytes)) == entry.sha256
    attached.arena.close()
    client.close()


def test_fifty_engines_leave_no_descriptor(path: Path, daemon: Serving, transport: str) -> None:
    def cycle() -> None:
        client = CacheClient(path)
        client.attach(daemon.key, transport).arena.close()
        # The daemon lives in this process: its end must be closed as well before fds are counted.
        client.close()

    cycle()
    time.sleep(0.2)
    start = open_fds()
    for _ in range(50):
        cycle()
        settle(expected=start)
    assert open_fds() == start


def settle(expected: int) -> None:
    deadline = time.monotonic() + 5
    while open_fds() > expected and time.monotonic() < deadline:
        time.sleep(0.002)
