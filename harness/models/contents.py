"""What a model's checkpoint holds, by its configs, headers and scales; no weight is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.config import CONFIG, model_config, output_dtype, read_quantization
from ..checkpoint.discovery import discover_layers, require_layers
from ..checkpoint.kv_scales import kv_scales
from ..checkpoint.layers import checked_scales, tensor_names, wrong
from ..checkpoint.names import members_of
from ..checkpoint.reader import DTYPES, CheckpointReader
from ..checkpoint.schemes import SchemePlan
from ..checkpoint.unused import unused_tensors
from ..errors import ConfigError, RefusedModel
from ..model_spec import PlainTensor
from ..spec import LayerSpec
from ..tensor_bytes import dtype_name
from . import ARCHITECTURES, Architecture

SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContents:
    """A supported model, and every tensor of it."""

    architecture: Architecture
    decoder_layers: int
    vocabulary: int
    """Token ids below this exist."""
    layers: tuple[LayerSpec, ...]
    """Quantised, fused, in the order of the model."""
    plain: tuple[PlainTensor, ...]
    """Used as stored, sorted by name."""
    notes: tuple[str, ...]
    """What is left out, in sentences for people."""


def read_contents(checkpoint: Path) -> ModelContents:
    """Hold a checkpoint against the architecture that its `config.json` names.

    Raises:
        RefusedModel: another architecture, or modules that it does not have.
        RefusedScheme: by the quant_algo.
        CheckpointError: as named; what lies in the files is not what the configs say.
    """
    document = model_config(checkpoint)
    architecture = _architecture(document, checkpoint)
    decoder_layers = _size(document, "num_hidden_layers", checkpoint)
    quantization = read_quantization(checkpoint)
    # Refused before a weight file is opened.
    SchemePlan(quantization, checkpoint).require_supported()
    out_dtype = output_dtype(checkpoint)
    with CheckpointReader(checkpoint) as reader:
        _require_depth(decoder_layers, len(reader.names), checkpoint)
        layers = discover_layers(reader, quantization, out_dtype)
        _require_known(layers, architecture, decoder_layers, checkpoint)
        _require_tensors(layers, reader)
        plain = _plain(reader, layers, architecture, decoder_layers, out_dtype)
        notes = _notes(reader)
    if document.get("tie_word_embeddings"):
        names = [layer.name for layer in layers] + [tensor.name for tensor in plain]
        _require_no_head(names, architecture, checkpoint)
    return ModelContents(
        architecture=architecture,
        decoder_layers=decoder_layers,
        vocabulary=_size(document, "vocab_size", checkpoint),
        layers=tuple(layers),
        plain=plain,
        notes=notes,
    )


def _architecture(document: dict[str, Any], checkpoint: Path) -> Architecture:
    found = document.get("model_type")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise RefusedModel(
            checkpoint / CONFIG,
            expected=f"model_type {', '.join(sorted(ARCHITECTURES))}",
            found=repr(found)[:100],
            remedy="Add the architecture: docs/add-an-architecture.md, which says what fits.",
        )
    return ARCHITECTURES[found]


def _size(document: dict[str, Any], key: str, checkpoint: Path) -> int:
    value = document.get(key)
    if type(value) is not int or value < 1:
        raise ConfigError(
            checkpoint / CONFIG,
            expected=f"a positive number {key}",
            found=repr(value)[:100],
            remedy="Copy config.json from the export as it was made.",
        )
    return value


def _require_depth(decoder_layers: int, tensors: int, checkpoint: Path) -> None:
    # What is done for each decoder layer would never end.
    if decoder_layers > tensors:
        raise ConfigError(
            checkpoint / CONFIG,
            expected=f"no more decoder layers than the {tensors} tensors in the files",
            found=f"num_hidden_layers {decoder_layers}"[:100],
            remedy="Copy config.json from the export as it was made.",
        )


def _require_known(
    layers: Sequence[LayerSpec], architecture: Architecture, decoder_layers: int, checkpoint: Path
) -> None:
    require_layers(layers, checkpoint)
    known = architecture.fused_names(decoder_layers)
    foreign = [layer.name for layer in layers if layer.name not in known]
    fused_on_disk = [
        layer.name for layer in layers if layer.projections[0].name == layer.name and members_of(layer.name)
    ]
    if foreign:
        raise RefusedModel(
            checkpoint,
            expected=f"quantised projections that {_declared(architecture)} names",
            found=", ".join(foreign[:SHOWN_NAMES]),
            remedy="Export the model as transformers names its modules, or complete that file.",
        )
    if fused_on_disk:
        raise RefusedModel(
            checkpoint,
            expected="projections that are stored one by one, so that there is something to fuse",
            found=f"{', '.join(fused_on_disk[:SHOWN_NAMES])}, fused on disk",
            remedy="Whole models of such an architecture are not supported: docs/add-an-architecture.md.",
        )


def _require_tensors(layers: Sequence[LayerSpec], reader: CheckpointReader) -> None:
    """Raise MissingTensor for any tensor; BadScale and WrongTensor for scales, small enough to be read."""
    for layer in layers:
        names = tensor_names(layer)
        for name in names:
            reader.entry(name)
        scales = reader.load([name for name in names if name.endswith("_scale")])
        for projection in layer.projections:
            checked_scales(layer, projection, scales, reader.path)


def _declared(architecture: Architecture) -> str:
    return f"{architecture.causal_lm} in harness/models/{architecture.model_type}.py"


def _plain(
    reader: CheckpointReader,
    layers: Sequence[LayerSpec],
    architecture: Architecture,
    decoder_layers: int,
    out_dtype: str,
) -> tuple[PlainTensor, ...]:
    unused = unused_tensors(reader, layers)
    modules = architecture.plain_modules(decoder_layers)
    foreign = [n for n in unused.unquantised if n.rpartition(".")[0] not in modules]
    if unused.unread or foreign:
        raise RefusedModel(
            reader.path,
            expected=f"only tensors of modules that {_declared(architecture)} names",
            found=", ".join([*unused.unread, *foreign][:SHOWN_NAMES]),
            remedy="Export the model as transformers names its modules, or complete that file.",
        )
    plain = []
    for name in unused.unquantised:
        entry = reader.entry(name)
        dtype = dtype_name(DTYPES[entry.dtype]) if entry.dtype in DTYPES else entry.dtype
        if dtype != out_dtype:
            raise wrong(f"{reader.path}: {name}", f"dtype {out_dtype}, as {CONFIG} says", dtype)
        plain.append(PlainTensor(name=name, dtype=dtype, shape=tuple(entry.shape)))
    return tuple(plain)


def _notes(reader: CheckpointReader) -> tuple[str, ...]:
    """Scales of a quantised key-value cache are checked, and used by nothing: the cache here is not one."""
    modules = kv_scales(reader)
    if not modules:
        return ()
    return (
        f"The checkpoint has key-value cache scales for {len(modules)} attention modules. They are left out: "
        "keys and values stay in the model's dtype, so a quantised cache is no part of this proof.",
    )


def _require_no_head(names: Sequence[str], architecture: Architecture, checkpoint: Path) -> None:
    found = [name for name in names if name.partition(".weight")[0] == architecture.head]
    if found:
        raise wrong(
            f"{checkpoint}: {found[0]}",
            "no output layer of its own, since config.json says tie_word_embeddings",
            "one",
        )
