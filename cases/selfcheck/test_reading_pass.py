"""The single pass that reads and hashes: every byte once to its place, and no thread or file left behind."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file

from loadproof.cases.selfcheck.reading import read_digested
from loadproof.harness.checkpoint import digest
from loadproof.harness.checkpoint import reader as reading
from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.errors import MalformedCheckpoint

WEIGHTS = "model.safetensors"


def written(folder: Path, sizes: list[int]) -> dict[str, torch.Tensor]:
    """A checkpoint of uint8 tensors of these sizes, in this order in the file."""
    generator = torch.Generator().manual_seed(len(sizes))
    tensors = {
        f"{i:05}": torch.randint(256, (n,), dtype=torch.uint8, generator=generator)
        for i, n in enumerate(sizes)
    }
    save_file(tensors, folder / WEIGHTS)
    return tensors


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000, 1 << 20])
def test_any_selection_is_read_whatever_the_chunk(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [0, 1, 6, 7, 8, 63, 64, 65, 0, 200, 3, 0])
    expected, digest = load_file(tmp_path / WEIGHTS), content_digest(tmp_path)
    monkeypatch.setattr(reading, "CHUNK", chunk)
    random = Random(chunk)
    with CheckpointReader(tmp_path) as reader:
        for _ in range(30):
            names = random.sample(reader.names, random.randint(0, len(reader.names)))
            loaded, content = read_digested(reader, names)
            assert content == digest
            assert list(loaded) == sorted(names)
            assert all(torch.equal(loaded[name], expected[name]) for name in names)


def test_more_tensors_than_one_read_can_fill(tmp_path: Path) -> None:
    tensors = written(tmp_path, [3] * (2 * reading.MOST_BUFFERS + 1))
    with CheckpointReader(tmp_path) as reader:
        loaded, digest = read_digested(reader, tensors)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert digest == content_digest(tmp_path)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = written(tmp_path, [5, 50, 500])
    preadv = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        return preadv(fd, [buffers[0], *(buffer[:9] for buffer in buffers[1:2])], offset)

    monkeypatch.setattr(os, "preadv", short)
    with CheckpointReader(tmp_path) as reader:
        loaded, digest = read_digested(reader, tensors)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert digest == content_digest(tmp_path)


def test_a_name_twice_is_read_once(tmp_path: Path) -> None:
    tensors = written(tmp_path, [5, 50])
    with CheckpointReader(tmp_path) as reader:
        opened = reader.bytes_read
        loaded, _ = read_digested(reader, ["00001", "00001"])
        assert reader.bytes_read - opened == (tmp_path / WEIGHTS).stat().st_size
    assert torch.equal(loaded["00001"], tensors["00001"])


class Hooked:
    """A hash that calls `hook` before each update."""

    hook: ClassVar[Callable[[], object]]

    def __init__(self, data: bytes = b"") -> None:
        self.real = blake3(data)

    def update(self, data: memoryview) -> None:
        type(self).hook()
        self.real.update(data)

    def digest(self) -> bytes:
        return self.real.digest()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading, digest):
        monkeypatch.setattr(module, "CHUNK", 64)
        monkeypatch.setattr(module, "SEGMENT", 128)


@pytest.mark.usefixtures("small_segments")
def test_segments_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [64] * 40)
    expected = digest.content_digest(tmp_path)
    met = threading.Barrier(2)
    threads: set[int] = set()

    def meet() -> None:
        # Only a second thread, in its own first segment, lets the first one go on.
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            met.wait(5)

    with CheckpointReader(tmp_path) as reader:
        monkeypatch.setattr(Hooked, "hook", staticmethod(meet), raising=False)
        monkeypatch.setattr(reading, "blake3", Hooked)
        assert read_digested(reader, [])[1] == expected
    assert len(threads) == 2


def fail() -> None:
    raise MemoryError


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("fails", ["read", "hash"])
def test_no_thread_outlives_an_error(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [64] * 40)
    before = set(threading.enumerate())
    with CheckpointReader(tmp_path) as reader:
        hook = fail if fails == "hash" else lambda: os.truncate(tmp_path / WEIGHTS, 1000)
        monkeypatch.setattr(Hooked, "hook", staticmethod(hook), raising=False)
        monkeypatch.setattr(reading, "blake3", Hooked)
        with pytest.raises(MalformedCheckpoint if fails == "read" else MemoryError):
            read_digested(reader, reader.names)
    assert set(threading.enumerate()) == before
