"""The engines of test_attaching: each attaches to a small arena or tensor first, so that code is loaded,
and then times how long the large one takes.

Forked by multiprocessing's forkserver with torch imported.
"""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing  # noqa: F401 - lets tensors be pickled

from loadproof.harness.cache import client
from loadproof.harness.cache.arena.cuda_driver import current_device
from loadproof.harness.cache.key import Key
from loadproof.harness.cache.views import views

Taken = tuple[float, float, int, int]
"""Seconds from the request to the first read, seconds of it in opening memory, tensors, and the byte read."""


def live(channel: Connection, attach: Callable[..., Taken], small: Any, large: Any) -> None:
    """One engine: warm up, be told to go, attach, report, and hold on until it is told to end."""
    current_device()
    attach(channel, *small)
    channel.send("ready")
    channel.recv()
    channel.send(attach(channel, *large))
    channel.recv()


def by_handles(channel: Connection, name: str) -> Taken:
    """torch's way: asked for, a message with a handle of each tensor, each opened by itself."""
    began = time.perf_counter()
    channel.send(name)
    message = channel.recv_bytes()
    opening = time.perf_counter()
    tensors = ForkingPickler.loads(message)
    opened = time.perf_counter()
    value = int(tensors[-1][0])
    return time.perf_counter() - began, opened - opening, len(tensors), value


def by_arena(channel: Connection, socket: Path, key: Key, transport: str) -> Taken:
    """Ours, as a whole: connect, show the key, check the manifest, map the arena, make each tensor's view."""
    spent: list[float] = []
    mapping = client.map_arena

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        arena = mapping(*arguments)
        spent.append(time.perf_counter() - start)
        return arena

    client.map_arena = timed
    began = time.perf_counter()
    attached = client.CacheClient(socket).attach(key, transport)
    held = views(attached.manifest, attached.arena)
    value = int(held[attached.manifest.entries[-1].layer]["weight"][0])
    seconds = time.perf_counter() - began
    client.map_arena = mapping
    return seconds, spent[0], len(held), value
