"""Attaching to one arena beside opening torch's handle of each tensor: `pytest -s` with this file and a GPU.

Both give an engine of its own the same bytes in the same tensors, and both are timed from its request to the
first read through the last tensor. Torch shares an allocation by an IPC handle and an event, which is how
several inference engines pass weights; they are made anew for each engine, since each is counted.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from loadproof.cases.perf import attaching_processes
from loadproof.cases.perf.ratios import abba, ratio
from loadproof.harness.cache.arena import OFFSET_ALIGNMENT, create_arena
from loadproof.harness.cache.manifest import Entry, Manifest
from loadproof.harness.cache.server import CacheServer
from loadproof.harness.cache.socket_path import listening
from loadproof.harness.formats import Layout

KEY = {"content": "of this test"}
ROUNDS = 8
VALUE = 7
SECONDS = 120


@dataclass(frozen=True, slots=True)
class Shape:
    """Tensors of one size, and what is asked."""

    count: int
    nbytes: int
    goal: float
    """torch's median time over ours, with the whole interval above."""


SHAPES = {"300-of-24-mb": Shape(300, 24_000_000, 20.0), "2000-of-64-kib": Shape(2000, 64 << 10, 4.0)}


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU on this host")
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", attaching_processes.__name__])
    return context


class Engines:
    """Starts engines one at a time, and has each timed by its own clock."""

    def __init__(self, context: ForkServerContext, shape: Shape) -> None:
        self._context = context
        self._shape = shape

    def milliseconds(self, engine: Callable[..., None], *given: Any, sent: Sequence[Any] = ()) -> float:
        """Of one engine, which is sent what it asks for; what it read through the last tensor is checked."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=engine, args=(theirs, *given))
        process.start()
        try:
            assert self._answer(ours) == "ready"
            ours.send("go")
            if sent:
                assert self._answer(ours) == "attach"
                ours.send(sent)
            seconds, count, value = self._answer(ours)
            assert (count, value) == (self._shape.count, VALUE)
            ours.send("done")
            process.join(SECONDS)
        finally:
            process.kill()
        return float(seconds) * 1e3

    @staticmethod
    def _answer(ours: Connection) -> Any:
        assert ours.poll(SECONDS), "the engine is silent"
        return ours.recv()


@contextmanager
def served(shape: Shape, transport: str, socket: Path) -> Iterator[None]:
    """An arena of these tensors behind a socket, in this process."""
    step = -(-shape.nbytes // OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT
    arena = create_arena(transport, shape.count * step)
    arena.write(0, torch.full((shape.count * step,), VALUE, dtype=torch.uint8, device="cuda"))
    arena.freeze()
    entries = [
        Entry(
            layer=f"model.layers.{index}.mlp.down_proj",
            tensor="weight",
            dtype="uint8",
            shape=(shape.nbytes,),
            stride=(1,),
            offset=index * step,
            nbytes=shape.nbytes,
            sha256="0" * 64,
        )
        for index in range(shape.count)
    ]
    layout = Layout(transposed=True, logical_width=16, padded_width=16, logical_k=16, padded_k=16)
    manifest = Manifest(
        arena_bytes=arena.nbytes,
        probe_offset=arena.probe_offset,
        entries=tuple(entries),
        layouts={entry.layer: layout for entry in entries},
    )
    with listening(socket) as listener:
        server = CacheServer(listener, arena, manifest, KEY, transport)
        yield
        server.close()
    arena.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["cuda-vmm", "cuda-ipc"])
@pytest.mark.parametrize("name", SHAPES)
def test_attaching_beside_handles(
    context: ForkServerContext,
    name: str,
    transport: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    shape = SHAPES[name]
    engines, socket = Engines(context, shape), tmp_path / "d" / "s"
    tensors = [
        torch.full((shape.nbytes,), VALUE, dtype=torch.uint8, device="cuda") for _ in range(shape.count)
    ]
    torch.cuda.synchronize()

    def handles() -> float:
        return engines.milliseconds(attaching_processes.by_handles, sent=tensors)

    def arena() -> float:
        return engines.milliseconds(attaching_processes.by_arena, socket, KEY, transport)

    with served(shape, transport, socket):
        handles_ms, arena_ms = abba(handles, arena, ROUNDS)
    tensors.clear()
    torch.cuda.empty_cache()
    found = ratio(handles_ms, arena_ms)
    print(
        f"\nattaching {name} by {transport}: ratio {found}, "
        f"{statistics.median(arena_ms):.2f} ms beside {statistics.median(handles_ms):.1f} ms"
    )
    record_property("ratio", [round(value, 2) for value in (found.median, found.low, found.high)])
    record_property("ms", {"arena": arena_ms, "handles": handles_ms})
    assert found.low >= shape.goal, f"ratio {found}"
