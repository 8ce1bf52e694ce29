"""Route folders link, decoys are hollow, and extracted layers are cut exactly."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loadproof.harness.checkpoint.digest import config_digests, content_digest
from loadproof.harness.checkpoint.header import read_header
from loadproof.harness.checkpoint.layers import checked_projections, tensor_names
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.checkpoint.route_dir import make_route_dir
from loadproof.harness.checkpoint.writer import extract_layer, synthetic_tensors, write_checkpoint
from loadproof.harness.errors import MalformedCheckpoint, OutputUnwritable, WrongTensor
from loadproof.harness.spec import LayerSpec, Projection, Scheme

NAME = "model.safetensors"


def gate_up(scheme: Scheme, widths: tuple[int, int] = (32, 32), k: int = 16) -> LayerSpec:
    """A fused layer with bias."""
    names = ("mlp.gate_proj", "mlp.up_proj")
    projections = tuple(Projection(name=n, logical_width=w) for n, w in zip(names, widths, strict=True))
    return LayerSpec(name="mlp.gate_up_proj", scheme=scheme, projections=projections, logical_k=k, bias=True)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A small checkpoint."""
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, synthetic_tensors(gate_up(Scheme.FP8), 5, False), Scheme.FP8)
    return folder


def test_every_file_is_hard_linked(export: Path, tmp_path: Path) -> None:
    made = make_route_dir(export, tmp_path / "route", decoy=False)
    assert (made.linked, made.weight_files, made.links_into) == ("hard", (NAME,), None)
    assert sorted(os.listdir(made.path)) == ["config.json", "hf_quant_config.json", NAME]
    for file in made.path.iterdir():
        assert (file.stat().st_ino, file.is_symlink()) == ((export / file.name).stat().st_ino, False)


@pytest.mark.parametrize("number", ["EXDEV", "EPERM", "EROFS", "EMLINK"])
def test_symbolic_links_replace_hard_ones(
    number: str, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(getattr(errno, number), "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    made = make_route_dir(export, tmp_path / "route", decoy=False)
    assert (made.linked, made.links_into) == ("symbolic", export)
    assert all(file.is_symlink() for file in made.path.iterdir())
    assert content_digest(made.path, made.links_into) == content_digest(export)
    with CheckpointReader(made.path, links_into=made.links_into) as reader:
        assert reader.load(reader.names)
    with pytest.raises(MalformedCheckpoint):
        CheckpointReader(made.path)


def test_another_failure_of_linking_is_reported(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OutputUnwritable, match="no space"):
        make_route_dir(export, tmp_path / "route", decoy=False)


def test_a_folder_that_is_not_empty_is_refused(export: Path, tmp_path: Path) -> None:
    (tmp_path / "route").mkdir()
    (tmp_path / "route" / "x").touch()
    with pytest.raises(OutputUnwritable):
        make_route_dir(export, tmp_path / "route", decoy=False)


def test_a_decoy_has_the_header_and_the_size_and_no_data(export: Path, tmp_path: Path) -> None:
    made = make_route_dir(export, tmp_path / "route", decoy=True)
    true, decoy = (export / NAME).read_bytes(), (made.path / NAME).read_bytes()
    fd = os.open(export / NAME, os.O_RDONLY)
    end = read_header(fd, export / NAME).header_bytes
    os.close(fd)
    assert len(decoy) == len(true)
    assert decoy[:end] == true[:end]
    assert any(true[end:])
    assert not any(decoy[end:])


def test_a_decoy_leaves_the_checkpoint_alone_and_links_its_configs(export: Path, tmp_path: Path) -> None:
    before = content_digest(export)
    made = make_route_dir(export, tmp_path / "route", decoy=True)
    assert content_digest(export) == before != content_digest(made.path)
    assert (made.path / NAME).stat().st_ino != (export / NAME).stat().st_ino
    assert (made.path / "config.json").stat().st_ino == (export / "config.json").stat().st_ino


def test_a_decoy_is_sparse(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    write_checkpoint(folder, {"x": torch.ones(4 << 20)}, Scheme.FP8)
    made = make_route_dir(folder, tmp_path / "route", decoy=True)
    assert (made.path / NAME).stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("scheme", list(Scheme), ids=str)
def test_an_extracted_layer_is_the_prefix_of_the_rows(scheme: Scheme, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    tensors = synthetic_tensors(gate_up(scheme), 5, False)
    write_checkpoint(source, {**tensors, "lm_head.weight": torch.ones(4)}, scheme)
    trimmed = gate_up(scheme, (19, 7))
    extract_layer(source, target, trimmed)
    cut = load_file(target / NAME)
    assert sorted(cut) == sorted(tensor_names(trimmed))
    assert len(checked_projections(trimmed, cut, target)) == 2
    for projection in trimmed.projections:
        for suffix in ("weight", "weight_scale", "bias"):
            name = f"{projection.name}.{suffix}"
            rows = tensors[name][: projection.logical_width] if tensors[name].dim() else tensors[name]
            ours, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (cut[name], rows))
            assert torch.equal(ours, theirs), name
    assert config_digests(target) == config_digests(source)


@pytest.mark.parametrize("wrong", [((33, 32), 16), ((32, 32), 17)], ids=["too-wide", "too-deep"])
def test_a_layer_that_the_source_does_not_hold_is_refused(
    wrong: tuple[tuple[int, int], int], export: Path, tmp_path: Path
) -> None:
    with pytest.raises(WrongTensor):
        extract_layer(export, tmp_path / "target", gate_up(Scheme.FP8, *wrong))
