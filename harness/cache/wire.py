"""The wire: length-prefixed JSON over a Unix socket, descriptors beside it. No pickle.

A frame is four bytes of length, big-endian, then that many bytes; a message is a frame of UTF-8 JSON. One
deadline covers a whole frame, so that a peer that dribbles bytes is dropped as surely as a silent one.
"""

import json
import os
import socket
import struct
import time
from typing import Any

from ..errors import BadFrame, DaemonUnresponsive, TruncatedMessage, UnsafeSocket

VERSION = 2
"""Of requests and replies; both ends must be of one."""
MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")


def peer_pid(connection: socket.socket) -> int:
    """The peer's pid, as the kernel vouches for it; raises UnsafeSocket when it is another user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise UnsafeSocket(
            f"peer process {pid}",
            expected=f"user {os.geteuid()}",
            found=f"user {uid}",
            remedy="Run daemon and engine as the same user.",
        )
    return int(pid)


def send_message(
    connection: socket.socket,
    message: dict[str, Any],
    *,
    deadline: float,
    fd: int | None = None,
    written: bytes | None = None,
) -> None:
    """Send one message, and a descriptor with its first byte.

    Args:
        deadline: `time.monotonic()` value at which all of it must be out.
        written: JSON that was written out before; it follows as a frame of its own.

    Raises:
        DaemonUnresponsive: the peer did not take it in time.
        TruncatedMessage: the peer is gone.
    """
    body = json.dumps(message, allow_nan=False).encode()
    frames = [body] if written is None else [body, written]
    frame = memoryview(b"".join(_LENGTH.pack(len(each)) + each for each in frames))
    try:
        if fd is not None:
            connection.settimeout(_remaining(deadline))
            sent = socket.send_fds(connection, [frame], [fd])
            frame = frame[sent:]
        while frame:
            connection.settimeout(_remaining(deadline))
            frame = frame[connection.send(frame) :]
    except TimeoutError as error:
        raise _late("take a message") from error
    except OSError as error:
        raise _gone(f"{error.strerror}") from error


def receive_message(
    connection: socket.socket, *, limit: int, deadline: float
) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and the descriptors that came with it.

    Raises:
        BadFrame: longer than `limit` bytes, or not a JSON object.
        DaemonUnresponsive: not complete by `deadline`.
        TruncatedMessage: the peer closed the connection first.
    """
    fds: list[int] = []
    try:
        header = _receive_exactly(connection, _LENGTH.size, deadline, fds)
        (length,) = _LENGTH.unpack(header)
        if length > limit:
            raise _bad(f"at most {limit} bytes", f"a length of {length}")
        return decode(_receive_exactly(connection, length, deadline, fds)), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def decode(body: bytes) -> dict[str, Any]:
    """Parse one JSON object strictly; raises BadFrame for anything else."""
    try:
        message = json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _bad("a JSON object in UTF-8", f"{type(error).__name__}: {str(error)[:100]}") from error
    if not isinstance(message, dict):
        raise _bad("a JSON object", type(message).__name__)
    return message


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _receive_exactly(connection: socket.socket, count: int, deadline: float, fds: list[int]) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            connection.settimeout(_remaining(deadline))
            chunk, received, _, _ = socket.recv_fds(connection, min(count - len(data), _CHUNK_BYTES), 4)
        except TimeoutError as error:
            raise _late("complete a message") from error
        except OSError as error:
            raise _gone(f"{error.strerror}") from error
        fds.extend(received)
        if not chunk:
            raise _gone(f"the end after {len(data)} of {count} bytes")
        data += chunk
    return bytes(data)


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _bad(expected: str, found: str) -> BadFrame:
    return BadFrame(
        "message", expected=expected, found=found, remedy="Check that both ends run the same loadproof."
    )


def _late(what: str) -> DaemonUnresponsive:
    return DaemonUnresponsive(
        "peer",
        expected=f"the peer to {what} before the deadline",
        found="silence",
        remedy="Check whether the process is stopped or overloaded; restart it.",
    )


def _gone(found: str) -> TruncatedMessage:
    return TruncatedMessage(
        "peer", expected="a whole message", found=found, remedy="Look at the peer's log; it may have died."
    )
