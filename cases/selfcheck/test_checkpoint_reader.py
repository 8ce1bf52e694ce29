"""The reader takes exactly the files that belong to the checkpoint, whole."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.errors import CheckpointChanged, InvalidInput, MalformedCheckpoint, MissingTensor

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
BIG = 20_000_003
"""More than two chunks of 8 MiB."""


def test_a_link_is_followed_inside_the_folder(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "real.bin")
    (tmp_path / FIRST).symlink_to("real.bin")
    with CheckpointReader(tmp_path) as reader:
        assert reader.load(["x"])["x"].tolist() == [1.0]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedCheckpoint):
        CheckpointReader(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        CheckpointReader(tmp_path / "absent")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / FIRST)
    with CheckpointReader(tmp_path) as reader, pytest.raises(MissingTensor, match="absent"):
        reader.load(["absent"])


def written(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint of awkward tensors, one of them over several chunks."""
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "big": torch.randint(0, 256, (BIG,), dtype=torch.uint8, generator=generator),
        "empty": torch.empty(0, 4),
        "fp8": torch.randn(5, 7, generator=generator).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(0.25),
        "wide": torch.randn(3, 5, generator=generator).to(torch.bfloat16),
    }
    save_file(tensors, folder / FIRST)
    save_file({"other": torch.arange(9)}, folder / SECOND)
    return {**tensors, "other": torch.arange(9)}


@pytest.mark.parametrize("digested", [False, True], ids=["load", "load-digested"])
def test_loaded_bytes_are_the_written_bytes(digested: bool, tmp_path: Path) -> None:
    tensors = written(tmp_path)
    with CheckpointReader(tmp_path) as reader:
        loaded = reader.load_digested(reader.names)[0] if digested else reader.load(reader.names)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (loaded[name].shape, loaded[name].dtype) == (tensor.shape, tensor.dtype)
        ours, theirs = (t.reshape(-1).view(torch.uint8) for t in (loaded[name], tensor))
        assert torch.equal(ours, theirs), name


def test_the_single_pass_digest_is_the_content_digest(tmp_path: Path) -> None:
    written(tmp_path)
    with CheckpointReader(tmp_path) as reader:
        assert reader.load_digested(["fp8"])[1] == content_digest(tmp_path)


def test_the_counter_counts_what_was_loaded(tmp_path: Path) -> None:
    written(tmp_path)
    with CheckpointReader(tmp_path) as reader:
        before = reader.bytes_read
        reader.load(["fp8"])
        assert reader.bytes_read - before == 35


def test_data_rewritten_after_opening_changes_the_single_pass_digest(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4)}, tmp_path / FIRST)
    before = content_digest(tmp_path)
    with CheckpointReader(tmp_path) as reader:
        with (tmp_path / FIRST).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x40")
        loaded, digest = reader.load_digested(["x"])
    assert loaded["x"].tolist() != [1.0] * 4
    assert digest not in ("", before)


def test_a_header_rewritten_after_opening_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4), "y": torch.ones(4)}, tmp_path / FIRST)
    with CheckpointReader(tmp_path) as reader:
        content = (tmp_path / FIRST).read_bytes()
        swapped = content.replace(b'"x"', b'"z"')
        with (tmp_path / FIRST).open("r+b") as file:
            file.write(swapped)
        with pytest.raises(CheckpointChanged):
            reader.load_digested(["x"])


def test_a_file_cut_after_opening_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4)}, tmp_path / FIRST)
    with CheckpointReader(tmp_path) as reader:
        os.truncate(tmp_path / FIRST, (tmp_path / FIRST).stat().st_size - 1)
        with pytest.raises(MalformedCheckpoint):
            reader.load(["x"])


def test_a_file_replaced_by_rename_is_read_as_it_was_opened(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4)}, tmp_path / FIRST)
    with CheckpointReader(tmp_path) as reader:
        save_file({"x": torch.zeros(4)}, tmp_path / "new.bin")
        os.replace(tmp_path / "new.bin", tmp_path / FIRST)
        assert reader.load(["x"])["x"].tolist() == [1.0] * 4
