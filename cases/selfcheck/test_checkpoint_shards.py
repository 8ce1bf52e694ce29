"""A sharded checkpoint is what its index says, and lies in its folder."""

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.errors import MalformedCheckpoint, MissingTensor

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def sharded(folder: Path, shards: Mapping[str, Mapping[str, torch.Tensor]], weight_map: object) -> Path:
    """Write weight files and an index that may disagree with them."""
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("home", [FIRST, SECOND], ids=["first", "second"])
def test_the_index_wins_over_a_stale_duplicate(home: str, tmp_path: Path) -> None:
    values = {FIRST: 1.0, SECOND: 2.0}
    shards = {name: {"x": torch.tensor([value]), name: torch.zeros(1)} for name, value in values.items()}
    sharded(tmp_path, shards, {"x": home, FIRST: FIRST, SECOND: SECOND})
    with CheckpointReader(tmp_path) as reader:
        assert reader.load(["x"])["x"].tolist() == [values[home]]
        assert reader.load_digested(["x"])[0]["x"].tolist() == [values[home]]


def test_a_file_that_the_index_does_not_name_is_ignored(tmp_path: Path) -> None:
    sharded(tmp_path, {FIRST: {"x": torch.ones(1)}, "model.safetensors": {"y": torch.ones(1)}}, {"x": FIRST})
    with CheckpointReader(tmp_path) as reader:
        assert reader.names == ("x",)
        assert reader.ignored == ("model.safetensors",)


def test_a_tensor_that_the_index_does_not_place_here_is_ignored(tmp_path: Path) -> None:
    tensors = {FIRST: ("lost", "x", "y"), SECOND: ("x",), "a.safetensors": ("z",)}
    shards = {shard: {name: torch.ones(1) for name in names} for shard, names in tensors.items()}
    sharded(tmp_path, shards, {"x": SECOND, "y": FIRST})
    with CheckpointReader(tmp_path) as reader:
        assert reader.names == ("x", "y")
        assert reader.ignored == ("a.safetensors", f"{FIRST}: lost", f"{FIRST}: x")


def test_without_an_index_no_file_is_ignored(tmp_path: Path) -> None:
    for i, name in enumerate((FIRST, SECOND)):
        save_file({f"x{i}": torch.ones(1)}, tmp_path / name)
    with CheckpointReader(tmp_path) as reader:
        assert (reader.names, reader.ignored) == (("x0", "x1"), ())


@pytest.mark.parametrize(
    "index",
    [
        f'{{"weight_map": {{"x": "{FIRST}", "x": "{SECOND}"}}}}',
        f'{{"weight_map": {{"x": "{FIRST}"}}, "weight_map": {{"x": "{SECOND}"}}}}',
    ],
    ids=["tensor", "map"],
)
def test_a_key_twice_in_the_index_is_refused(index: str, tmp_path: Path) -> None:
    sharded(tmp_path, {name: {"x": torch.ones(1)} for name in (FIRST, SECOND)}, {})
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(MalformedCheckpoint, match=rf"{INDEX}.*duplicate key"):
        CheckpointReader(tmp_path)


def test_a_tensor_in_two_files_without_an_index_is_refused(tmp_path: Path) -> None:
    for name in (FIRST, SECOND):
        save_file({"x": torch.ones(1)}, tmp_path / name)
    with pytest.raises(MalformedCheckpoint, match=f"{SECOND}: x"):
        CheckpointReader(tmp_path)


Shard = Callable[[Path, Path], object]
"""Makes a file, given its path and that of a good weight file elsewhere; returns how an index names it."""


def made(make: Callable[[Path, Path], object]) -> Shard:
    def shard(at: Path, good: Path) -> object:
        make(at, good)
        return at.name

    return shard


def bind_socket(at: Path, good: Path) -> None:
    # A path of its own: sockaddr_un holds 107 bytes.
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(at.parent):
        server.bind(at.name)


def link_loop(at: Path, good: Path) -> None:
    at.symlink_to("other.safetensors")
    at.with_name("other.safetensors").symlink_to(at.name)


