"""Frames of every kind, both ways: each error is typed, and a healthy engine is served afterwards."""

import json
import os
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
from loadproof.harness.errors import BadFrame, CacheError, LoadproofError
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme

from .strategies import examples, json_values

LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)
NONCE = "0" * 32
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.fixture(scope="module")
def escaped() -> Iterator[list[BaseException]]:
    """Exceptions that ended a thread of the daemon."""
    seen: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda raised: seen.append(raised.exc_value or raised.exc_type())
    yield seen
    threading.excepthook = before


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, escaped: list[BaseException]
) -> Iterator[tuple[Path, Serving]]:
    folder = tmp_path_factory.mktemp("wire")
    folder.chmod(0o700)
    checkpoint, path = folder / "checkpoint", folder / "s"
    write_checkpoint(checkpoint, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    job = DaemonJob(
        checkpoint=checkpoint, layers=(LAYER,), socket=path, transport="memfd", kernel="reference"
    )
    with serving(job) as ready:
        yield path, ready


def answers(path: Path, sent: bytes) -> bytes:
    """All that the daemon says to `sent` before it hangs up."""
    with connect(path, 5.0) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        said = bytearray()
        with suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                said += chunk
        return bytes(said)


def assert_serves(daemon: tuple[Path, Serving], escaped: list[BaseException]) -> None:
    path, ready = daemon
    client = CacheClient(path)
    try:
        attached = client.attach(ready.key, "memfd")
        attached.arena.close()
        assert client.digests() == {entry.name: entry.fingerprint for entry in ready.manifest.entries}
    finally:
        client.close()
    assert escaped == []


def status(said: bytes) -> str:
    # Not by json: an echo of a deep request would be too deep for the parser here.
    found = re.search(rb'"status": "([a-z_]+)"', said)
    assert found, said[:100]
    return found[1].decode()


# --- what the daemon is sent ------------------------------------------------------------------


def valid_requests(key: dict[str, str | None]) -> list[bytes]:
    common = {"version": VERSION, "nonce": NONCE}
    commands: list[dict[str, Any]] = [
        {"command": "attach", "key": key},
        {"command": "probe"},
        {"command": "digest"},
    ]
    return [framed(json.dumps(common | command).encode()) for command in commands]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """A frame with some bytes changed, dropped, doubled or added, or with another length."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randint(1, 8)]
        elif kind == 3:
            data[at:at] = rng.choice([b"{", b"[", b'"', b"1e999", b"null", b"-1", b"\\ud800", b" ", b"true"])
        else:
            data[:4] = struct.pack(">I", max(0, len(data) - 4))
    return bytes(data)


def test_two_thousand_mutated_frames_harm_nobody(
    daemon: tuple[Path, Serving], escaped: list[BaseException]
) -> None:
    path, ready = daemon
    requests, rng = valid_requests(ready.key), random.Random(20261130)
    statuses: dict[str, int] = {}
    for _ in range(2000):
        said = answers(path, mutated(rng.choice(requests), rng))
        name = status(said) if said else "hung up"
        statuses[name] = statuses.get(name, 0) + 1
    assert set(statuses) == {"ok", "key_mismatch", "bad_frame", "hung up"}, statuses
    assert_serves(daemon, escaped)


@example({"command": "attach", "key": {"content": float("inf")}})
@example({"command": "probe", "nonce": " " * 32})
@example({"command": "probe", "nonce": "00 " * 10 + "00"})
@example({"command": "probe", "nonce": "\ud800" * 32})
@example({"command": "attach", "key": {"\ud800": "\ud800"}})
@given(st.fixed_dictionaries({"command": st.sampled_from(["attach", "probe", "digest"])}, optional={
    "key": objects | json_values, "nonce": json_values | st.text(" 0f", min_size=32, max_size=32),
    "version": json_values,
}))  # fmt: skip
@examples(300)
def test_every_request_has_an_answer(
    daemon: tuple[Path, Serving], escaped: list[BaseException], request_: dict[str, Any]
) -> None:
    body = json.dumps({"version": VERSION, "nonce": NONCE} | request_).encode()
    # Python writes inf as Infinity, which is not JSON; 1e999 is, and reads as inf.
    said = answers(daemon[0], framed(body.replace(b"Infinity", b"1e999")))
    assert status(said) in ("ok", "key_mismatch", "bad_frame")
    assert escaped == []


@pytest.mark.parametrize("field", ["version", "nonce", "command", "key", "content"])
def test_request_of_any_depth_has_an_answer(
    daemon: tuple[Path, Serving], escaped: list[BaseException], field: str
) -> None:
    rest = {"version": VERSION, "nonce": NONCE, "command": "attach", "key": "KEY"}
    place = "KEY" if field in ("key", "content") else rest[field]
    # Around the recursion limit, what can still be parsed may be too deep to be printed.
    for depth in [10, 500, *range(900, 1001, 7), 1500, 5000, 15_000]:
        deep = "[" * depth + "]" * depth
        deep = f'{{"content": {deep}}}' if field == "content" else deep
        body = json.dumps(rest).replace(json.dumps(place), deep, 1)
        assert status(answers(daemon[0], framed(body.encode()))) == "bad_frame"
    assert_serves(daemon, escaped)


def test_descriptors_sent_along_are_closed(
    daemon: tuple[Path, Serving], escaped: list[BaseException]
) -> None:
    path, _ = daemon
    read, write = os.pipe()
    with connect(path, 5.0) as connection:
        body = framed(json.dumps({"version": VERSION, "nonce": NONCE, "command": "probe"}).encode())
        socket.send_fds(connection, [body], [write] * 6)
        os.close(write)
        receive_message(connection, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + 5)
    # The end of the pipe is seen only once nobody holds its other end.
    assert os.read(read, 1) == b""
    os.close(read)
    assert_serves(daemon, escaped)


@given(st.binary(max_size=64) | json_values.map(lambda v: json.dumps(v).encode()))
@examples(300)
def test_body_is_an_object_or_a_bad_frame(body: bytes) -> None:
    try:
        assert isinstance(decode(body), dict)
    except BadFrame:
        pass


@given(objects.filter(lambda o: "Infinity" not in json.dumps(o)))
@examples(100)
def test_message_arrives_as_it_was_sent(message: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_message(ours, message, deadline=time.monotonic() + 5)
        received, fds = receive_message(theirs, limit=MAX_REQUEST_BYTES, deadline=time.monotonic() + 5)
    assert (received, fds) == (message, [])


# --- what the engine is answered --------------------------------------------------------------


class FakeDaemon:
    """Answers each request with `answer`, the request's nonce put into it."""

    def __init__(self, listener: socket.socket) -> None:
        self.answer: dict[str, Any] = {}
        self.fds = 0
        self.deep = "null"
        """What stands for the text DEEP in the answer."""
        self._listener = listener
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(LoadproofError, OSError):
                deadline = time.monotonic() + 5
                request, _ = receive_message(connection, limit=MAX_REQUEST_BYTES, deadline=deadline)
                reply = {"nonce": request["nonce"], "epoch": "e"} | self.answer
                manifest = reply.pop("manifest", {})
                frames = self._frame(reply) + self._frame(manifest)
                memory = [os.memfd_create("fake") for _ in range(self.fds)]
                socket.send_fds(connection, [frames], memory) if memory else connection.sendall(frames)
                for fd in memory:
                    os.close(fd)

    def _frame(self, message: object) -> bytes:
        body = json.dumps(message).replace("Infinity", "1e999").replace('"DEEP"', self.deep)
        return framed(body.encode())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, FakeDaemon]]:
    folder = tmp_path_factory.mktemp("fake")
    folder.chmod(0o700)
    with listening(folder / "s") as listener:
        peer = FakeDaemon(listener)
        yield folder / "s", peer
        peer.close()


