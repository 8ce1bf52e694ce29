"""The other processes of test_arenas: a daemon that answers commands, and engines that live once.

Run as `arena_processes.py daemon <transport> <data bytes> <socket fd>`; as
`arena_processes.py <what> <transport> <arena fd> <arena bytes> <probe offset>`, where the engine stores by a
kernel (`kernel`) or by a copy (`copy`); or as
`arena_processes.py lives <transport> <socket> <key file> <count>`, where many attach to a daemon and end.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from loadproof.harness.cache.arena import Arena, create_arena, map_arena
from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.key import Key
from loadproof.harness.cache.wire import MAX_REPLY_BYTES, receive_message, send_message
from loadproof.harness.errors import TruncatedMessage
from loadproof.harness.fingerprint import fingerprint

PIECE = 16 << 20
SECONDS = 100.0


def pieces(nbytes: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Offsets, and the uint8 CUDA tensors that belong there.

    Every piece differs from the one before, and every byte is a finite E4M3 number.
    """
    base = (torch.arange(PIECE, device="cuda") % 120).to(torch.uint8)
    for offset in range(0, nbytes, PIECE):
        yield offset, base[: nbytes - offset] + offset // PIECE % 7


def exchange(connection: socket.socket, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Send a message and receive the next one."""
    send_message(connection, message, deadline=time.monotonic() + SECONDS)
    return receive_message(connection, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + SECONDS)


def daemon(transport: str, nbytes: int, connection: socket.socket) -> None:
    """Hold the pieces, send the descriptor, then answer until the test's end of the socket is closed."""
    arena = create_arena(transport, nbytes)
    for offset, piece in pieces(nbytes):
        arena.write(offset, piece)
    arena.freeze()
    ready = {"nbytes": arena.nbytes, "probe_offset": arena.probe_offset, "allocation": arena.allocation}
    send_message(connection, ready, deadline=time.monotonic() + SECONDS, fd=arena.fd)
    while True:
        request, _ = receive_message(connection, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + SECONDS)
        reply = answer(arena, nbytes, request)
        send_message(connection, reply, deadline=time.monotonic() + SECONDS)


def answer(arena: Arena, nbytes: int, request: dict[str, Any]) -> dict[str, Any]:
    """What the daemon finds in its own memory, or does to it."""
    if "probe" in request:
        arena.write_probe(bytes.fromhex(request["probe"]))
    if "store" in request:
        store_by_kernel(arena.read(request["store"], 1))
    if "byte" in request:
        return {"byte": int(arena.read(request["byte"], 1).item())}
    if "differing" in request:
        return {"differing": differing(arena, nbytes)}
    return {"free": torch.cuda.mem_get_info()[0]}


def differing(memory: Any, nbytes: int) -> int:
    """How many bytes are not as the daemon wrote them."""
    return sum(int((memory.read(o, p.numel()) != p).sum().item()) for o, p in pieces(nbytes))


def store_by_kernel(memory: torch.Tensor) -> None:
    """One store, by a kernel; raises where the GPU refuses it."""
    memory.bitwise_xor_(0xFF)
    torch.cuda.synchronize()


def store_by_copy(memory: torch.Tensor) -> None:
    """One store, by a copy from the host; raises where the GPU refuses it."""
    memory.copy_(torch.full((1,), 0xFF, dtype=torch.uint8))
    torch.cuda.synchronize()


def live_and_end(transport: str, socket: Path, key: Key, life: int) -> None:
    """In a process of its own: attach to the daemon, read, and end by one of three ways."""
    attached = CacheClient(socket).attach(key, transport)
    entry = attached.manifest.entries[-1]
    if fingerprint(attached.arena.read(entry.offset, entry.nbytes)) != entry.fingerprint:
        os._exit(3)
    if life % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if life % 3 == 1:
        attached.arena.close()
    os._exit(0)


def lives(transport: str, socket: Path, key_file: Path, count: int) -> None:
    """Engines one after the other, forked before CUDA is touched."""
    key = json.loads(key_file.read_text())
    for life in range(count):
        pid = os.fork()
        if pid == 0:
            live_and_end(transport, socket, key, life)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != (-signal.SIGKILL if life % 3 == 0 else 0):
            sys.exit(f"engine {life} ended with {status}")


def main(what: str, transport: str, *numbers: int) -> None:
    if what == "daemon":
        daemon(transport, numbers[0], socket.socket(fileno=numbers[1]))
    attached = map_arena(transport, *numbers)
    {"kernel": store_by_kernel, "copy": store_by_copy}[what](attached.read(0, 1))


if __name__ == "__main__":
    try:
        if sys.argv[1] == "lives":
            lives(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        else:
            main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
    except TruncatedMessage:
        pass  # The test is over.
