"""JSON lines over a socket pair: how a harness and the processes it starts talk."""

import json
import socket
import time
from typing import Any


class Closed(Exception):
    """The other end is gone; not an error by itself."""


class Channel:
    """One end. Messages are builtins; a message is one line."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; raises Closed when nobody is there."""
        try:
            self._socket.settimeout(None)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Closed from error

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message; raises TimeoutError after `timeout` seconds, Closed at the end.

        With 0 seconds, what is there already. ValueError or RecursionError: what came is not a message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._buffer:
            try:
                self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0))
                chunk = self._socket.recv(65536)
            except (TimeoutError, BlockingIOError):
                raise TimeoutError from None
            except OSError as error:
                # Gone, or closed by ourselves.
                raise Closed from error
            if not chunk:
                raise Closed
            self._buffer += chunk
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"a message that is no object: {message!r:.100}")
        return message

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
