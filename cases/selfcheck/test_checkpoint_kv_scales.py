"""The scales of key and value caches arrive as they are, or are refused; none is ever invented."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loadproof.harness.checkpoint.kv_scales import KvScales, kv_scales
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.errors import BadScale, MissingTensor, WrongTensor

MODULE = "model.layers.1.self_attn"
PLAIN = ("k_proj.k_scale", "v_proj.v_scale")


def read(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, KvScales]:
    save_file({"model.norm.weight": torch.ones(1), **tensors}, folder / "model.safetensors")
    with CheckpointReader(folder) as reader:
        return kv_scales(reader)


def scales(
    k: float, v: float, names: tuple[str, str] = PLAIN, module: str = MODULE
) -> dict[str, torch.Tensor]:
    return {f"{module}.{name}": torch.tensor(value) for name, value in zip(names, (k, v), strict=True)}


SPELLINGS = {
    "projections": PLAIN,
    "older": ("k_proj.output_scale", "v_proj.output_scale"),
    "stored-fused": ("qkv_proj.k_scale", "qkv_proj.v_scale"),
    "megatron": ("k_scale", "v_scale"),
}


@pytest.mark.parametrize("names", SPELLINGS.values(), ids=SPELLINGS)
def test_values_arrive_at_their_attention_module(names: tuple[str, str], tmp_path: Path) -> None:
    assert read(tmp_path, scales(0.25, 0.5, names)) == {MODULE: KvScales(k=0.25, v=0.5)}


def test_a_value_is_exact(tmp_path: Path) -> None:
    value = torch.tensor(0.1)
    found = read(tmp_path, scales(0.1, 1 / 3))[MODULE]
    assert torch.tensor(found.k) == value
    assert found.k == value.item()
    assert found.v == torch.tensor(1 / 3).item()


def test_names_that_contain_each_other_stay_apart(tmp_path: Path) -> None:
    modules = [
        "model.layers.1.self_attn",
        "model.layers.11.self_attn",
        "model.k_proj.k_scales.self_attn",
    ]
    values = {module: (0.25 + i, 0.5 + i) for i, module in enumerate(modules)}
    tensors = {n: t for module, (k, v) in values.items() for n, t in scales(k, v, module=module).items()}
    tensors |= {
        f"{MODULE}.q_proj.q_scale": torch.tensor(9.0),
        f"{MODULE}.o_proj.output_scale": torch.tensor(9.0),
    }
    tensors |= {f"{MODULE}.k_proj.weight_scale": torch.tensor(9.0)}
    assert read(tmp_path, tensors) == {module: KvScales(k=k, v=v) for module, (k, v) in values.items()}


def test_without_scales_nothing_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == {}


def test_a_module_without_scales_is_absent(tmp_path: Path) -> None:
    assert list(
        read(tmp_path, {**scales(1.0, 2.0), "model.layers.2.self_attn.k_proj.weight": torch.ones(1)})
    ) == [MODULE]


@pytest.mark.parametrize("lost", [0, 1], ids=["k", "v"])
@pytest.mark.parametrize("names", SPELLINGS.values(), ids=SPELLINGS)
def test_one_of_two_is_an_error(names: tuple[str, str], lost: int, tmp_path: Path) -> None:
    tensors = scales(0.25, 0.5, names)
    del tensors[f"{MODULE}.{names[lost]}"]
    with pytest.raises(
        MissingTensor, match=rf"{MODULE}: expected a {'kv'[lost]} scale beside {MODULE}\.{names[1 - lost]}"
    ):
        read(tmp_path, tensors)


BAD_VALUES = {"NaN": math.nan, "inf": math.inf, "zero": 0.0, "negative": -0.5, "denormal": 1e-40}


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize(("kind", "value"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_a_bad_scale_is_named(kind: str, value: float, part: str, tmp_path: Path) -> None:
    tensors = {**scales(0.25, 0.5), f"{MODULE}.{part}_proj.{part}_scale": torch.tensor(value)}
    with pytest.raises(BadScale, match=rf"{part}_proj\.{part}_scale: .*{kind}"):
        read(tmp_path, tensors)


WRONG = {
    "bf16": torch.tensor(0.5, dtype=torch.bfloat16),
    "float64": torch.tensor(0.5, dtype=torch.float64),
    "per-head": torch.full((3,), 0.5),
    "two-dim": torch.full((1, 1), 0.5),
}


@pytest.mark.parametrize("tensor", WRONG.values(), ids=WRONG)
def test_another_dtype_or_shape_is_refused(tensor: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(WrongTensor, match=r"v_proj\.v_scale"):
        read(tmp_path, {**scales(0.25, 0.5), f"{MODULE}.v_proj.v_scale": tensor})


def test_a_scale_of_one_element_is_a_scalar(tmp_path: Path) -> None:
    tensors = {**scales(0.25, 0.5), f"{MODULE}.v_proj.v_scale": torch.tensor([0.75])}
    assert read(tmp_path, tensors) == {MODULE: KvScales(k=0.25, v=0.75)}


def test_one_scale_under_two_names_is_refused(tmp_path: Path) -> None:
    tensors = {**scales(0.25, 0.5), **scales(0.25, 0.5, SPELLINGS["older"])}
    with pytest.raises(WrongTensor, match=r"k_proj\.output_scale"):
        read(tmp_path, tensors)
