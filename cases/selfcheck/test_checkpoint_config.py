"""The quant_algo alone decides, and both config files must agree."""

import json
from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.config import read_quantization, scheme_of
from loadproof.harness.checkpoint.writer import write_checkpoint
from loadproof.harness.errors import ConfigError, RefusedScheme
from loadproof.harness.spec import Scheme

EXCLUDED = ("lm_head", "model.embed_tokens")


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


def both(export: Path, algo: str | None) -> None:
    """Write one quant_algo into both configs."""
    edit(export / "hf_quant_config.json", "quantization", quant_algo=algo)
    edit(export / "config.json", "quantization_config", quant_algo=algo)


@pytest.mark.parametrize("scheme", list(Scheme), ids=str)
def test_a_supported_scheme_is_recognised(scheme: Scheme, export: Path) -> None:
    both(export, scheme.value)
    assert scheme_of(read_quantization(export), export) is scheme


REFUSED = [
    "FP8_PB_WO",
    "fp8_pb_wo",
    "NVFP4",
    "W4A16_NVFP4",
    "MXFP8",
    "MIXED_PRECISION",
    "fp8",
    "FP8 ",
    "INT4_AWQ",
    "",
]


@pytest.mark.parametrize("algo", REFUSED, ids=lambda a: repr(a))
def test_any_other_scheme_is_refused_by_name(algo: str, export: Path) -> None:
    both(export, algo)
    with pytest.raises(RefusedScheme) as caught:
        scheme_of(read_quantization(export), export)
    assert f"quant_algo {algo!r}" in caught.value.found
    assert all(scheme.value in caught.value.expected for scheme in Scheme)


def test_a_null_scheme_is_refused(export: Path) -> None:
    both(export, None)
    with pytest.raises(RefusedScheme, match="quant_algo null"):
        scheme_of(read_quantization(export), export)


@pytest.mark.parametrize("gone", ["hf_quant_config.json", "config.json"])
def test_one_config_file_is_enough(gone: str, export: Path) -> None:
    (export / gone).unlink()
    config = read_quantization(export)
    assert (config.quant_algo, config.excluded, config.producer) == ("FP8", EXCLUDED, "modelopt 0.47.0")


def test_no_config_file_is_an_error(export: Path) -> None:
    for name in ("hf_quant_config.json", "config.json"):
        (export / name).unlink()
    with pytest.raises(ConfigError, match="neither"):
        read_quantization(export)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("quant_algo", {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
        ("quant_algo", {"quant_algo": "fp8"}),
        ("quant_algo", {"quant_algo": None}),
        ("excluded", {"ignore": ["lm_head"]}),
        ("excluded", {"ignore": None}),
    ],
    ids=["algo", "algo-case", "algo-null", "exclusions", "exclusions-null"],
)
def test_contradicting_configs_are_an_error(field: str, changes: dict[str, object], export: Path) -> None:
    edit(export / "config.json", "quantization_config", **changes)
    with pytest.raises(ConfigError, match=f"one {field} in both configs"):
        read_quantization(export)


def test_the_order_of_exclusions_does_not_matter(export: Path) -> None:
    edit(export / "config.json", "quantization_config", ignore=list(reversed(EXCLUDED)))
    assert read_quantization(export).excluded == EXCLUDED


def test_another_quantisation_method_is_an_error(export: Path) -> None:
    edit(export / "config.json", "quantization_config", quant_method="compressed-tensors")
    with pytest.raises(ConfigError, match="compressed-tensors"):
        read_quantization(export)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"quantization": 1}', b'{"a": 1, "a": 1}', b"[" * 100_000],
    ids=["empty", "array", "cut", "not-utf8", "number", "duplicate", "bomb"],
)
def test_an_unusable_config_is_an_error(content: bytes, export: Path) -> None:
    (export / "hf_quant_config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"hf_quant_config\.json"):
        read_quantization(export)
