"""Whatever a peer sends, it is refused by name, and the daemon goes on serving."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.socket_path import connect, listening
from loadproof.harness.cache.wire import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    VERSION,
    decode,
    receive_message,
    send_message,
)
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob, Serving, serving
from loadproof.harness.errors import BadFrame, DaemonUnresponsive, TruncatedMessage
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme

LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)
BODIES = {
    "empty": b"",
    "garbage": b"\x80\x04\x95pickle?",
    "not-an-object": b"[1]",
    "duplicate-keys": b'{"version": 1, "version": 1}',
    "nested-duplicate-keys": b'{"key": {"content": "a", "content": "b"}}',
    "nan": b'{"version": NaN}',
    "infinity": b'{"version": -Infinity}',
    "deep-nesting": b'{"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "long-integer": b'{"version": ' + b"9" * 5000 + b"}",
    "two-documents": b"{}{}",
}
REQUESTS = {
    "other-version": {"version": VERSION + 1, "nonce": "0" * 32, "command": "digest"},
    "no-nonce": {"version": VERSION, "command": "digest"},
    "short-nonce": {"version": VERSION, "nonce": "00", "command": "digest"},
    "nonce-not-hex": {"version": VERSION, "nonce": "x" * 32, "command": "probe"},
    "other-command": {"version": VERSION, "nonce": "0" * 32, "command": "exec"},
    "key-not-an-object": {"version": VERSION, "nonce": "0" * 32, "command": "attach", "key": []},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def daemon(tmp_path: Path, path: Path) -> Iterator[Serving]:
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(checkpoint, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    job = DaemonJob(
        checkpoint=checkpoint, layers=(LAYER,), socket=path, transport="memfd", kernel="reference"
    )
    with serving(job) as ready:
        yield ready


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def status_after(path: Path, sent: bytes) -> str:
    with connect(path, 5.0) as connection:
        connection.sendall(sent)
        reply, fds = receive_message(connection, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + 5)
        assert fds == []
        return str(reply["status"])


def assert_serves(path: Path, daemon: Serving) -> None:
    client = CacheClient(path)
    try:
        assert client.digests() == {entry.name: entry.fingerprint for entry in daemon.manifest.entries}
    finally:
        client.close()


@pytest.mark.parametrize("name", BODIES)
def test_malformed_body_is_a_bad_frame(name: str) -> None:
    with pytest.raises(BadFrame):
        decode(BODIES[name])


@pytest.mark.parametrize("name", BODIES)
def test_daemon_refuses_a_malformed_body_and_serves_the_next(name: str, path: Path, daemon: Serving) -> None:
    assert status_after(path, framed(BODIES[name])) == "bad_frame"
    assert_serves(path, daemon)


@pytest.mark.parametrize("length", [MAX_REQUEST_BYTES + 1, 2**32 - 1])
def test_daemon_refuses_an_oversized_length_before_the_body(length: int, path: Path, daemon: Serving) -> None:
    assert status_after(path, struct.pack(">I", length)) == "bad_frame"
    assert_serves(path, daemon)


@pytest.mark.parametrize("name", REQUESTS)
def test_daemon_refuses_an_unknown_request_and_serves_the_next(
    name: str, path: Path, daemon: Serving
) -> None:
    assert status_after(path, framed(json.dumps(REQUESTS[name]).encode())) == "bad_frame"
    assert_serves(path, daemon)


def test_engine_raises_bad_frame_for_a_reply_that_says_so(path: Path, daemon: Serving) -> None:
    client = CacheClient(path)
    try:
        with pytest.raises(BadFrame, match="a command: attach, probe, digest or count"):
            client._exchange({"command": "exec"}, time.monotonic() + 5)
    finally:
        client.close()


def test_message_cut_at_every_byte_is_truncated() -> None:
    whole = framed(b'{"status": "ok"}')
    for cut in range(len(whole)):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                theirs.sendall(whole[:cut])
            with pytest.raises(TruncatedMessage):
                receive_message(ours, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + 5)


def test_whole_message_is_received() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(framed(b'{"status": "ok"}'))
        reply = receive_message(ours, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + 5)
    assert reply == ({"status": "ok"}, [])


def test_dribbling_daemon_is_unresponsive_at_the_deadline_of_the_whole_message(path: Path) -> None:
    ended = threading.Event()

    def dribble(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                for byte in framed(b'{"status": "' + b"x" * 1000 + b'"}'):
                    connection.send(bytes([byte]))
                    if ended.wait(0.05):
                        return
            except OSError:
                return

    with listening(path) as listener:
        peer = threading.Thread(target=dribble, args=(listener,))
        peer.start()
        client = CacheClient(path, timeout=0.3)
        began = time.monotonic()
        try:
            with pytest.raises(DaemonUnresponsive):
                client.digests()
            # A deadline for each byte would never pass: bytes come every 0.05 s, for 50 s.
            assert 0.25 < time.monotonic() - began < 5
        finally:
            ended.set()
            client.close()
            peer.join()


def test_peer_that_takes_nothing_is_unresponsive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(DaemonUnresponsive):
        send_message(ours, {"filling": "x" * (4 << 20)}, deadline=time.monotonic() + 0.2)


@pytest.mark.parametrize(
    ("request_unread", "reply_unread"),
    [(b"", b""), (b"{", b""), (b"", b"{"), (b"{", b"{")],
    ids=["nothing-unread", "request-unread", "reply-unread", "both-unread"],
)
def test_daemon_is_lost_once_it_is_gone(path: Path, request_unread: bytes, reply_unread: bytes) -> None:
    """Whatever nobody has read: with a request, the kernel resets the connection."""
    with listening(path) as listener:
        client = CacheClient(path)
        try:
            daemon, _ = listener.accept()
            with daemon:
                client._connection.sendall(request_unread)
                daemon.sendall(reply_unread)
                assert not client.lost()
            assert client.lost()
        finally:
            client.close()


def test_attaching_as_a_whole_has_one_deadline(path: Path) -> None:
    """The reply comes in time, and the manifest behind it would too, had it the time for itself."""

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            request, _ = receive_message(connection, limit=MAX_REQUEST_BYTES, deadline=time.monotonic() + 5)
            for message in ({"status": "ok", "nonce": request["nonce"], "epoch": "e"}, {}):
                time.sleep(0.4)
                with suppress(TruncatedMessage):
                    send_message(connection, message, deadline=time.monotonic() + 5)

    with listening(path) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        client = CacheClient(path, timeout=0.6)
        try:
            with pytest.raises(DaemonUnresponsive):
                client.attach({}, "memfd")
        finally:
            client.close()
            thread.join()
