"""The two ModelOpt config files, and the scheme they name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, RefusedScheme
from ..spec import Scheme
from . import strict_json
from .header import shown

HF_QUANT_CONFIG = "hf_quant_config.json"
CONFIG = "config.json"
REFUSED = {
    "FP8_PB_WO": "block-scaled FP8",
    "NVFP4": "4-bit weights and activations",
    "W4A16_NVFP4": "4-bit weights",
    "MXFP8": "block-scaled FP8",
    "MIXED_PRECISION": "a scheme of its own for each layer",
}
"""Schemes that are known and refused; all others are refused as unknown."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """What both files agree on."""

    quant_algo: str | None
    """As written, lower case included; None where it is null or absent."""
    excluded: tuple[str, ...]
    """Module patterns that are not quantised, sorted."""
    kv_cache_quant_algo: str | None
    producer: str
    """Name and version, e.g. `modelopt 0.47.0`; `unknown` where it is not said."""


def read_quantization(path: Path) -> QuantizationConfig:
    """Read `hf_quant_config.json` and the `quantization_config` of `config.json`; opens no weight file.

    Raises:
        ConfigError: neither says anything, one is unusable, or they contradict each other in the
            quant_algo or in the excluded modules.
    """
    nested, flat = _nested(path), _flat(path)
    if nested is None or flat is None:
        found = nested or flat
        if found is None:
            raise _error(path, f"{HF_QUANT_CONFIG}, or quantization_config in {CONFIG}", "neither")
        return found
    for field in ("quant_algo", "excluded"):
        ours, theirs = getattr(nested, field), getattr(flat, field)
        if ours != theirs:
            raise _error(
                path, f"one {field} in both configs", f"{ours!r} in {HF_QUANT_CONFIG}, {theirs!r} in {CONFIG}"
            )
    return nested


def scheme_of(config: QuantizationConfig, path: Path) -> Scheme:
    """The scheme that the quant_algo alone, spelled exactly, decides; `path` is for the message.

    Raises:
        RefusedScheme: any other quant_algo; never loaded as something else.
    """
    algo = config.quant_algo
    if algo is not None and algo in {scheme.value for scheme in Scheme}:
        return Scheme(algo)
    meaning = REFUSED.get(algo.upper(), "not a scheme known here") if algo is not None else "nothing is named"
    raise RefusedScheme(
        path,
        expected=f"quant_algo {' or '.join(scheme.value for scheme in Scheme)}",
        found=f"quant_algo {'null' if algo is None else repr(algo)} ({meaning})",
        remedy="Export the checkpoint in a supported scheme.",
    )


def _nested(path: Path) -> QuantizationConfig | None:
    file = path / HF_QUANT_CONFIG
    document = _object(file)
    if document is None:
        return None
    quantization = document.get("quantization")
    if not isinstance(quantization, dict):
        raise _error(file, "an object `quantization`", shown(quantization))
    return _config(quantization, "exclude_modules", document.get("producer"), file)


def _flat(path: Path) -> QuantizationConfig | None:
    file = path / CONFIG
    quantization = (_object(file) or {}).get("quantization_config")
    if quantization is None:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method != "modelopt":
        raise _error(file, "a quantization_config with quant_method 'modelopt'", shown(method))
    return _config(quantization, "ignore", quantization.get("producer"), file)


def _config(data: dict[str, Any], exclusions: str, producer: object, file: Path) -> QuantizationConfig:
    excluded = data.get(exclusions)
    excluded = [] if excluded is None else excluded
    if not isinstance(excluded, list) or not all(isinstance(name, str) for name in excluded):
        raise _error(f"{file}: {exclusions}", "a list of strings", shown(excluded))
    algos = [data.get("quant_algo"), data.get("kv_cache_quant_algo")]
    for algo in algos:
        if algo is not None and not isinstance(algo, str):
            raise _error(file, "quant_algo and kv_cache_quant_algo: a string or null", shown(algo))
    named = producer if isinstance(producer, dict) else {}
    made_by = " ".join(str(named[key]) for key in ("name", "version") if key in named)
    return QuantizationConfig(algos[0], tuple(sorted(set(excluded))), algos[1], made_by or "unknown")


def _object(file: Path) -> dict[str, Any] | None:
    try:
        # Model configs may say Infinity, which transformers reads.
        document = strict_json.parse(file.read_bytes(), strict_numbers=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _error(file, "a readable file", error.strerror) from error
    except ValueError as error:
        raise _error(file, "a JSON object", f"{error}") from error
    if not isinstance(document, dict):
        raise _error(file, "a JSON object", shown(document))
    return document


def _error(where: object, expected: str, found: object) -> ConfigError:
    return ConfigError(
        where, expected=expected, found=found, remedy="Copy both config files from the export as it was made."
    )
