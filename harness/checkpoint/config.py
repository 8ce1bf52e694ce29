"""The two ModelOpt config files: what each of them says, and that they agree."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, MalformedCheckpoint
from . import strict_json
from .files import read_small
from .header import shown

HF_QUANT_CONFIG = "hf_quant_config.json"
CONFIG = "config.json"
EXCLUSION_KEYS = ("exclude_modules", "ignore")
"""ModelOpt writes the first into `hf_quant_config.json`; `config.json` has either, by ModelOpt's version."""
OUTPUT_DTYPES = ("bfloat16", "float16")
FP8_KV_CACHE = {"type": "float", "num_bits": 8}
"""What `kv_cache_scheme` of `config.json` says for a `kv_cache_quant_algo` of FP8."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """What both files agree on. Names of algorithms are as written; only their case never matters."""

    quant_algo: str | None
    """None where it is null or absent."""
    excluded: tuple[str, ...]
    """Module entries that are not quantised, sorted; see `exclusions` for what they match."""
    kv_cache_quant_algo: str | None
    quantized_layers: dict[str, str | None] | None = None
    """Module path to its quant_algo, None where it has none; {} where this is no object; None if absent."""


def read_quantization(path: Path) -> QuantizationConfig:
    """Read `hf_quant_config.json` and the `quantization_config` of `config.json`; opens no weight file.

    A KV-cache algorithm and `quantized_layers` may be said by one file only: older exports leave them out
    of `config.json`.

    Raises:
        ConfigError: neither says anything, one is unusable, or they contradict each other.
    """
    nested, flat = _nested(path), _flat(path)
    if nested is None or flat is None:
        found = nested or flat
        if found is None:
            raise _error(path, f"{HF_QUANT_CONFIG}, or quantization_config in {CONFIG}", "neither")
        return found
    for field in ("quant_algo", "excluded", "kv_cache_quant_algo", "quantized_layers"):
        ours, theirs = getattr(nested, field), getattr(flat, field)
        unsaid = field in ("kv_cache_quant_algo", "quantized_layers") and None in (ours, theirs)
        if not unsaid and _differ(ours, theirs):
            both = f"{_beyond(ours, theirs)} in {HF_QUANT_CONFIG}, {_beyond(theirs, ours)} in {CONFIG}"
            raise _error(path, f"one {field} in both configs", both)
    return QuantizationConfig(
        quant_algo=nested.quant_algo,
        excluded=nested.excluded,
        kv_cache_quant_algo=nested.kv_cache_quant_algo or flat.kv_cache_quant_algo,
        quantized_layers=nested.quantized_layers or flat.quantized_layers,
    )


def model_config(path: Path) -> dict[str, Any]:
    """All of `config.json`; raises ConfigError where there is none, or no JSON object."""
    document = _object(path / CONFIG)
    if document is None:
        raise _error(path / CONFIG, "the model's config", "no such file")
    return document


def output_dtype(path: Path) -> str:
    """torch name of the dtype of activations, by `config.json`; bfloat16 where it says nothing.

    Raises:
        ConfigError: one that the kernels do not have, or two that differ.
    """
    document = _object(path / CONFIG) or {}
    # transformers wrote `torch_dtype` before version 5.
    named = [document[key] for key in ("dtype", "torch_dtype") if document.get(key) is not None]
    if not named:
        return OUTPUT_DTYPES[0]
    dtype = named[0] if named.count(named[0]) == len(named) else named
    if dtype not in OUTPUT_DTYPES:
        raise ConfigError(
            path / CONFIG,
            expected=f"dtype {' or '.join(OUTPUT_DTYPES)}",
            found=repr(dtype)[:100],
            remedy="Export the checkpoint with an output dtype that the kernels have.",
        )
    return str(dtype)


def _differ(ours: object, theirs: object) -> bool:
    return _upper(ours) != _upper(theirs)


def _upper(value: object) -> object:
    # ModelOpt writes fp8_pb_wo in lower case, and vLLM upper-cases all.
    if isinstance(value, dict):
        return {name: _upper(algo) for name, algo in value.items()}
    return value.upper() if isinstance(value, str) else value


def _beyond(value: object, other: object) -> str:
    """The value, of a collection only what the other lacks: the whole would hide it."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {
            name: algo for name, algo in value.items() if name not in other or _differ(algo, other[name])
        }
    elif isinstance(value, tuple) and isinstance(other, tuple):
        value = sorted(set(value) - set(other))
    return shown(value)


