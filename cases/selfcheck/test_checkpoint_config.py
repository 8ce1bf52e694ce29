"""Both config files, in each layout that ModelOpt has written, say one thing or are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.harness.checkpoint.config import QuantizationConfig, read_quantization
from loadproof.harness.checkpoint.writer import write_checkpoint
from loadproof.harness.errors import ConfigError
from loadproof.harness.spec import Scheme

EXCLUDED = ("lm_head", "model.embed_tokens")
PRODUCER = {"name": "modelopt", "version": "0.47.0"}
KV_SCHEME = {"dynamic": False, "num_bits": 8, "type": "float"}
NESTED = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": list(EXCLUDED)}
FLAT = {"quant_algo": "FP8", "kv_cache_scheme": KV_SCHEME, "ignore": list(EXCLUDED), "producer": PRODUCER}
METHOD = {"quant_method": "modelopt"}
PARSED = QuantizationConfig("FP8", EXCLUDED, "FP8")
RENAMED = {**METHOD, **{"exclude_modules" if key == "ignore" else key: value for key, value in FLAT.items()}}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A checkpoint whose configs agree."""
    write_checkpoint(tmp_path, {"a": torch.zeros(1)}, Scheme.FP8, EXCLUDED)
    return tmp_path


def edit(file: Path, section: str, **changes: object) -> None:
    """Change keys of one section of a JSON file."""
    document = json.loads(file.read_text())
    document[section].update(changes)
    file.write_text(json.dumps(document))


def write(folder: Path, nested: object, flat: object) -> Path:
    """Write each file that is given: the nested one, and `quantization_config` of the flat one."""
    if nested is not None:
        document = {"producer": PRODUCER, "quantization": nested}
        (folder / "hf_quant_config.json").write_text(json.dumps(document))
    if flat is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": flat}))
    return folder


LAYOUTS: dict[str, tuple[Any, Any]] = {
    "nested": (NESTED, None),
    "flat": (None, {**FLAT, **METHOD}),
    "both": (NESTED, {**FLAT, **METHOD}),
    "flat-exclude-modules": (None, RENAMED),
    "flat-both-lists": (None, {**RENAMED, "ignore": list(reversed(EXCLUDED))}),
    "flat-embeds-nested": (None, {**METHOD, "producer": PRODUCER, "quantization": NESTED}),
    "both-flat-embeds-nested": (NESTED, {**METHOD, "producer": PRODUCER, "quantization": NESTED}),
    "method-with-suffix": (None, {**FLAT, "quant_method": "ModelOpt_fp8"}),
    "kv-as-string": (NESTED, {**FLAT, **METHOD, "kv_cache_scheme": "fp8"}),
    "kv-in-nested-only": (NESTED, {**FLAT, **METHOD, "kv_cache_scheme": None}),
    "kv-in-flat-only": ({**NESTED, "kv_cache_quant_algo": None}, {**FLAT, **METHOD}),
    "entries-in-another-order": ({**NESTED, "exclude_modules": list(reversed(EXCLUDED))}, {**FLAT, **METHOD}),
    "entry-twice": ({**NESTED, "exclude_modules": [*EXCLUDED, *EXCLUDED]}, {**FLAT, **METHOD}),
    "algo-in-lower-case": (NESTED, {**FLAT, **METHOD, "quant_algo": "fp8"}),
}


