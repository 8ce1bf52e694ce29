"""Checkpoints of any tensors: what is written is what is loaded, and digests follow bytes and names."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safetensors.torch import save_file

from loadproof.cases.selfcheck.reading import read_digested
from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.layers import ProjectionTensors, checked_projections, tensor_names
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.checkpoint.writer import write_checkpoint
from loadproof.harness.checks.compare import compare
from loadproof.harness.outcome import Outcome
from loadproof.harness.spec import LayerSpec, Scheme

from .strategies import examples, layers_with_tensors, names, stored, tensor_dictionaries

INDEX = "model.safetensors.index.json"
Dictionary = dict[str, torch.Tensor]
# The metadata of a header has this name; safetensors itself would take the tensor for it.
dictionaries = tensor_dictionaries.filter(lambda d: "__metadata__" not in d)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="loadproof-"))
    yield path
    shutil.rmtree(path)


def fresh(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def assert_same(loaded: Dictionary, written: Dictionary) -> None:
    assert loaded.keys() == written.keys()
    for name, tensor in written.items():
        assert compare(tensor, loaded[name])[0] is Outcome.PASS, name


def sharded(path: Path, tensors: Dictionary, cut: int, *, index: bool = True) -> None:
    """The first `cut` tensors in one file, the rest in another."""
    items = list(tensors.items())
    shards = {"a.safetensors": dict(items[:cut]), "b.safetensors": dict(items[cut:])}
    for file, held in shards.items():
        save_file(held, path / file)
    if index:
        weight_map = {name: file for file, held in shards.items() for name in held}
        (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@example(tensors={'ü/\n"\\': torch.tensor(0.0), " ": torch.empty(0, 3), "\u2028": torch.tensor([True])})
@given(tensors=dictionaries)
@examples(80)
def test_what_is_written_is_loaded(folder: Path, tensors: Dictionary) -> None:
    path = fresh(folder)
    write_checkpoint(path, tensors, Scheme.FP8)
    with CheckpointReader(path) as reader:
        assert list(reader.names) == sorted(tensors)
        assert_same(reader.load(tensors), tensors)


@given(tensors=dictionaries, cut=st.integers(0, 5), index=st.booleans())
@examples(80)
def test_single_pass_gives_the_same_tensors_and_the_content_digest(
    folder: Path, tensors: Dictionary, cut: int, index: bool
) -> None:
    path = fresh(folder)
    sharded(path, tensors, cut, index=index)
    with CheckpointReader(path) as reader:
        loaded, digest = read_digested(reader, tensors)
    assert_same(loaded, tensors)
    assert digest == content_digest(path)


@given(tensors=dictionaries, data=st.data())
@examples(60)
def test_loading_some_tensors_gives_those_alone(
    folder: Path, tensors: Dictionary, data: st.DataObject
) -> None:
    path = fresh(folder)
    save_file(tensors, path / "model.safetensors")
    chosen = data.draw(st.lists(st.sampled_from(sorted(tensors)), unique=True))
    with CheckpointReader(path) as reader:
        loaded, digest = read_digested(reader, chosen)
        assert_same(loaded, {name: tensors[name] for name in chosen})
        assert_same(reader.load(chosen), loaded)
    assert digest == content_digest(path)


@given(tensors=dictionaries)
@examples(40)
def test_loaded_tensors_do_not_share_memory(folder: Path, tensors: Dictionary) -> None:
    path = fresh(folder)
    save_file(tensors, path / "model.safetensors")
    with CheckpointReader(path) as reader:
        loaded = reader.load(tensors)
    for tensor in loaded.values():
        tensor.view(-1).view(torch.uint8).zero_()
    with CheckpointReader(path) as reader:
        assert_same(reader.load(tensors), tensors)


@given(tensors=dictionaries, cut=st.integers(0, 5))
@examples(40)
def test_digest_knows_bytes_and_names_but_not_the_folder_or_the_order_of_writing(
    folder: Path, tensors: Dictionary, cut: int
) -> None:
    one, other = fresh(folder), fresh(folder)
    sharded(one, tensors, cut)
    for name in ("b.safetensors", "a.safetensors", INDEX):
        shutil.copyfile(one / name, other / name)
    assert content_digest(one) == content_digest(other)
    (other / INDEX).unlink()
    (other / "b.safetensors").rename(other / "c.safetensors")
    (one / INDEX).unlink()
    assert content_digest(one) != content_digest(other)


@given(tensors=dictionaries, data=st.data())
@examples(60)
def test_one_changed_bit_of_data_changes_the_digest(
    folder: Path, tensors: Dictionary, data: st.DataObject
) -> None:
    path = fresh(folder)
    save_file(tensors, path / "model.safetensors")
    before, content = content_digest(path), bytearray((path / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    assume(len(content) > start)
    content[data.draw(st.integers(start, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (path / "model.safetensors").write_bytes(content)
    assert content_digest(path) != before


@given(drawn=layers_with_tensors(widths=st.integers(0, 20)))
@examples(60)
def test_a_layer_reads_back_as_its_projections(
    folder: Path, drawn: tuple[LayerSpec, list[ProjectionTensors]]
) -> None:
    layer, projections = drawn
    path = fresh(folder)
    write_checkpoint(path, stored(projections), layer.scheme)
    with CheckpointReader(path) as reader:
        found = checked_projections(layer, reader.load(tensor_names(layer)), path)
    assert [p.projection for p in found] == list(layer.projections)
    assert_same(stored(found), stored(projections))


@given(name=names, other=names)
@examples(40)
def test_a_file_name_is_part_of_the_digest(folder: Path, name: str, other: str) -> None:
    assume(name != other and "/" not in name + other)
    assume(max(len(n.encode()) for n in (name, other)) < 200)
    digests = []
    for each in (name, other):
        path = fresh(folder)
        save_file({"t": torch.ones(1)}, path / f"{each}.safetensors")
        digests.append(content_digest(path))
    assert digests[0] != digests[1]