NO_FILES = {
    "link-outside": (made(lambda at, good: at.symlink_to(good)), "inside"),
    "link-to-parent": (made(lambda at, good: at.symlink_to(f"../{good.name}")), "inside"),
    "link-to-subfolder": (made(lambda at, good: at.symlink_to(f"sub/{good.name}")), "inside"),
    "link-to-itself": (made(lambda at, good: at.symlink_to(at.name)), "readable"),
    "link-loop": (made(link_loop), "readable"),
    "link-to-nothing": (made(lambda at, good: at.symlink_to("nothing")), "readable"),
    "folder": (made(lambda at, good: at.mkdir()), "regular file"),
    "fifo": (made(lambda at, good: os.mkfifo(at)), "regular file"),
    "socket": (made(bind_socket), "readable"),
    "missing": (made(lambda at, good: None), "readable"),
}
NO_NAMES: dict[str, tuple[Shard, str]] = {
    "parent": (lambda at, good: f"../{good.name}", "plain"),
    "subfolder": (lambda at, good: f"sub/{good.name}", "plain"),
    "dotted": (lambda at, good: f"./{good.name}", "plain"),
    "absolute": (lambda at, good: str(good), "plain"),
    "nul": (lambda at, good: "a\0.safetensors", "plain"),
    "empty": (lambda at, good: "", "plain"),
    "other-suffix": (lambda at, good: "config.json", "plain"),
    "number": (lambda at, good: 1, "plain"),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A weight file beside a folder that holds further copies of it, as every escape would find them."""
    folder, good = tmp_path / "checkpoint", tmp_path / "good.safetensors"
    (folder / "sub").mkdir(parents=True)
    save_file({"x": torch.ones(1)}, good)
    for copy in ("good.safetensors", "config.json", "sub/good.safetensors"):
        (folder / copy).write_bytes(good.read_bytes())
    return good


@pytest.mark.parametrize(
    ("shard", "said"), [*NO_FILES.values(), *NO_NAMES.values()], ids=[*NO_FILES, *NO_NAMES]
)
def test_a_shard_outside_the_folder_or_no_file_is_refused(shard: Shard, said: str, good: Path) -> None:
    folder = good.parent / "checkpoint"
    sharded(folder, {}, {"x": shard(folder / "shard.safetensors", good)})
    with pytest.raises(MalformedCheckpoint, match=said):
        CheckpointReader(folder)


NO_INDEXES = {name: case for name, case in NO_FILES.items() if name != "missing"}


@pytest.mark.parametrize(("index", "said"), NO_INDEXES.values(), ids=NO_INDEXES)
def test_an_index_outside_the_folder_or_no_file_is_refused(index: Shard, said: str, good: Path) -> None:
    folder = good.parent / "checkpoint"
    target = good.with_name("elsewhere.json")
    target.write_text(json.dumps({"weight_map": {"x": good.name}}))
    (folder / "sub" / target.name).write_bytes(target.read_bytes())
    index(folder / INDEX, target)
    with pytest.raises(MalformedCheckpoint, match=said):
        CheckpointReader(folder)


def test_a_tensor_missing_in_its_shard_is_named(tmp_path: Path) -> None:
    shards = {FIRST: {"x": torch.ones(1)}, SECOND: {"y": torch.ones(1)}}
    sharded(tmp_path, shards, {"x": SECOND, "y": SECOND})
    with pytest.raises(MissingTensor, match=f"{SECOND}: x"):
        CheckpointReader(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"], ids=["null", "empty", "list", "string"])
def test_an_index_without_a_weight_map_is_refused(weight_map: object, tmp_path: Path) -> None:
    with pytest.raises(MalformedCheckpoint, match="index"):
        CheckpointReader(sharded(tmp_path, {FIRST: {"x": torch.ones(1)}}, weight_map))


def test_the_single_pass_digest_covers_the_index(tmp_path: Path) -> None:
    sharded(tmp_path, {FIRST: {"x": torch.ones(1)}}, {"x": FIRST})
    with CheckpointReader(tmp_path) as reader:
        digest = reader.load_digested([])[1]
    assert digest == content_digest(tmp_path)
    (tmp_path / INDEX).unlink()
    assert digest != content_digest(tmp_path)
