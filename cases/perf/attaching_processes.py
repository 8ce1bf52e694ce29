"""The engines of test_attaching: each takes what it is sent, times how long that takes, and ends.

Forked by multiprocessing's forkserver with torch imported; CUDA is started before the clock runs.
"""

import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.multiprocessing

from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.key import Key
from loadproof.harness.cache.manifest import views


def by_handles(channel: Connection) -> None:
    """torch's way: one message with a handle for each tensor, each opened by itself."""
    torch.zeros(1, device="cuda")
    channel.send("ready")
    message = channel.recv_bytes()
    began = time.perf_counter()
    tensors = ForkingPickler.loads(message)
    value = int(tensors[-1][0])
    channel.send((time.perf_counter() - began, len(tensors), value))
    channel.recv()


def by_arena(channel: Connection, socket: Path, key: Key, transport: str) -> None:
    """Ours, as a whole: connect, show the key, map the arena, check the manifest, make each tensor's view."""
    torch.zeros(1, device="cuda")
    channel.send("ready")
    channel.recv_bytes()
    began = time.perf_counter()
    attached = CacheClient(socket).attach(key, transport)
    held = views(attached.manifest, attached.arena)
    value = int(held[attached.manifest.entries[-1].layer]["weight"][0])
    channel.send((time.perf_counter() - began, len(held), value))
    channel.recv()