def _nested(path: Path) -> QuantizationConfig | None:
    file = path / HF_QUANT_CONFIG
    document = _object(file)
    return None if document is None else _config(_section(document, file), file)


def _flat(path: Path) -> QuantizationConfig | None:
    file = path / CONFIG
    quantization = (_object(file) or {}).get("quantization_config")
    if quantization is None:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if not isinstance(method, str) or not method.lower().startswith("modelopt"):
        raise _error(file, "a quantization_config with quant_method 'modelopt'", shown(method))
    # Older exports embed the whole of hf_quant_config.json here.
    section = _section(quantization, file) if "quantization" in quantization else quantization
    return _config(section, file)


def _section(document: dict[str, Any], file: Path) -> dict[str, Any]:
    section = document.get("quantization")
    if not isinstance(section, dict):
        raise _error(file, "an object `quantization`", shown(section))
    return section


def _config(data: dict[str, Any], file: Path) -> QuantizationConfig:
    return QuantizationConfig(
        quant_algo=_algo(data, "quant_algo", file),
        excluded=_excluded(data, file),
        kv_cache_quant_algo=_kv_cache(data, file),
        quantized_layers=_quantized_layers(data),
    )


def _algo(data: dict[str, Any], key: str, file: Path) -> str | None:
    algo = data.get(key)
    if algo is not None and not isinstance(algo, str):
        raise _error(f"{file}: {key}", "a string or null", shown(algo))
    return algo


def _excluded(data: dict[str, Any], file: Path) -> tuple[str, ...]:
    said = {key: _entries(data[key], f"{file}: {key}") for key in EXCLUSION_KEYS if data.get(key) is not None}
    if len(set(said.values())) > 1:
        raise _error(file, f"one list of {' and '.join(EXCLUSION_KEYS)}", shown(said))
    return next(iter(said.values()), ())


def _entries(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _error(where, "a list of strings", shown(value))
    return tuple(sorted(set(value)))


def _kv_cache(data: dict[str, Any], file: Path) -> str | None:
    scheme = data.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        # Another description names no algorithm that could be compared.
        return "FP8" if FP8_KV_CACHE.items() <= scheme.items() else None
    return _algo(data, "kv_cache_quant_algo" if scheme is None else "kv_cache_scheme", file)


def _quantized_layers(data: dict[str, Any]) -> dict[str, str | None] | None:
    layers = data.get("quantized_layers")
    if layers is None:
        return None
    return {name: _own_algo(entry) for name, entry in layers.items()} if isinstance(layers, dict) else {}


def _own_algo(entry: object) -> str | None:
    algo = entry.get("quant_algo") if isinstance(entry, dict) else None
    return algo if isinstance(algo, str) else None


def _object(file: Path) -> dict[str, Any] | None:
    try:
        # Model configs may say Infinity, which transformers reads.
        document = strict_json.parse(read_small(file), strict_numbers=False)
    except FileNotFoundError:
        return None
    except MalformedCheckpoint as error:
        raise _error(file, error.expected, error.found) from error
    except ValueError as error:
        raise _error(file, "a JSON object", f"{error}") from error
    if not isinstance(document, dict):
        raise _error(file, "a JSON object", shown(document))
    return document


def _error(where: object, expected: str, found: object) -> ConfigError:
    return ConfigError(
        where, expected=expected, found=found, remedy="Copy both config files from the export as it was made."
    )