@pytest.mark.parametrize(("nested", "flat"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_same(nested: object, flat: object, tmp_path: Path) -> None:
    assert read_quantization(write(tmp_path, nested, flat)) == PARSED


def test_no_config_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither"):
        read_quantization(tmp_path)


CONTRADICTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "algo": ("quant_algo", {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
    "algo-null": ("quant_algo", {"quant_algo": None}),
    "exclusions": ("excluded", {"ignore": ["lm_head"]}),
    "exclusions-null": ("excluded", {"ignore": None}),
    "kv": ("kv_cache_quant_algo", {"kv_cache_scheme": "NVFP4"}),
}


@pytest.mark.parametrize(("field", "changes"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradicting_configs_are_an_error(field: str, changes: dict[str, object], tmp_path: Path) -> None:
    write(tmp_path, NESTED, {**FLAT, **METHOD, **changes})
    with pytest.raises(ConfigError, match=f"one {field} in both configs"):
        read_quantization(tmp_path)


def test_of_contradicting_exclusions_only_the_difference_is_named(tmp_path: Path) -> None:
    many = [f"model.layers.{i}" for i in range(50)]
    write(tmp_path, {**NESTED, "exclude_modules": [*many, "x"]}, {**FLAT, **METHOD, "ignore": [*many, "y"]})
    with pytest.raises(ConfigError, match=r"\['x'\] in hf_quant_config\.json, \['y'\] in config\.json"):
        read_quantization(tmp_path)


def test_two_lists_in_one_file_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json.*one list of exclude_modules and ignore"):
        read_quantization(write(tmp_path, None, {**RENAMED, "ignore": ["lm_head"]}))


def test_of_contradicting_layers_only_the_difference_is_named(tmp_path: Path) -> None:
    same = {f"model.layers.{i}": {"quant_algo": "FP8"} for i in range(50)}
    nested, flat = ({**same, "x": {"quant_algo": algo}} for algo in ("FP8", "NVFP4"))
    mixed = {"quant_algo": "MIXED_PRECISION"}
    write(tmp_path, {**mixed, "quantized_layers": nested}, {**METHOD, **mixed, "quantized_layers": flat})
    with pytest.raises(
        ConfigError, match=r"\{'x': 'FP8'\} in hf_quant_config\.json, \{'x': 'NVFP4'\} in config"
    ):
        read_quantization(tmp_path)


OWN_ALGOS = {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "fp8_pb_wo"}, "c": {}, "d": "FP8"}


@pytest.mark.parametrize(
    ("nested", "flat", "expected"),
    [
        (OWN_ALGOS, OWN_ALGOS, {"a": "FP8", "b": "fp8_pb_wo", "c": None, "d": None}),
        ({"a": {"quant_algo": "FP8"}}, {"a": {"quant_algo": "fp8"}}, {"a": "FP8"}),
        (None, {"a": {"quant_algo": "FP8"}}, {"a": "FP8"}),
        ({"a": {"quant_algo": "FP8"}}, None, {"a": "FP8"}),
        ([], None, None),
    ],
    ids=["equal", "case", "flat-only", "nested-only", "no-object"],
)
def test_algorithms_of_layers_are_read(
    nested: object, flat: object, expected: object, tmp_path: Path
) -> None:
    mixed = {"quant_algo": "MIXED_PRECISION", "exclude_modules": []}
    write(
        tmp_path,
        {**mixed, "quantized_layers": nested},
        {**METHOD, "quant_algo": "mixed_precision", "quantized_layers": flat},
    )
    assert read_quantization(tmp_path).quantized_layers == expected


@pytest.mark.parametrize(
    "flat",
    [{"a": {"quant_algo": "NVFP4"}}, {"b": {"quant_algo": "FP8"}}, {}],
    ids=["algo", "layer", "empty"],
)
def test_contradicting_algorithms_of_layers_are_an_error(flat: object, tmp_path: Path) -> None:
    nested = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}}}
    write(tmp_path, nested, {**METHOD, "quant_algo": "MIXED_PRECISION", "quantized_layers": flat})
    with pytest.raises(ConfigError, match="one quantized_layers in both configs"):
        read_quantization(tmp_path)


@pytest.mark.parametrize("method", ["compressed-tensors", None, 1], ids=str)
def test_another_quantisation_method_is_an_error(method: object, export: Path) -> None:
    edit(export / "config.json", "quantization_config", quant_method=method)
    with pytest.raises(ConfigError, match=str(method)):
        read_quantization(export)


WRONG_TYPES = {
    "algo": {"quant_algo": 8},
    "kv": {"kv_cache_quant_algo": ["FP8"]},
    "exclusions-object": {"exclude_modules": {"lm_head": True}},
    "exclusions-numbers": {"exclude_modules": [1]},
}


@pytest.mark.parametrize("changes", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_value_of_another_type_is_named(changes: dict[str, object], tmp_path: Path) -> None:
    write(tmp_path, {**NESTED, **changes}, None)
    with pytest.raises(ConfigError, match=rf"hf_quant_config\.json: {next(iter(changes))}:"):
        read_quantization(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"quantization": 1}', b'{"a": 1, "a": 1}', b"[" * 100_000],
    ids=["empty", "array", "cut", "not-utf8", "number", "duplicate", "bomb"],
)
def test_an_unusable_config_is_an_error(content: bytes, export: Path) -> None:
    (export / "hf_quant_config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"hf_quant_config\.json"):
        read_quantization(export)
