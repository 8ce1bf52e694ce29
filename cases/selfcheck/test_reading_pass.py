"""The single pass that reads and hashes: every byte once to its place, and no thread or file left behind."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from loadproof.cases.selfcheck.reading import read_digested
from loadproof.harness.checkpoint import reader as reading
from loadproof.harness.checkpoint.digest import content_digest, file_hash
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


def before_each_update(monkeypatch: pytest.MonkeyPatch, hook: Callable[[], None]) -> None:
    """Call `hook` before any update of a file's hash but the first, which is the header."""

    class Hooked:
        def __init__(self) -> None:
            self.hash = file_hash()
            self.past_header = False

        def update(self, data: memoryview) -> None:
            if self.past_header:
                hook()
            self.past_header = True
            self.hash.update(data)

        def hexdigest(self) -> str:
            return self.hash.hexdigest()

    monkeypatch.setattr(reading, "file_hash", Hooked)


def test_a_batch_is_hashed_while_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [64] * 8)
    digest = content_digest(tmp_path)
    read, reads, preadv = threading.Event(), [], os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        reads.append(offset)
        if len(reads) == 3:  # the header, the first batch, the second
            read.set()
        return preadv(fd, buffers, offset)

    waited: list[bool] = []
    with CheckpointReader(tmp_path) as reader:
        monkeypatch.setattr(reading, "CHUNK", 64)
        monkeypatch.setattr(os, "preadv", counted)
        before_each_update(monkeypatch, lambda: waited.append(read.wait(5)))
        assert read_digested(reader, [])[1] == digest
    assert waited == [True] * 8


def fail() -> None:
    raise MemoryError


@pytest.mark.parametrize("fails", ["read", "hash"])
def test_no_thread_outlives_an_error(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [64] * 8)
    before = set(threading.enumerate())
    with CheckpointReader(tmp_path) as reader:
        monkeypatch.setattr(reading, "CHUNK", 64)
        if fails == "read":
            before_each_update(monkeypatch, lambda: os.truncate(tmp_path / WEIGHTS, 1000))
        else:
            before_each_update(monkeypatch, fail)
        with pytest.raises(MalformedCheckpoint if fails == "read" else MemoryError):
            read_digested(reader, reader.names)
    assert set(threading.enumerate()) == before
