"""Entries of exclude_modules mean the modules that ModelOpt and vLLM take them to mean, and no others."""

import time
from pathlib import Path

import pytest

from loadproof.harness.checkpoint.exclusions import Exclusions
from loadproof.harness.checkpoint.names import Group, unwrapped
from loadproof.harness.errors import ConfigError

ATTENTION = "model.layers.1.self_attn"
QKV = Group(f"{ATTENTION}.qkv_proj", tuple(f"{ATTENTION}.{part}_proj" for part in "qkv"))
STORED_FUSED = Group(QKV.name, (QKV.name,))
PATH = Path("/some/checkpoint")

MEANT = [
    ("lm_head", "lm_head"),
    ("lm_head", "language_model.lm_head"),
    ("language_model.lm_head", "lm_head"),
    (f"{ATTENTION}.o_proj", f"{ATTENTION}.o_proj"),
    ("*.self_attn.q_proj", f"{ATTENTION}.q_proj"),
    ("*.self_attn.q_proj", "language_model.model.layers.1.self_attn.q_proj"),
    ("*lm_head", "lm_head"),
    ("model.layers.*.mlp.gate", "model.layers.3.mlp.gate"),
    ("model.layers.*.mlp.*", "model.layers.3.mlp.experts.0.up_proj"),
    ("model.visual.*", "model.visual.blocks.0.attn.qkv"),
    ("model.visual.*", "visual.blocks.0.attn.qkv"),
    ("visual.*", "model.visual.blocks.0.attn.qkv"),
    ("model.visual", "visual.blocks.0.attn.qkv"),
    ("vision_tower", "vision_tower.encoder.layers.0.self_attn.q_proj"),
    ("model.layers.1*", f"{ATTENTION}.q_proj"),
    ("model.layers.1.self_attn*", f"{ATTENTION}.q_proj"),
    ("model.layers.1.self_attn*", "language_model.model.layers.1.self_attn.q_proj"),
    ("model.layers.1.self_attn.*", "model.language_model.layers.1.self_attn.q_proj"),
    ("language_model.model.layers.1.*", f"{ATTENTION}.q_proj"),
    ("layers.1.*", f"{ATTENTION}.q_proj"),
    ("*", "anything.at.all"),
    ("*vision*", "model.vision_tower.blocks.q_proj"),
    ("*lm_head*", "language_model.lm_head"),
]
NOT_MEANT = [
    ("lm_head", "lm_head_2"),
    ("lm_head", "draft.lm_head"),
    ("model.layers.1*", "model.layers.10.self_attn.q_proj"),
    ("model.layers.1.*", "model.layers.10.self_attn.q_proj"),
    ("model.layers.1.self_attn.q", f"{ATTENTION}.q_proj"),
    ("*.self_attn.q_proj", "model.layers.1.cross_self_attn.q_proj"),
    ("*.self_attn.q_proj", f"{ATTENTION}.k_proj"),
    ("model.layers.1", "model.layersX1.self_attn.q_proj"),
    ("*.layersX1.q_proj", "model.layers.1.q_proj"),
    ("*.mlp.*.up_proj", "model.mlpX0.1.up_proj"),
    ("*.gate", "model.layers.0.mlp.gate_proj"),
    ("*.expert[01].up_proj", "model.expert0.up_proj"),
    ("*.expert?.up_proj", "model.expert0.up_proj"),
    ("model.language_model.*", "model.visual.blocks.0.q_proj"),
    ("language_model.model*", "model.visual.blocks.0.q_proj"),
    ("model.*.q_proj", "vision.blocks.0.q_proj"),
    ("model.*", "lm_head"),
    ("*.layers.1*", "model.layers.10.self_attn.q_proj"),
    ("visual.*", "audio.visual.q_proj"),
    ("", "lm_head"),
    (".*", "lm_head"),
    ("LM_HEAD", "lm_head"),
]


@pytest.mark.parametrize(("entry", "module"), MEANT)
def test_entry_means_the_module(entry: str, module: str) -> None:
    assert Exclusions([entry], PATH).entry_for(module) == entry


@pytest.mark.parametrize(("entry", "module"), NOT_MEANT)
def test_entry_does_not_mean_the_module(entry: str, module: str) -> None:
    assert Exclusions([entry], PATH).entry_for(module) is None


@pytest.mark.parametrize("group", [QKV, STORED_FUSED], ids=["split", "stored-fused"])
@pytest.mark.parametrize(
    "entries",
    [
        QKV.modules,
        [f"*.self_attn.{part}_proj" for part in "qkv"],
        [f"{ATTENTION}.q_proj", "*.k_proj", "layers.1.self_attn.v_proj*"],
        [QKV.name],
        ["*.qkv_proj"],
        ["model.layers.1.*"],
        [f"{ATTENTION}*"],
    ],
    ids=["members", "star-members", "mixed-forms", "fused", "star-fused", "layer", "attention"],
)
def test_fused_layer_is_excluded(entries: list[str], group: Group) -> None:
    assert Exclusions(entries, PATH).entry_for_layer(group) is not None


@pytest.mark.parametrize("group", [QKV, STORED_FUSED], ids=["split", "stored-fused"])
def test_fused_layer_without_entry_is_not_excluded(group: Group) -> None:
    assert Exclusions(["lm_head", "*.o_proj", "model.layers.2*"], PATH).entry_for_layer(group) is None


@pytest.mark.parametrize("group", [QKV, STORED_FUSED], ids=["split", "stored-fused"])
@pytest.mark.parametrize("listed", ["q", "k", "v", "qk", "qv", "kv"])
@pytest.mark.parametrize("form", [ATTENTION, "*.self_attn"], ids=["exact", "star"])
def test_half_excluded_layer_is_an_error(form: str, listed: str, group: Group) -> None:
    exclusions = Exclusions([f"{form}.{part}_proj" for part in listed], PATH)
    with pytest.raises(ConfigError) as caught:
        exclusions.entry_for_layer(group)
    expected = ", ".join(f"{ATTENTION}.{part}_proj" for part in listed)
    missing = ", ".join(f"{ATTENTION}.{part}_proj" for part in "qkv" if part not in listed)
    assert caught.value.where == f"{PATH}: {QKV.name}"
    assert caught.value.found == f"{expected} excluded, {missing} not"


def test_many_stars_do_not_backtrack() -> None:
    exclusions = Exclusions(["*a" * 30 + "*b"], PATH)
    started = time.monotonic()
    assert exclusions.entry_for("a" * 400) is None
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("path", "bare"),
    [
        ("model.layers.0", "layers.0"),
        ("model.language_model.layers.0", "layers.0"),
        ("language_model.model.layers.0", "layers.0"),
        ("visual.model.x", "visual.model.x"),
        ("language_model.model", "language_model.model"),
        ("model", "model"),
        ("lm_head", "lm_head"),
    ],
)
def test_only_leading_wrappers_are_dropped(path: str, bare: str) -> None:
    assert unwrapped(path) == bare
