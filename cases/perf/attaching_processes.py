"""The engines of test_attaching: each takes what it is sent, times how long that takes, and ends.

Forked by multiprocessing's forkserver with torch imported; CUDA is started before the clock runs.
"""

import time
from multiprocessing.connection import Connection
from pathlib import Path

from loadproof.harness.cache.arena.cuda_driver import current_device
from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.key import Key
from loadproof.harness.cache.manifest import views


def by_handles(channel: Connection) -> None:
    """torch's way: asked for, a message with a handle of each tensor, each opened by itself."""
    current_device()
    channel.send("ready")
    channel.recv()
    began = time.perf_counter()
    channel.send("attach")
    tensors = channel.recv()
    value = int(tensors[-1][0])
    channel.send((time.perf_counter() - began, len(tensors), value))
    channel.recv()


def by_arena(channel: Connection, socket: Path, key: Key, transport: str) -> None:
    """Ours, as a whole: connect, show the key, map the arena, check the manifest, make each tensor's view."""
    current_device()
    channel.send("ready")
    channel.recv()
    began = time.perf_counter()
    attached = CacheClient(socket).attach(key, transport)
    held = views(attached.manifest, attached.arena)
    value = int(held[attached.manifest.entries[-1].layer]["weight"][0])
    channel.send((time.perf_counter() - began, len(held), value))
    channel.recv()
