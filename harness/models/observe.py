"""A model as the harness sees it before any route runs: what must be served, and what is asked."""

from pathlib import Path

from ..checkpoint.layers import checked_projections, tensor_names
from ..checkpoint.reader import CheckpointReader
from ..checks.derivation import processed_bytes
from ..model_spec import ModelSpec
from ..observation import ModelObservation
from ..tensor_bytes import sha256, sha256_of
from .contents import ModelContents, read_contents
from .points import points
from .prompts import make_prompts


def observe_model(model: ModelSpec, checkpoint: Path) -> ModelObservation:
    """Hold the checkpoint against its architecture, derive its tensors; raises CheckpointError, Refused."""
    contents = read_contents(checkpoint)
    embedding = f"{contents.architecture.embedding}.weight"
    with CheckpointReader(checkpoint) as reader:
        embedded = reader.load([embedding])[embedding]
    return ModelObservation(
        contents=contents,
        prompts=make_prompts(checkpoint, model.prompts, contents.vocabulary),
        points=tuple(points(contents.architecture, contents.decoder_layers)),
        derived=derived_digests(contents, checkpoint),
        embedding=embedded,
        new_tokens=model.new_tokens,
    )


def derived_digests(contents: ModelContents, checkpoint: Path) -> dict[str, str]:
    """Full tensor name to sha256; memory holds one layer at a time. Raises CheckpointError."""
    digests: dict[str, str] = {}
    with CheckpointReader(checkpoint) as reader:
        for layer in contents.layers:
            projections = checked_projections(layer, reader.load(tensor_names(layer)), checkpoint)
            derived = processed_bytes(layer, projections)
            digests |= {f"{layer.name}.{name}": sha256_of(raw) for name, raw in derived.items()}
        for plain in contents.plain:
            digests[plain.name] = sha256(reader.load([plain.name])[plain.name])
    return digests
