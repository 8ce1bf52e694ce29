"""What stands beside a layer's tensors is never left unread in silence; configs are files, of one opinion."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.config import CONFIG, HF_QUANT_CONFIG, read_quantization
from loadproof.harness.checkpoint.digest import config_digests
from loadproof.harness.checkpoint.layers import require_nothing_more
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.errors import ConfigError, MalformedCheckpoint, RefusedScheme, WrongTensor
from loadproof.harness.loaders import LayerStream, load_from_disk
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme
from loadproof.reports.checkpoint_layers import discovered

LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (32, 16, 16), 32)
Q = LAYER.projections[0].name


@pytest.mark.parametrize(
    "suffix", ["bias", "pre_quant_scale", "weight_scale_2", "weight_scale_inv", "zero_point"]
)
def test_tensor_that_the_scheme_does_not_use_is_named(suffix: str, tmp_path: Path) -> None:
    beside = {f"{Q}.{suffix}": torch.ones(32)}
    write_checkpoint(tmp_path, synthetic_tensors(LAYER, 1, False) | beside, Scheme.FP8)
    for load in (lambda: load_from_disk(tmp_path, [LAYER]), lambda: list(LayerStream(tmp_path, [LAYER]))):
        with pytest.raises(WrongTensor, match=f"{Q}.{suffix}"):
            load()


@pytest.mark.parametrize("swapped", [False, True])
def test_bias_that_one_of_two_layers_leaves_out_is_named(tmp_path: Path, swapped: bool) -> None:
    biased = dataclasses.replace(LAYER, name=f"copy.{LAYER.name}", bias=True)
    names = list(synthetic_tensors(biased, 1, False))
    require_nothing_more([biased], names, tmp_path)
    with pytest.raises(WrongTensor, match=f"{Q}.bias"):
        require_nothing_more([biased, LAYER] if swapped else [LAYER, biased], names, tmp_path)


def test_scales_of_the_kv_cache_may_stand_beside(tmp_path: Path) -> None:
    beside = {f"{LAYER.projections[1].name}.k_scale": torch.tensor(0.5)}
    write_checkpoint(tmp_path, synthetic_tensors(LAYER, 1, False) | beside, Scheme.FP8)
    assert load_from_disk(tmp_path, [LAYER]).layers


@pytest.mark.parametrize("name", [CONFIG, HF_QUANT_CONFIG])
def test_config_that_is_a_fifo_is_refused_at_once(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, synthetic_tensors(LAYER, 1, False), Scheme.FP8)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match="regular file"):
        read_quantization(tmp_path)
    with pytest.raises(MalformedCheckpoint, match="regular file"):
        config_digests(tmp_path)


@pytest.mark.parametrize("algo", ["NVFP4", "FP8_PER_CHANNEL_PER_TOKEN"])
def test_layers_of_another_scheme_than_the_checkpoints_are_not_passed_over(algo: str, tmp_path: Path) -> None:
    own = {projection.name: algo for projection in LAYER.projections}
    write_checkpoint(tmp_path, synthetic_tensors(LAYER, 1, False), Scheme.FP8, quantized_layers=own)
    with pytest.raises((RefusedScheme, ConfigError), match=algo):
        load_from_disk(tmp_path, [LAYER])


def test_letters_that_only_look_like_a_scheme_are_refused(tmp_path: Path) -> None:
    lookalike = "m\u0131xed_prec\u0131\u017f\u0131on"
    assert lookalike.upper() == "MIXED_PRECISION"
    own = {projection.name: "FP8" for projection in LAYER.projections}
    write_checkpoint(tmp_path, synthetic_tensors(LAYER, 1, False), lookalike, quantized_layers=own)
    with pytest.raises(RefusedScheme):
        load_from_disk(tmp_path, [LAYER])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float16", "torch_dtype": "float16"}, "float16"),
        ({}, "bfloat16"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, None),
        ({"dtype": "float32"}, None),
    ],
)
def test_output_dtype_is_read_under_either_name(
    said: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, synthetic_tensors(LAYER, 1, False), Scheme.FP8)
    document = json.loads((tmp_path / CONFIG).read_text())
    del document["dtype"]
    (tmp_path / CONFIG).write_text(json.dumps(document | said))
    if expected is None:
        with pytest.raises(ConfigError, match="dtype"):
            discovered(tmp_path)
    else:
        assert [layer.out_dtype for layer in discovered(tmp_path)] == [expected]
