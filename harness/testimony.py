"""What an engine or daemon says of itself, held to its form before anything is made of it.

A subject is under validation: what it sends can be anything. All that is out of form is a ValueError here.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from .outcome import Outcome
from .record import DaemonRecord, GenerationRecord, RouteRecord, TensorRecord, WitnessRecord

RESULT = re.compile(
    r"(output|activation|activation_scale|logits)\.[0-9]+|processed\.[a-z_]+|hidden|ids|description"
)

MOST_TOKENS = 2**31
FORMS: dict[str, tuple[int, torch.dtype | None]] = {
    "logits": (3, None),
    "ids": (2, torch.int64),
    "hidden": (4, torch.uint8),
    "description": (1, torch.uint8),
}
"""Results of a model: dimensions, and dtype where there is but one."""
NOTHING_GENERATED: dict[str, Any] = {"gemms": {}, "flags": {}}


def check_observed(observed: Any, ms: Any) -> None:
    """Raise ValueError unless evidence can hold what an engine reported at the end of a phase."""
    if not isinstance(observed, dict):
        raise ValueError(f"an observation that is no object: {observed!r:.100}")
    # What was read from the probe page is text here; whether it is right is decided elsewhere.
    fields = WitnessRecord.model_fields.keys() - {"probe"}
    WitnessRecord(**{name: observed[name] for name in fields if name in observed})
    for tensor in observed.get("tensors", []):
        TensorRecord(**tensor)
    generated = {name: observed[name] for name in NOTHING_GENERATED if name in observed}
    GenerationRecord(ids=[], text=[], hidden=[], description="", **({**NOTHING_GENERATED, **generated}))
    RouteRecord(
        outcome=Outcome.PASS,
        route_taken=observed.get("route_taken", "none"),
        kernels=observed.get("kernels", []),
        memory_bytes=observed.get("memory_bytes", {}),
        timings_ms={"phase": ms},
    )


def daemon_record(pid: int, transport: str, message: dict[str, Any]) -> DaemonRecord:
    """What a daemon serves, from its `ready`; raises ValueError."""
    try:
        ready = message["ready"]
        kept = ("shape", "stride", "dtype", "sha256", "fingerprint", "offset")
        columns = [ready["manifest"]["entries"][name] for name in ("layer", "tensor", *kept)]
        return DaemonRecord(
            pid=pid,
            transport=transport,
            allocation=ready["allocation"],
            arena_bytes=ready["manifest"]["arena_bytes"],
            key=ready["key"],
            tensors=[
                TensorRecord(
                    name=f"{layer}.{tensor}",
                    allocation=ready["allocation"],
                    **dict(zip(kept, row, strict=True)),
                )
                for layer, tensor, *row in zip(*columns, strict=True)
            ],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def take_results(file: Path) -> dict[str, torch.Tensor]:
    """An engine's result tensors; the file goes, so that no later engine can hand it in as its own.

    Raises:
        ValueError: none, not a file of its own, not safetensors, or of another name than results have.
    """
    if not file.is_file() or file.is_symlink():
        raise ValueError(f"no result file {file.name}")
    try:
        results = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file.name}: {error}") from error
    finally:
        file.unlink(missing_ok=True)
    foreign = [name for name in results if not RESULT.fullmatch(name)]
    if foreign:
        raise ValueError(f"results named {foreign[:3]}")
    for name, result in results.items():
        _check_form(name, result)
    return results


def _check_form(name: str, result: torch.Tensor) -> None:
    """Raise ValueError unless evidence can hold this result of a model."""
    dims, dtype = FORMS.get(name.partition(".")[0], (result.dim(), None))
    if result.dim() != dims or dtype not in (None, result.dtype):
        raise ValueError(f"result {name!r} of form {result.dtype} {list(result.shape)}")
    if name == "ids" and not ((result >= 0) & (result < MOST_TOKENS)).all():
        raise ValueError("token ids that no vocabulary has")
