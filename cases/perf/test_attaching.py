"""Attaching to one arena beside opening torch's handle of each tensor: `pytest -s` with this file and a GPU.

Both give an engine of its own the same bytes in the same tensors, and both are timed from its request to the
first read through the last tensor, and apart from that in opening the memory: all handles, or the arena.
Torch shares an allocation by an IPC handle and an event, which is how several inference engines pass weights;
they are made anew for each engine, since each is counted.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from loadproof.cases.perf import attaching_processes
from loadproof.cases.perf.ratios import Ratio, abba, ratio
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
    goals: tuple[float, float]
    """torch's median time over ours, as a whole and in opening memory, with the whole interval above."""


SHAPES = {
    "300-of-24-mb": Shape(300, 24_000_000, (5.0, 20.0)),
    "2000-of-64-kib": Shape(2000, 64 << 10, (2.0, 4.0)),
}
Samples = tuple[float, float]


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

    def attach(self, attach: Callable[..., Any], small: Any, large: Any, sent: Any = None) -> Samples:
        """Milliseconds of one engine, whole and in opening memory; what it read at the end is checked.

        `sent` has what an engine asks for, by name.
        """
        ours, theirs = self._context.Pipe()
        arguments = (theirs, attach, small, large)
        process = self._context.Process(target=attaching_processes.live, args=arguments)
        process.start()
        try:
            while (answer := self._answer(ours)) != "ready":
                ours.send_bytes(bytes(ForkingPickler.dumps(sent[answer])))
            ours.send("go")
            while isinstance(answer := self._answer(ours), str):
                ours.send_bytes(bytes(ForkingPickler.dumps(sent[answer])))
            whole, opening, count, value = answer
            assert (count, value) == (self._shape.count, VALUE)
            ours.send("done")
            process.join(SECONDS)
        finally:
            process.kill()
        return whole * 1e3, opening * 1e3

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
            fingerprint="0" * 32,
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
    engines = Engines(context, shape)
    few, many = tmp_path / "few" / "s", tmp_path / "many" / "s"
    sent = {"few": filled(replace(shape, count=1)), "many": filled(shape)}

    def handles() -> Samples:
        return engines.attach(attaching_processes.by_handles, ("few",), ("many",), sent)

    def arena() -> Samples:
        return engines.attach(attaching_processes.by_arena, (few, KEY, transport), (many, KEY, transport))

    with served(replace(shape, count=1), transport, few), served(shape, transport, many):
        theirs, ours = abba(handles, arena, ROUNDS)
    sent.clear()
    torch.cuda.empty_cache()
    found: dict[str, Ratio] = {}
    for index, what in enumerate(("whole", "opening")):
        ours_ms, theirs_ms = [each[index] for each in ours], [each[index] for each in theirs]
        found[what] = ratio(theirs_ms, ours_ms)
        print(
            f"\nattaching {name} by {transport}, {what}: ratio {found[what]}, "
            f"{statistics.median(ours_ms):.2f} ms beside {statistics.median(theirs_ms):.1f} ms"
        )
        record_property(what, {"ratio": str(found[what]), "arena_ms": ours_ms, "handles_ms": theirs_ms})
    missed = [what for what, goal in zip(found, shape.goals, strict=True) if found[what].low < goal]
    assert not missed, {what: str(each) for what, each in found.items()}


def filled(shape: Shape) -> list[torch.Tensor]:
    """Tensors with an allocation each, as far as torch's allocator gives one."""
    tensors = [
        torch.full((shape.nbytes,), VALUE, dtype=torch.uint8, device="cuda") for _ in range(shape.count)
    ]
    torch.cuda.synchronize()
    return tensors
