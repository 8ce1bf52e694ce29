"""Where the socket may lie, and who may serve it."""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadproof.harness import daemon as daemon_module
from loadproof.harness.cache.arena.memfd import MemfdArena
from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.server import CacheServer
from loadproof.harness.cache.socket_path import listening
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob, Serving, serving
from loadproof.harness.errors import DaemonRunning, DaemonUnavailable, SocketPathTooLong, UnsafeSocket
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme

LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder / "s"


@contextmanager
def started(path: Path) -> Iterator[Serving]:
    checkpoint = path.parent / "checkpoint"
    write_checkpoint(checkpoint, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    job = DaemonJob(
        checkpoint=checkpoint, layers=(LAYER,), socket=path, transport="memfd", kernel="reference"
    )
    with serving(job) as ready:
        yield ready


def assert_serves(path: Path, ready: Serving) -> None:
    client = CacheClient(path)
    try:
        assert client.digests() == {entry.name: entry.fingerprint for entry in ready.manifest.entries}
    finally:
        client.close()


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.chmod(0o600)


def path_of(length: int) -> Path:
    path = Path("/tmp") / ("s" * (length - len("/tmp/")))
    assert len(os.fsencode(path)) == length
    return path


def test_engine_refuses_a_path_of_108_bytes() -> None:
    with pytest.raises(SocketPathTooLong):
        CacheClient(path_of(108))


def test_engine_takes_a_path_of_107_bytes() -> None:
    with pytest.raises(DaemonUnavailable):
        CacheClient(path_of(107))


def test_daemon_serves_at_a_path_of_107_bytes() -> None:
    folder = Path(tempfile.mkdtemp(prefix="loadproof-"))
    path = folder / ("s" * (107 - len(str(folder)) - 1))
    try:
        with listening(path):
            assert len(str(path)) == 107
            CacheClient(path).close()
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


def test_daemon_refuses_a_path_of_108_bytes_before_it_loads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(daemon_module, "LayerStream", lambda *args, **options: loaded.append(args))
    job = DaemonJob(
        checkpoint=path.parent, layers=(LAYER,), socket=path_of(108), transport="memfd", kernel="reference"
    )
    with pytest.raises(SocketPathTooLong), serving(job):
        pass
    assert loaded == []


def test_regular_file_is_unsafe(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o600)
    with pytest.raises(UnsafeSocket, match="a socket with mode 0600"):
        CacheClient(path)


def test_daemon_does_not_replace_a_regular_file(path: Path) -> None:
    path.write_bytes(b"precious")
    path.chmod(0o600)
    with pytest.raises(UnsafeSocket), started(path):
        pass
    assert path.read_bytes() == b"precious"


def test_link_to_a_live_socket_is_unsafe(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with started(path), pytest.raises(UnsafeSocket):
        CacheClient(link)


def test_world_writable_directory_is_unsafe_for_the_engine(path: Path) -> None:
    with started(path):
        path.parent.chmod(0o777)
        with pytest.raises(UnsafeSocket, match="mode 0700"):
            CacheClient(path)


def test_world_writable_directory_is_unsafe_for_the_daemon(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(UnsafeSocket, match="mode 0700"), started(path):
        pass


def test_socket_that_others_may_use_is_unsafe(path: Path) -> None:
    with started(path):
        path.chmod(0o666)
        with pytest.raises(UnsafeSocket):
            CacheClient(path)


def test_no_socket_is_unavailable(path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="no such file"):
        CacheClient(path)


def test_stale_socket_is_unavailable(path: Path) -> None:
    leave_stale_socket(path)
    with pytest.raises(DaemonUnavailable, match="nobody listening"):
        CacheClient(path)


def test_second_daemon_is_told_who_serves_and_the_first_goes_on(path: Path) -> None:
    with started(path) as first:
        with pytest.raises(DaemonRunning, match=f"process {os.getpid()}\\b"), started(path):
            pass
        assert_serves(path, first)


def test_new_daemon_takes_over_a_stale_socket(path: Path) -> None:
    leave_stale_socket(path)
    with started(path) as ready:
        assert_serves(path, ready)


def test_socket_is_for_its_owner_alone(path: Path) -> None:
    with started(path):
        assert stat.filemode(path.lstat().st_mode) == "srw-------"


def test_daemon_leaves_no_file_behind(path: Path) -> None:
    with started(path):
        pass
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint"]


def test_daemon_leaves_a_successors_socket_alone(path: Path) -> None:
    with started(path):
        path.unlink()
        leave_stale_socket(path)
    assert path.exists()


def test_server_closes_while_an_engine_leaves(path: Path) -> None:
    listener, left = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listener, started(path) as ready:
        listener.bind(str(path.with_name("other")))
        listener.listen()
        arena = MemfdArena(1, sealed=True)
        server = CacheServer(listener, arena, ready.manifest, ready.key, "memfd")
        left.close()
        server._open[left] = os.getpid()
        server.close()
        arena.close()
