"""What a model's checkpoint must be, and in which words it is declined before anything is loaded."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from loadproof.harness.errors import (
    BadScale,
    ConfigError,
    LoadproofError,
    MalformedCheckpoint,
    MissingTensor,
    RefusedModel,
    RefusedScheme,
    WrongTensor,
)
from loadproof.harness.model_spec import PROMPTS, ModelCaseSpec, ModelSpec, SyntheticModel
from loadproof.harness.models import ARCHITECTURES
from loadproof.harness.models.build import require_fitting, skeleton
from loadproof.harness.models.contents import read_contents
from loadproof.harness.models.prompts import TOKENIZER, make_prompts
from loadproof.harness.models.synthetic import layers_of, write_model
from loadproof.harness.outcome import Outcome
from loadproof.harness.proof import Prover
from loadproof.harness.spec import Scheme

from .proofs import not_passed, prove_checkpoint

TINY = SyntheticModel(architecture="llama", seed=3, intermediate=40)
CASE = ModelCaseSpec(model=ModelSpec(name="tiny", scheme=Scheme.FP8, source=TINY), transport="memfd")
WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_model(tmp_path, TINY, Scheme.FP8)
    return tmp_path


def edit_config(checkpoint: Path, **fields: Any) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def edit_tensors(checkpoint: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(checkpoint / WEIGHTS)
    edit(tensors)
    save_file(tensors, checkpoint / WEIGHTS)


def write_tokenizer(checkpoint: Path, **parts: Any) -> None:
    """A tokenizer of whole words, every word the same."""
    model = {"type": "WordLevel", "vocab": {"a": 1}, "unk_token": "a"}
    document = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [], "model": model}
    (checkpoint / TOKENIZER).write_text(json.dumps(document | parts))


def exclude(checkpoint: Path, *modules: str) -> None:
    for name, section, key in (
        ("hf_quant_config.json", "quantization", "exclude_modules"),
        ("config.json", "quantization_config", "ignore"),
    ):
        document = json.loads((checkpoint / name).read_text())
        document[section][key] += modules
        (checkpoint / name).write_text(json.dumps(document))


def looked_at(checkpoint: Path) -> None:
    """As `python -m loadproof.harness.models` does."""
    contents = read_contents(checkpoint)
    model = skeleton(checkpoint, contents.architecture)
    require_fitting(model, contents.architecture, contents.layers, contents.plain, checkpoint)
    make_prompts(checkpoint, PROMPTS, contents.vocabulary)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scheme", list(Scheme))
def test_every_architecture_is_read_as_it_was_written(
    tmp_path: Path, architecture: str, tied: bool, scheme: Scheme
) -> None:
    model = SyntheticModel(architecture=architecture, seed=3, tied=tied)
    write_model(tmp_path, model, scheme)
    contents = read_contents(tmp_path)
    assert set(contents.layers) == set(layers_of(model, scheme))
    assert ("lm_head.weight" in {plain.name for plain in contents.plain}) is not tied
    assert {layer.bias for layer in contents.layers} == (
        {True, False} if architecture == "qwen2" else {False}
    )
    looked_at(tmp_path)


REFUSALS: dict[str, tuple[Callable[[Path], object], type[LoadproofError], str]] = {
    "architecture": (lambda c: edit_config(c, model_type="gemma3"), RefusedModel, "gemma3"),
    "no config": (lambda c: (c / "config.json").unlink(), ConfigError, "config.json"),
    "layers that are no number": (
        lambda c: edit_config(c, num_hidden_layers="2"),
        ConfigError,
        "num_hidden_layers",
    ),
    "more layers than tensors": (
        lambda c: edit_config(c, num_hidden_layers=10**18),
        ConfigError,
        "num_hidden_layers 1000000000000000000",
    ),
    "layers beyond the config": (
        lambda c: edit_config(c, num_hidden_layers=1),
        RefusedModel,
        "model.layers.1.",
    ),
    "hidden size": (lambda c: edit_config(c, hidden_size=128), WrongTensor, "shape [128"),
    "an activation that there is not": (lambda c: edit_config(c, hidden_act="glu9"), ConfigError, "glu9"),
    "vocabulary": (lambda c: edit_config(c, vocab_size=99), WrongTensor, "shape [99, 64]"),
    "kv heads": (lambda c: edit_config(c, num_key_value_heads=2), WrongTensor, "k_proj.weight"),
    "a head beside tied embeddings": (
        lambda c: edit_config(c, tie_word_embeddings=True),
        WrongTensor,
        "lm_head",
    ),
    "a scale that is missing": (
        lambda c: edit_tensors(c, lambda t: t.pop("model.layers.1.mlp.up_proj.weight_scale")),
        MissingTensor,
        "model.layers.1.mlp.up_proj.weight_scale",
    ),
    "a scale that is no number": (
        lambda c: edit_tensors(c, lambda t: t["model.layers.1.mlp.up_proj.weight_scale"].fill_(torch.nan)),
        BadScale,
        "model.layers.1.mlp.up_proj.weight_scale",
    ),
    "a norm that is missing": (
        lambda c: edit_tensors(c, lambda t: t.pop("model.norm.weight")),
        WrongTensor,
        "model.norm.weight",
    ),
    "a norm in float32": (
        lambda c: edit_tensors(c, lambda t: t.update({"model.norm.weight": torch.ones(64)})),
        WrongTensor,
        "model.norm.weight",
    ),
    "a tensor of another model": (
        lambda c: edit_tensors(c, lambda t: t.update({"model.visual.weight": torch.ones(4).bfloat16()})),
        RefusedModel,
        "model.visual.weight",
    ),
    "a scale that nothing reads": (
        lambda c: edit_tensors(c, lambda t: t.update({"model.layers.0.pre_quant_scale": torch.ones(4)})),
        RefusedModel,
        "pre_quant_scale",
    ),
    "a tokenizer that is none": (lambda c: (c / TOKENIZER).write_text("{}"), ConfigError, TOKENIZER),
    "a tokenizer that panics": (
        lambda c: write_tokenizer(c, decoder={"type": "Strip", "content": "a", "start": 5, "stop": 5}),
        ConfigError,
        TOKENIZER,
    ),
    "a tokenizer that blocks": (lambda c: os.mkfifo(c / TOKENIZER), MalformedCheckpoint, TOKENIZER),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_supported_is_named(checkpoint: Path, name: str) -> None:
    spoil, error, words = REFUSALS[name]
    looked_at(checkpoint)
    spoil(checkpoint)
    with pytest.raises(error) as raised:
        looked_at(checkpoint)
    assert words in str(raised.value)
    assert str(checkpoint) in str(raised.value)


def test_refused_scheme_is_named_before_a_weight_file_is_opened(checkpoint: Path) -> None:
    for name in ("config.json", "hf_quant_config.json"):
        file = checkpoint / name
        file.write_text(file.read_text().replace('"FP8"', '"NVFP4"'))
    (checkpoint / WEIGHTS).unlink()
    with pytest.raises(RefusedScheme, match="NVFP4"):
        read_contents(checkpoint)


def test_cache_scales_are_checked_and_said_to_be_left_out(checkpoint: Path) -> None:
    scales = {
        f"model.layers.{i}.self_attn.{part}_proj.{part}_scale": torch.tensor(0.5)
        for i in (0, 1)
        for part in "kv"
    }
    edit_tensors(checkpoint, lambda tensors: tensors.update(scales))
    (note,) = read_contents(checkpoint).notes
    assert "cache scales for 2 attention modules" in note
    edit_tensors(checkpoint, lambda tensors: tensors.update({next(iter(scales)): torch.tensor(0.0)}))
    with pytest.raises(BadScale):
        read_contents(checkpoint)


def test_excluded_projections_stay_plain_and_run(checkpoint: Path, prover: Prover) -> None:
    module = "model.layers.1.self_attn.o_proj"

    def unquantise(tensors: Tensors) -> None:
        weight, scale = tensors.pop(f"{module}.weight"), tensors.pop(f"{module}.weight_scale")
        del tensors[f"{module}.input_scale"]
        tensors[f"{module}.weight"] = (weight.float() * scale).bfloat16()

    edit_tensors(checkpoint, unquantise)
    exclude(checkpoint, module)
    contents = read_contents(checkpoint)
    assert module not in {layer.name for layer in contents.layers}
    assert f"{module}.weight" in {plain.name for plain in contents.plain}
    record = prove_checkpoint(prover, CASE, checkpoint)
    assert record.verdict is Outcome.PASS, not_passed(record)
    assert record.routes["ipc"].generation is not None
    assert record.routes["ipc"].generation.gemms["o_proj"] == 16


def test_config_json_alone_says_what_the_model_is(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No code of the checkpoint's runs, nobody is asked whether it may, and no other file speaks for it."""
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "foreign.py").write_text(
        "import pathlib\npathlib.Path(__file__, '../ran').resolve().touch()\nraise SystemExit"
    )
    other = config | {"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.Config"}}
    (checkpoint / "config.4.0.0.json").write_text(json.dumps(other))
    edit_config(checkpoint, configuration_files=["config.4.0.0.json"], auto_map=other["auto_map"])
    looked_at(checkpoint)
    assert not (checkpoint / "ran").exists()
    assert "custom code" not in "".join(capsys.readouterr())


