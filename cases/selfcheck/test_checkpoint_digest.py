"""Digests follow the bytes, not the times."""

import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loadproof.harness.checkpoint import digest as digest_module
from loadproof.harness.checkpoint.digest import SETTLED_NS, config_digests, content_digest, sidecar_digest

NAME = "model.safetensors"


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint old enough to be cached, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({"x": torch.ones(4)}, folder / NAME)
    settle()
    return folder


def settle() -> None:
    """Let the files grow older than the kernel's clock is coarse."""
    time.sleep(2 * SETTLED_NS / 1e9)


def change_last_byte(file: Path) -> None:
    """Change one byte in place and put the old mtime back."""
    times = file.stat()
    with file.open("r+b") as out:
        out.seek(-1, os.SEEK_END)
        out.write(b"\x40")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (times.st_mtime_ns, times.st_size)


@pytest.fixture
def hashings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every folder that sidecar_digest hashed."""
    seen: list[Path] = []

    def counted(path: Path, links_into: Path | None = None) -> str:
        seen.append(path)
        return content_digest(path, links_into)

    monkeypatch.setattr(digest_module, "content_digest", counted)
    return seen


def test_one_changed_byte_changes_the_digest(export: Path) -> None:
    before = content_digest(export)
    change_last_byte(export / NAME)
    assert content_digest(export) != before


def test_another_name_changes_the_digest(export: Path) -> None:
    before = content_digest(export)
    (export / NAME).rename(export / "renamed.safetensors")
    assert content_digest(export) != before


def test_a_copy_has_the_same_digest(export: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / NAME).write_bytes((export / NAME).read_bytes())
    assert content_digest(tmp_path / "copy") == content_digest(export)


def test_a_known_checkpoint_is_not_hashed_again(export: Path, hashings: list[Path]) -> None:
    assert sidecar_digest(export) == sidecar_digest(export) == content_digest(export)
    assert len(hashings) == 1


def test_a_changed_checkpoint_is_hashed_again(export: Path, hashings: list[Path]) -> None:
    before = sidecar_digest(export)
    change_last_byte(export / NAME)
    assert sidecar_digest(export) == content_digest(export) != before
    assert len(hashings) == 2


def test_a_file_that_just_changed_is_not_cached(export: Path, hashings: list[Path]) -> None:
    change_last_byte(export / NAME)
    sidecar_digest(export)
    sidecar_digest(export)
    assert len(hashings) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff"], ids=["empty", "object", "list", "not-utf8"])
def test_a_damaged_cache_is_hashed_again(content: bytes, export: Path, tmp_path: Path) -> None:
    expected = sidecar_digest(export)
    (sidecar,) = (tmp_path / "cache" / "loadproof" / "content").iterdir()
    sidecar.write_bytes(content)
    assert sidecar_digest(export) == expected


def test_an_unwritable_cache_is_no_error(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashings: list[Path]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert sidecar_digest(export) == sidecar_digest(export) == content_digest(export)
    assert len(hashings) == 2


def test_config_digests_tell_absent_from_changed(export: Path) -> None:
    assert config_digests(export) == {"config_sha256": None, "hf_quant_config_sha256": None}
    (export / "config.json").write_text("{}")
    one = config_digests(export)
    (export / "config.json").write_text("{ }")
    two = config_digests(export)
    assert one["config_sha256"] != two["config_sha256"]
    assert one["hf_quant_config_sha256"] is None
