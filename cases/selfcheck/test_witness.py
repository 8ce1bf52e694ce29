"""The witnesses see what happened, and nothing that did not."""

import mmap
import os
from pathlib import Path

import pytest
import torch

from loadproof.harness.witness.inotify import FileWitness
from loadproof.harness.witness.maps import memory_identity

FILE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / FILE).write_bytes(b"weights")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / FILE).symlink_to(tmp_path / "real" / FILE)
    (tmp_path / "links" / "again.safetensors").symlink_to(tmp_path / "real" / FILE)
    return tmp_path


def test_opening_is_seen_by_folder_and_by_inode(folder: Path) -> None:
    with (
        FileWitness(folder / "real", [FILE]) as here,
        FileWitness(folder / "links", [FILE], by_inode=True) as there,
    ):
        assert (here.opened(), there.opened()) == ([], [])
        (folder / "links" / FILE).read_bytes()
        assert (here.opened(), there.opened()) == ([FILE], [FILE])


def test_removal_is_not_opening(folder: Path) -> None:
    with FileWitness(folder / "links", [FILE], by_inode=True) as witness:
        (folder / "real" / FILE).unlink()
        assert witness.opened() == []


def test_two_names_of_one_file_are_both_named(folder: Path) -> None:
    names = [FILE, "again.safetensors"]
    with FileWitness(folder / "links", names, by_inode=True) as witness:
        (folder / "real" / FILE).read_bytes()
        assert witness.opened() == sorted(names)


def test_another_file_of_the_folder_is_not_a_weight_file(folder: Path) -> None:
    (folder / "real" / "config.json").write_text("{}")
    with FileWitness(folder / "real", [FILE]) as witness:
        (folder / "real" / "config.json").read_text()
        assert witness.opened() == []


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"a  b\x85c", "\u2028".encode()], ids=str)
def test_memory_is_found_whatever_files_are_mapped(tmp_path: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    Path(os.fsdecode(path)).write_bytes(b"x" * 4096)
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 4096, prot=mmap.PROT_READ):
        assert memory_identity(torch.zeros(3))[0].startswith(f"private:{os.getpid()}:")
    os.close(fd)


def test_views_of_one_storage_differ_by_their_offset() -> None:
    whole = torch.zeros(8, 16)
    allocation, offset = memory_identity(whole)
    assert offset == 0
    assert memory_identity(whole[3]) == (allocation, 3 * 16 * 4)
    assert memory_identity(whole.clone())[0] != allocation
