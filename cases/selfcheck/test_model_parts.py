"""The parts of a model's engine: shims, the built model, generation and its description."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from loadproof.harness.errors import BrokenFusion, WrongTensor
from loadproof.harness.kernels import make_kernel
from loadproof.harness.kernels.reference import WIDENED_BY, widened
from loadproof.harness.layers import FusedFp8Linear
from loadproof.harness.loaders import Loaded, load_from_disk
from loadproof.harness.model_spec import SyntheticModel
from loadproof.harness.models import ARCHITECTURES
from loadproof.harness.models.build import build
from loadproof.harness.models.contents import read_contents
from loadproof.harness.models.describe import describe_model
from loadproof.harness.models.generate import generate
from loadproof.harness.models.points import points
from loadproof.harness.models.shims import FusedGroup, FusedProjection
from loadproof.harness.models.synthetic import write_model
from loadproof.harness.spec import Scheme

TINY = SyntheticModel(architecture="qwen2", seed=3, tied=True, intermediate=40)


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    write_model(tmp_path, TINY, Scheme.FP8)
    contents = read_contents(tmp_path)
    return load_from_disk(tmp_path, contents.layers, plain=contents.plain)


def built(folder: Path, loaded: Loaded) -> tuple[transformers.PreTrainedModel, list[FusedGroup]]:
    architecture = ARCHITECTURES[TINY.architecture]
    return build(folder, architecture, loaded.layers, loaded.plain, make_kernel("reference"), "cpu")


def qkv(loaded: Loaded) -> FusedGroup:
    layer = next(layer for layer in loaded.layers if layer.name.endswith("0.self_attn.qkv_proj"))
    return FusedGroup(FusedFp8Linear(layer, make_kernel("reference")))


def test_projections_are_the_columns_of_one_product(loaded: Loaded) -> None:
    group = qkv(loaded)
    x = torch.randn(2, 3, TINY.hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    shims = [FusedProjection(group, index) for index in range(3)]
    q, k, v = (shim(x) for shim in shims)
    whole = group.linear.multiply(*group.linear.quantize(x.reshape(6, -1)))
    assert torch.equal(torch.cat([q, k, v], dim=-1).reshape(6, -1), whole)
    assert [t.shape for t in (q, k, v)] == [(2, 3, 64), (2, 3, 16), (2, 3, 16)]
    assert all(t.is_contiguous() for t in (q, k, v))
    assert group.gemms == 1


def test_another_tensor_of_equal_values_is_not_the_same_input(loaded: Loaded) -> None:
    group, x = qkv(loaded), torch.ones(1, TINY.hidden).bfloat16()
    group.project(0, x)
    with pytest.raises(BrokenFusion, match="another tensor"):
        group.project(1, x.clone())


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 0), (0, 1, 1)])
def test_projections_out_of_order_are_refused(loaded: Loaded, order: tuple[int, ...]) -> None:
    group, x = qkv(loaded), torch.ones(1, TINY.hidden).bfloat16()
    *first, last = order
    for index in first:
        group.project(index, x)
    with pytest.raises(BrokenFusion, match="qkv_proj"):
        group.project(last, x)


def test_model_computes_with_the_loaded_tensors_themselves(loaded: Loaded, tmp_path: Path) -> None:
    model, _ = built(tmp_path, loaded)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        source = loaded.plain["model.embed_tokens.weight" if name == "lm_head.weight" else name]
        assert parameter.data_ptr() == source.data_ptr()
        assert not parameter.requires_grad
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any(module.training for module in model.modules())
    assert all(t.device.type == "cpu" for t in (*model.parameters(), *model.buffers()))


def test_model_without_a_tensor_is_an_error_and_leaves_nothing_on_meta(
    loaded: Loaded, tmp_path: Path
) -> None:
    del loaded.plain["model.norm.weight"]
    with pytest.raises(WrongTensor, match=r"model\.norm\.weight"):
        built(tmp_path, loaded)


def test_computed_buffers_are_those_that_transformers_computes(loaded: Loaded, tmp_path: Path) -> None:
    ours, _ = built(tmp_path, loaded)
    theirs = transformers.Qwen2ForCausalLM(ours.config)
    wanted = dict(theirs.named_buffers())
    assert wanted
    assert {name: (t.dtype, t.tolist()) for name, t in ours.named_buffers()} == {
        name: (t.dtype, t.tolist()) for name, t in wanted.items()
    }


def test_generation_is_what_transformers_generates(loaded: Loaded, tmp_path: Path) -> None:
    model, groups = built(tmp_path, loaded)
    prompts = torch.tensor([[1, 5, 9], [2, 4, 8]])
    watched = points(ARCHITECTURES[TINY.architecture], TINY.layers)
    results = generate(model, prompts, 5, watched)
    theirs = model.generate(prompts, max_new_tokens=5, do_sample=False)
    assert torch.equal(results["ids"], theirs[:, 3:])
    assert results["hidden"].shape == (2, 5, 4, 32)
    assert [results[f"logits.{step}"].shape[1] for step in range(5)] == [3, 1, 1, 1, 1]
    assert {group.gemms for group in groups} == {10}


def test_steps_with_a_cache_give_the_prefix_their_logits_say(loaded: Loaded, tmp_path: Path) -> None:
    model, _ = built(tmp_path, loaded)
    prompts = torch.tensor([[1, 5, 9]])
    results = generate(model, prompts, 4, ["model.norm"])
    whole = torch.cat([prompts, results["ids"][:, :-1]], dim=1)
    with torch.inference_mode():
        again = model(input_ids=whole).logits[:, 2:].argmax(dim=-1)
    assert torch.equal(again, results["ids"])


def test_description_names_ties_buffers_and_modes(loaded: Loaded, tmp_path: Path) -> None:
    described = describe_model(built(tmp_path, loaded)[0])
    assert described["lm_head.weight"].endswith("memory of model.embed_tokens.weight")
    assert "saved False" in described["model.rotary_emb.inv_freq"]
    assert "training False" in described["module model.layers.0.self_attn"]
    assert described["attention"] == "eager"
    assert "logical_width" in described["module model.layers.0.self_attn.k_proj"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros, torch.ones),
        ([1, "a"], [1, "b"]),
        ({"a": 1}, {"a": 2}),
        ({"a", "b"}, {"a", "c"}),
        (transformers.GenerationConfig(), transformers.GenerationConfig(top_k=3)),
    ],
    ids=["kind", "bytes", "dtype", "function", "list", "mapping", "set", "config"],
)
def test_description_tells_attributes_apart(loaded: Loaded, tmp_path: Path, one: Any, other: Any) -> None:
    model = built(tmp_path, loaded)[0]

    def described(value: Any) -> str:
        vars(model.get_submodule("model.norm"))["more"] = value
        return describe_model(model)["module model.norm"]

    assert described(one) == described(copy.deepcopy(one)) != described(other)


@pytest.mark.parametrize("last", [256, 127])
def test_widened_weights_are_the_slow_conversions_bits(last: int) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) < last].reshape(2, -1).view(torch.float8_e4m3fn)
    wide = widened(codes) / WIDENED_BY
    assert torch.equal(wide.view(torch.int64), codes.to(torch.float64).view(torch.int64))