def test_config_that_asks_for_tuples_runs(checkpoint: Path, prover: Prover) -> None:
    edit_config(checkpoint, return_dict=False)
    record = prove_checkpoint(prover, CASE, checkpoint)
    assert record.verdict is Outcome.PASS, record.routes["ordinary"].stderr_tail


def test_fixed_ids_stand_for_prompts_without_a_tokenizer(checkpoint: Path) -> None:
    prompts = make_prompts(checkpoint, PROMPTS, TINY.vocabulary)
    assert prompts.ids.dtype is torch.int64
    assert 0 <= int(prompts.ids.min()) <= int(prompts.ids.max()) < TINY.vocabulary
    assert not torch.equal(*prompts.ids)
    assert prompts.text([1, 2]) is None


def test_padding_and_truncation_of_a_tokenizer_are_no_part_of_the_prompts(checkpoint: Path) -> None:
    write_tokenizer(checkpoint)
    plain = make_prompts(checkpoint, PROMPTS, TINY.vocabulary).ids
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}
    padding |= {"pad_to_multiple_of": None, "pad_token": "[PAD]"}
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    write_tokenizer(checkpoint, padding=padding, truncation=cut)
    assert torch.equal(make_prompts(checkpoint, PROMPTS, TINY.vocabulary).ids, plain)
    assert plain.shape[1] > 2


def test_prompts_are_cut_to_one_length_and_read_back() -> None:
    export = Path(__file__).resolve().parents[2] / ".cache" / "smollm2" / "fp8"
    prompts = make_prompts(export, ("The capital of France is", "Water boils at a temperature of"), 49152)
    assert prompts.ids.shape == (2, 5)
    assert [prompts.text(ids) for ids in prompts.ids.tolist()] == [
        "The capital of France is",
        "Water boils at a temperature",
    ]
    with pytest.raises(ConfigError, match="below 100"):
        make_prompts(export, PROMPTS, 100)
