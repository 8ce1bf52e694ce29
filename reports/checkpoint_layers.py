"""Which layers a checkpoint has, for a command that is given only its folder."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from loadproof.harness.atomic_file import write_atomically
from loadproof.harness.checkpoint.config import output_dtype, read_quantization
from loadproof.harness.checkpoint.digest import config_digests, sidecar_digest
from loadproof.harness.checkpoint.discovery import discover_layers, require_layers
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.checkpoint.schemes import SchemePlan
from loadproof.harness.checkpoint.unused import unused_tensors
from loadproof.harness.errors import OutputUnwritable
from loadproof.harness.spec import LayerSpec
from loadproof.harness.user_cache import user_cache

from .text import one_line

SHOWN_NAMES = 3


def discovered(checkpoint: Path) -> list[LayerSpec]:
    """The quantised layers, by the headers; raises CheckpointError (also for none) or RefusedScheme."""
    config = read_quantization(checkpoint)
    # Refused before a weight file is opened.
    SchemePlan(config, checkpoint).require_supported()
    with CheckpointReader(checkpoint) as reader:
        layers = discover_layers(reader, config, output_dtype(checkpoint))
    require_layers(layers, checkpoint)
    return layers


def left_out(checkpoint: Path, layers: Sequence[LayerSpec]) -> list[str]:
    """What no layer reads, in lines for people; empty where there is nothing."""
    with CheckpointReader(checkpoint) as reader:
        unused, ignored = unused_tensors(reader, layers), reader.ignored
    # What nothing reads comes first, since a reader of this line sees only the beginning.
    tensors = [*unused.unread, *unused.kv_scales, *unused.unquantised]
    lines = []
    if tensors:
        lines.append(f"{len(tensors)} tensors are not part of any quantised layer: {_first(tensors)}")
    if ignored:
        lines.append(f"{len(ignored)} files or tensors are not named by the index: {_first(ignored)}")
    return lines


def _first(names: Sequence[str]) -> str:
    return ", ".join([*map(one_line, names[:SHOWN_NAMES]), *(["…"] if len(names) > SHOWN_NAMES else [])])


def remembered(checkpoint: Path, content: str) -> list[LayerSpec]:
    """As `discovered`, remembered by content: an engine that attaches reads no header either."""
    SchemePlan(read_quantization(checkpoint), checkpoint).require_supported()
    asked = json.dumps([content, config_digests(checkpoint), output_dtype(checkpoint)])
    file = user_cache("layers") / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
    try:
        return [LayerSpec.from_json(layer) for layer in json.loads(file.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    layers = discovered(checkpoint)
    # Files exchanged meanwhile must not be remembered under the digest of their predecessors.
    if sidecar_digest(checkpoint) == content:
        # Where it fails only a shortcut is lost: the next call reads the headers again.
        with suppress(OutputUnwritable):
            write_atomically(file, json.dumps([layer.to_json() for layer in layers]))
    return layers
