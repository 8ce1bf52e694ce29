"""The daemon's serving side: one thread a connection, and the connection is the reference.

When an engine dies, by whatever signal, the kernel closes its connection and nothing is left to count.
Commands: `attach` (key in, manifest and descriptor out), `probe` (writes a nonce), `digest` (hashes again)
and `count` (how often it handed out its memory).
"""

import json
import os
import re
import reprlib
import socket
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import BadFrame, LoadproofError, UnsafeSocket
from ..fingerprint import fingerprint
from .arena import PROBE_BYTES, Arena
from .key import Key, differing_fields
from .manifest import Manifest
from .wire import MAX_REQUEST_BYTES, VERSION, peer_pid, receive_message, send_message

HANDSHAKE_SECONDS = 5.0
"""For the first request, and for completing any message once it has begun."""
NONCE = re.compile(rf"[0-9a-f]{{{2 * PROBE_BYTES}}}")
MAX_CONNECTIONS = 64
MAX_CONNECTIONS_PER_PID = 8


class _Reply(NamedTuple):
    message: dict[str, Any]
    fd: int | None = None
    manifest: bytes | None = None
    """Behind the message, in a frame of its own."""


class CacheServer:
    """Serves one arena on one listening socket until `close`."""

    def __init__(
        self, listener: socket.socket, arena: Arena, manifest: Manifest, key: Key, transport: str
    ) -> None:
        self._listener = listener
        self._arena = arena
        self._manifest = manifest
        # Written out once: it is the same for every engine.
        self._described = json.dumps(manifest.to_json()).encode()
        self._key = key
        self._transport = transport
        self._epoch = os.urandom(8).hex()
        self._open: dict[socket.socket, int] = {}
        self._serving: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._attachments = 0
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting and drop every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=2)
        with self._lock:
            for connection in self._open:
                # One whose engine just left is closed before it is taken off the list.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            serving = list(self._serving)
        # The arena is unmapped next, and a thread may be hashing it.
        for thread in serving:
            thread.join(HANDSHAKE_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._admit(connection):
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                with self._lock:
                    self._serving.add(thread)
                thread.start()
            else:
                connection.close()

    def _admit(self, connection: socket.socket) -> bool:
        try:
            pid = peer_pid(connection)
        except UnsafeSocket:
            return False
        with self._lock:
            same = sum(1 for other in self._open.values() if other == pid)
            if len(self._open) >= MAX_CONNECTIONS or same >= MAX_CONNECTIONS_PER_PID:
                return False
            self._open[connection] = pid
            return True

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._answer(connection, time.monotonic() + HANDSHAKE_SECONDS)
            while self._next_request_begins(connection):
                self._answer(connection, time.monotonic() + HANDSHAKE_SECONDS)
        except (LoadproofError, OSError):
            pass  # The engine is gone or broke the protocol; it has been told where that was possible.
        finally:
            # Forgotten before it is closed: `close` must never touch a descriptor number that is free again.
            with self._lock:
                self._open.pop(connection, None)
                self._serving.discard(threading.current_thread())
            connection.close()

    @staticmethod
    def _next_request_begins(connection: socket.socket) -> bool:
        # An attached engine may stay silent for as long as it lives; only a begun message has a deadline.
        connection.settimeout(None)
        return bool(connection.recv(1, socket.MSG_PEEK))

    def _answer(self, connection: socket.socket, deadline: float) -> None:
        try:
            request, fds = receive_message(connection, limit=MAX_REQUEST_BYTES, deadline=deadline)
            for fd in fds:
                os.close(fd)
            reply = self._reply(request)
        except BadFrame as error:
            reply = _Reply({"status": "bad_frame", "message": str(error)})
        message = reply.message | {"epoch": self._epoch}
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        send_message(connection, message, deadline=deadline, fd=reply.fd, written=reply.manifest)
        if message["status"] == "bad_frame":
            raise BadFrame("request", expected="a valid request", found="none", remedy="Reconnect.")

    def _reply(self, request: dict[str, Any]) -> _Reply:
        command, nonce = request.get("command"), request.get("nonce")
        if request.get("version") != VERSION or not (isinstance(nonce, str) and NONCE.fullmatch(nonce)):
            raise _bad_request(f"version {VERSION} and a nonce of {2 * PROBE_BYTES} hex digits", request)
        answer: dict[str, Any] = {"status": "ok", "nonce": nonce}
        if command == "attach":
            return self._attach(request, answer)
        if command == "probe":
            self._arena.write_probe(bytes.fromhex(nonce))
            return _Reply(answer)
        if command == "digest":
            return _Reply(answer | {"digests": self._digests()})
        if command == "count":
            return _Reply(answer | {"attachments": self._attachments})
        raise _bad_request("a command: attach, probe, digest or count", command)

    def _attach(self, request: dict[str, Any], answer: dict[str, Any]) -> _Reply:
        key = request.get("key")
        if not isinstance(key, dict) or not all(isinstance(value, str | None) for value in key.values()):
            raise _bad_request("a key of texts and nulls", key)
        fields = differing_fields(self._key, key)
        if fields:
            return _Reply(answer | {"status": "key_mismatch", "fields": fields})
        with self._lock:
            self._attachments += 1
        return _Reply(answer | {"transport": self._transport}, self._arena.fd, self._described)

    def _digests(self) -> dict[str, str]:
        return {e.name: fingerprint(self._arena.read(e.offset, e.nbytes)) for e in self._manifest.entries}


def _bad_request(expected: str, found: object) -> BadFrame:
    return BadFrame(
        "request",
        expected=expected,
        found=reprlib.repr(found),
        remedy="Check that both ends run the same loadproof.",
    )