CALLS: dict[str, Callable[[CacheClient], object]] = {
    "attach": lambda client: client.attach({"content": "c"}, "memfd"),
    "probe": lambda client: client.probe(b"p" * 16),
    "digests": lambda client: client.digests(),
}
answers_of_a_liar = st.fixed_dictionaries(
    {"status": st.sampled_from(["ok", "key_mismatch"]) | json_values},
    optional={
        "fields": objects | json_values | st.dictionaries(st.text(max_size=3), st.lists(json_values)),
        "digests": objects | json_values,
        "manifest": objects | json_values,
        "transport": st.just("memfd") | json_values,
        "message": json_values,
    },
)


@pytest.mark.parametrize("call", CALLS)
@example(answer={"status": "key_mismatch"}, fds=1)
@example(answer={"status": "key_mismatch", "fields": {"content": ["one"]}}, fds=0)
@example(answer={"status": "ok", "digests": []}, fds=0)
@given(answer=answers_of_a_liar, fds=st.integers(0, 2))
@examples(120)
def test_every_answer_is_taken_or_a_typed_error(
    fake: tuple[Path, FakeDaemon], call: str, answer: dict[str, Any], fds: int
) -> None:
    path, peer = fake
    peer.answer, peer.fds = answer, fds
    before = len(os.listdir("/proc/self/fd"))
    client = CacheClient(path)
    try:
        result = CALLS[call](client)
        assert call != "attach", "an arena that is not there was attached"
        assert result is None or all(isinstance(t, str) for pair in result.items() for t in pair)  # type: ignore[attr-defined]
    except CacheError:
        pass
    finally:
        client.close()
    settle(before)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("field", ["status", "nonce", "epoch", "fields", "digests", "manifest", "transport"])
def test_answer_of_any_depth_is_a_typed_error(fake: tuple[Path, FakeDaemon], call: str, field: str) -> None:
    path, peer = fake
    peer.fds = 0
    for depth in [10, 500, *range(900, 1001, 7), 1500]:
        status_ = "key_mismatch" if field == "fields" else "ok"
        peer.answer = {"status": status_, "digests": {}} | {field: "DEEP"}
        peer.deep = "[" * depth + "]" * depth
        client = CacheClient(path)
        try:
            with suppress(CacheError):
                CALLS[call](client)
        finally:
            client.close()


def settle(expected: int) -> None:
    deadline = time.monotonic() + 2
    while len(os.listdir("/proc/self/fd")) > expected and time.monotonic() < deadline:
        time.sleep(0.001)
