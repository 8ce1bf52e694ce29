"""A model case in its evidence: kept small, whatever the model's size."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from ..observation import ModelObservation, RouteObservation
from ..record import DaemonRecord, GenerationRecord, ModelRecord, ModuleRecord, OutputRecord, TensorRecord
from ..tensor_bytes import dtype_name, dtype_of, sha256
from .prompts import TOKENIZER

HIDDEN_DIGITS = 16


def model_record(model: ModelObservation, daemon: DaemonRecord) -> ModelRecord:
    """What the routes share."""
    contents, prompts = model.contents, model.prompts
    return ModelRecord(
        architecture=contents.architecture.model_type,
        decoder_layers=contents.decoder_layers,
        fused_layers=len(contents.layers),
        plain_tensors=len(contents.plain),
        weight_bytes=sum(_nbytes(tensor) for tensor in daemon.tensors),
        tokenizer=TOKENIZER if prompts.tokenizer else "none: fixed token ids stand for the prompts",
        prompts=[prompts.text(ids) for ids in prompts.ids.tolist()],
        prompt_ids=prompts.ids.tolist(),
        points=list(model.points),
        notes=list(contents.notes),
    )


def folded(model: ModelObservation, tensors: Sequence[TensorRecord], arena: str) -> dict[str, Any]:
    """`tensors`, those of the embedding and the first decoder layer, and `modules`, all taken together."""
    architecture = model.contents.architecture
    shown = (f"{architecture.decoder}.0.", f"{architecture.embedding}.")
    modules: dict[str, list[TensorRecord]] = {}
    for tensor in tensors:
        modules.setdefault(_module(tensor.name, architecture.decoder), []).append(tensor)
    return {
        "tensors": [tensor for tensor in tensors if tensor.name.startswith(shown)],
        "modules": [_module_record(name, held, arena) for name, held in modules.items()],
    }


def _module(name: str, decoder: str) -> str:
    if name.startswith(f"{decoder}."):
        return ".".join(name.split(".")[: decoder.count(".") + 2])
    return name.rpartition(".")[0]


def _module_record(name: str, tensors: Sequence[TensorRecord], arena: str) -> ModuleRecord:
    lines = (f"{t.name} {t.dtype} {t.shape} {t.stride} {t.sha256}" for t in tensors)
    served = [tensor.offset for tensor in tensors if arena and tensor.allocation == arena]
    return ModuleRecord(
        name=name,
        tensors=len(tensors),
        nbytes=sum(map(_nbytes, tensors)),
        sha256=hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        allocations=sorted({tensor.allocation for tensor in tensors}),
        offset=min(served, default=None),
    )


def _nbytes(tensor: TensorRecord) -> int:
    return int(torch.Size(tensor.shape).numel()) * dtype_of(tensor.dtype).itemsize


def logits_records(seen: RouteObservation) -> list[OutputRecord]:
    """One for each prompt and step."""
    return [
        OutputRecord(
            m=logits.shape[0],
            shape=list(logits.shape),
            dtype=dtype_name(logits.dtype),
            sha256=sha256(logits),
            prompt=prompt,
            step=int(name.partition(".")[2]),
        )
        for name, batch in seen.results.items()
        if name.startswith("logits.")
        for prompt, logits in enumerate(batch)
    ]


def generation_record(model: ModelObservation, seen: RouteObservation) -> GenerationRecord | None:
    """What a route generated; None where it did not get that far."""
    if not {"ids", "hidden", "description"} <= seen.results.keys():
        return None
    ids: list[list[int]] = seen.results["ids"].tolist()
    kinds: Counter[str] = Counter()
    for name, count in seen.reported.get("gemms", {}).items():
        kinds[name.rpartition(".")[2]] += count
    return GenerationRecord(
        ids=ids,
        text=[model.prompts.text(each) for each in ids],
        hidden=[_chained(each) for each in seen.results["hidden"]],
        gemms=dict(kinds),
        description=sha256(seen.results["description"]),
        flags=seen.reported.get("flags", {}),
    )


def _chained(steps: torch.Tensor) -> list[str]:
    """uint8 [steps, points, 32] to a digest for each point, over all steps."""
    return [sha256(of_point)[:HIDDEN_DIGITS] for of_point in steps.transpose(0, 1)]
