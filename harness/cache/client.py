"""The engine's side of the cache: connect, prove who is there, attach."""

import os
import reprlib
import secrets
import select
import time
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

from ..errors import BadFrame, BadManifest, StaleEpoch, UnsafeSocket
from .arena import PROBE_BYTES, Attachment, map_arena
from .key import Key, key_mismatch
from .manifest import Manifest
from .socket_path import connect
from .wire import MAX_REPLY_BYTES, VERSION, peer_pid, receive_message, send_message


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """An engine's hold on the daemon's memory; the open connection is the reference."""

    client: "CacheClient"
    manifest: Manifest
    arena: Attachment


class CacheClient:
    """One connection to one daemon."""

    def __init__(self, path: Path, *, timeout: float = 10.0) -> None:
        """Connect.

        Args:
            path: the daemon's socket.
            timeout: seconds for each whole exchange.

        Raises:
            DaemonUnavailable: no socket, or nobody listens.
            DaemonUnresponsive, UnsafeSocket, SocketPathTooLong: see `socket_path`.
        """
        self._path = path
        self._timeout = timeout
        self._connection: socket = connect(path, timeout)
        self._epoch: str | None = None
        try:
            self.daemon_pid = peer_pid(self._connection)
        except UnsafeSocket:
            self._connection.close()
            raise

    def attach(self, key: Key, transport: str) -> Attached:
        """Map the daemon's arena.

        Raises:
            KeyMismatch: lists every differing field.
            BadManifest, ArenaError, StaleEpoch, TruncatedMessage, DaemonUnresponsive: as named.
        """
        deadline = time.monotonic() + self._timeout
        reply, fds = self._exchange({"command": "attach", "key": key}, deadline)
        try:
            if reply["status"] == "key_mismatch":
                raise key_mismatch(str(self._path), self._fields(reply))
            manifest = Manifest.from_json(self._manifest(fds, deadline))
            if len(fds) != 1 or reply.get("transport") != transport:
                raise BadManifest(
                    self._path,
                    expected=f"transport {transport!r} and one descriptor",
                    found=f"transport {reprlib.repr(reply.get('transport'))} and {len(fds)} descriptors",
                    remedy="Start daemon and engine with the same transport.",
                )
            fd = fds.pop()
        finally:
            _close(fds)
        arena = map_arena(transport, fd, manifest.arena_bytes, manifest.probe_offset)
        return Attached(client=self, manifest=manifest, arena=arena)

    def probe(self, nonce: bytes) -> None:
        """Have the daemon write `nonce` (PROBE_BYTES) to its probe page."""
        self._ask({"command": "probe"}, nonce)

    def digests(self) -> dict[str, str]:
        """Have the daemon look at its arena again; tensor name to fingerprint."""
        digests = self._ask({"command": "digest"}).get("digests")
        if not isinstance(digests, dict) or not all(isinstance(value, str) for value in digests.values()):
            raise self._bad("a digest for each tensor", digests)
        return digests

    def attachments(self) -> int:
        """How often the daemon has handed out its memory so far."""
        count = self._ask({"command": "count"}).get("attachments")
        if type(count) is not int or count < 0:
            raise self._bad("a number of attachments", count)
        return count

    def lost(self) -> bool:
        """Whether the daemon is gone: the kernel closes the connection with it, however it ended."""
        closing = select.poll()
        # Not by reading, which gives an unread reply first, and fails where a request was left unread.
        closing.register(self._connection, select.POLLRDHUP)
        return bool(closing.poll(0))

    def close(self) -> None:
        """Drop the reference."""
        self._connection.close()

    def _manifest(self, fds: list[int], deadline: float) -> dict[str, Any]:
        """The frame behind the reply; what comes with it is closed with `fds`."""
        manifest, more = receive_message(self._connection, limit=MAX_REPLY_BYTES, deadline=deadline)
        fds += more
        return manifest

    def _ask(self, request: dict[str, Any], nonce: bytes | None = None) -> dict[str, Any]:
        """Exchange what needs neither key nor descriptor."""
        reply, fds = self._exchange(request, time.monotonic() + self._timeout, nonce)
        _close(fds)
        if reply["status"] != "ok":
            raise self._bad("status ok", reply["status"])
        return reply

    def _exchange(
        self, request: dict[str, Any], deadline: float, nonce: bytes | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        token = (nonce or secrets.token_bytes(PROBE_BYTES)).hex()
        send_message(self._connection, {"version": VERSION, "nonce": token, **request}, deadline=deadline)
        reply, fds = receive_message(self._connection, limit=MAX_REPLY_BYTES, deadline=deadline)
        try:
            self._check(reply, token)
        except BaseException:
            _close(fds)
            raise
        return reply, fds

    def _check(self, reply: dict[str, Any], token: str) -> None:
        if reply.get("status") not in ("ok", "key_mismatch"):
            message = reply.get("message")
            said = message[:200] if isinstance(message, str) else reprlib.repr(message)
            raise self._bad("status ok", reply.get("status"), f": {said}")
        epoch = reply.get("epoch")
        if reply.get("nonce") != token or (self._epoch is not None and epoch != self._epoch):
            raise StaleEpoch(
                self._path,
                expected="the reply to this request from this daemon",
                found=f"nonce {reprlib.repr(reply.get('nonce'))}, epoch {reprlib.repr(epoch)}",
                remedy="Reconnect; the daemon was replaced, or a reply was replayed.",
            )
        self._epoch = epoch

    def _fields(self, reply: dict[str, Any]) -> dict[str, list[str | None]]:
        fields = reply.get("fields")
        if not isinstance(fields, dict) or not all(_is_pair(value) for value in fields.values()):
            raise self._bad("the differing fields, each with the daemon's and the engine's value", fields)
        return fields

    def _bad(self, expected: str, found: object, more: str = "") -> BadFrame:
        return BadFrame(
            self._path,
            expected=expected,
            # Cut in depth too: repr itself fails on what is nested as deep as JSON may be.
            found=f"{reprlib.repr(found)}{more}",
            remedy="Check that both ends run the same loadproof.",
        )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(v, str | None) for v in value)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
