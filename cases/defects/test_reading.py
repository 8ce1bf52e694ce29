"""Defects of checkpoint reading that others have had, by kind, from the disk to the attached engine."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loadproof.harness.checkpoint.writer import WEIGHTS, synthetic_tensors, write_checkpoint
from loadproof.harness.errors import MissingTensor
from loadproof.harness.loaders import load_from_disk
from loadproof.harness.spec import Scheme
from loadproof.harness.tensor_bytes import sha256

from .daemons import LAYER, detach, load, serves, write

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class TestStaleDuplicateInAShard:
    """vllm-project/vllm P54230: a tensor was read from every listed file, and the last one won."""

    @pytest.mark.parametrize("order", [FILES, FILES[::-1]], ids=["stale-first", "stale-last"])
    def test_both_paths_take_what_the_index_names(self, tmp_path: Path, order: tuple[str, str]) -> None:
        plain, checkpoint = write(tmp_path / "plain"), write(tmp_path / "checkpoint")
        tensors, stale = synthetic_tensors(LAYER, 3, False), synthetic_tensors(LAYER, 9, False)
        moved = f"{LAYER.projections[1].name}.weight"
        first, second = order
        (checkpoint / WEIGHTS).unlink()
        save_file(tensors | {moved: stale[moved]}, checkpoint / first)
        save_file({moved: tensors[moved]}, checkpoint / second)
        weight_map = dict.fromkeys(tensors, first) | {moved: second}
        index = {"metadata": {}, "weight_map": weight_map}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
        wanted = digests(load_from_disk(plain, [LAYER]).layers[0].tensors)
        assert digests(load_from_disk(checkpoint, [LAYER]).layers[0].tensors) == wanted
        with serves(checkpoint, tmp_path / "run" / "s"):
            attached = load(checkpoint, tmp_path / "run" / "s")
            assert digests(attached.layers[0].tensors) == wanted
            detach(attached)

    def test_tensors_that_no_layer_needs_are_not_read(self, tmp_path: Path) -> None:
        large = {"other.weight": torch.zeros(1 << 20)}
        small, padded = tmp_path / "small", tmp_path / "padded"
        write_checkpoint(small, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
        write_checkpoint(padded, synthetic_tensors(LAYER, 3, False) | large, Scheme.FP8)
        read = [load_from_disk(path, [LAYER]).bytes_read for path in (small, padded)]
        assert read[1] - read[0] < 200, "only the header is longer"


class TestScaleThatIsMissing:
    """vllm-project/vllm P45320, P49715: memory that nobody had filled passed for a scale."""

    @pytest.mark.parametrize("suffix", ["weight_scale", "input_scale", "weight"])
    @pytest.mark.parametrize("part", [0, 1, 2])
    def test_daemon_names_it_and_serves_nothing(self, tmp_path: Path, suffix: str, part: int) -> None:
        tensors = synthetic_tensors(LAYER, 3, False)
        missing = f"{LAYER.projections[part].name}.{suffix}"
        del tensors[missing]
        checkpoint, socket = tmp_path / "checkpoint", tmp_path / "run" / "s"
        write_checkpoint(checkpoint, tensors, Scheme.FP8)
        with pytest.raises(MissingTensor, match=missing), serves(checkpoint, socket):
            pass
        assert not socket.exists()


class TestRankOfATensorScale:
    """vllm-project/vllm I43297, P7534: () was due and (1,) refused, and the reverse."""

    def test_both_ranks_are_the_same_layer_and_the_content_tells_them_apart(self, tmp_path: Path) -> None:
        scalars = synthetic_tensors(LAYER, 3, False)
        ones = {n: t.reshape(1) if n.endswith("_scale") else t for n, t in scalars.items()}
        found = []
        for name, tensors in {"scalars": scalars, "ones": ones}.items():
            checkpoint, socket = tmp_path / name, tmp_path / f"run-{name}" / "s"
            write_checkpoint(checkpoint, tensors, Scheme.FP8)
            with serves(checkpoint, socket) as ready:
                attached = load(checkpoint, socket)
                entries = [(e.name, e.shape, e.stride, e.dtype, e.sha256) for e in ready.manifest.entries]
                found.append((entries, digests(attached.layers[0].tensors)))
                detach(attached)
        assert found[0] == found[1]


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: sha256(tensor) for name, tensor in tensors.items()}
