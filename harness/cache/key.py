"""The key: a fingerprint of all that decides the processed bytes. Both sides must share it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from ..checkpoint.digest import config_digests
from ..device import describe_gpu
from ..errors import KeyMismatch
from ..formats.e4m3 import PROCESSING
from ..kernels import Kernel
from ..model_spec import PlainTensor
from ..spec import LayerSpec

Key = dict[str, str | None]


def make_key(
    checkpoint: Path,
    content: str,
    layers: list[LayerSpec],
    kernel: Kernel,
    device: str = "cpu",
    plain: Sequence[PlainTensor] = (),
) -> Key:
    """Fingerprint a load.

    Args:
        checkpoint: folder with the config files; no weight file is opened.
        content: digest of the weight files.
        layers: the layers that are processed.
        kernel: the backend that will multiply.
        device: `cpu` or `cuda`; the GPU is this process's current one.
        plain: the tensors that are served as the checkpoint stores them.
    """
    asked = [[layer.to_json() for layer in layers], [tensor.to_json() for tensor in plain]]
    described = json.dumps(asked, sort_keys=True)
    return {
        "content": content,
        **config_digests(checkpoint),
        "layers": hashlib.sha256(described.encode()).hexdigest(),
        "processing": PROCESSING,
        "kernel": kernel.name,
        "kernel_build": kernel.build_id(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **_gpu(device),
    }


def _gpu(device: str) -> Key:
    if device == "cpu":
        return {"driver": None, "gpu_architecture": None, "gpu_uuid": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "driver": (describe_gpu() or {}).get("driver"),
        "gpu_architecture": f"sm_{properties.major}{properties.minor}",
        "gpu_uuid": str(properties.uuid),
    }


def differing_fields(daemon: Key, engine: Key) -> dict[str, list[str | None]]:
    """Field name to [daemon's value, engine's value], for every field that differs."""
    names = sorted(daemon.keys() | engine.keys())
    return {n: [daemon.get(n), engine.get(n)] for n in names if daemon.get(n) != engine.get(n)}


def key_mismatch(where: str, fields: dict[str, list[str | None]]) -> KeyMismatch:
    """The error that lists the differing fields."""
    listed = "; ".join(f"{name}: daemon {d!r}, engine {e!r}" for name, (d, e) in fields.items())
    return KeyMismatch(
        where,
        expected="a daemon with this engine's key",
        found=f"{len(fields)} differing fields ({listed})",
        remedy="Start a daemon for this checkpoint and this build, or load from disk.",
    )
