"""Writing checkpoints as ModelOpt 0.47 does: synthetic ones, and layers cut out of real ones."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ..errors import OutputUnwritable
from ..spec import ForeignSource, LayerSpec, Scheme, SyntheticSource
from .config import CONFIG, HF_QUANT_CONFIG
from .layers import tensor_names, wrong
from .reader import CheckpointReader

WEIGHTS = "model.safetensors"
PRODUCER = {"name": "modelopt", "version": "0.47.0"}
COPIED_CONFIGS = (CONFIG, HF_QUANT_CONFIG, "generation_config.json")
LARGEST_E4M3 = 448.0


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    scheme: Scheme | str | None,
    excluded: Sequence[str] = (),
    quantized_layers: Mapping[str, str] | None = None,
    model: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder with `model.safetensors` and both config files.

    Args:
        path: the folder; made where it is missing.
        tensors: by checkpoint name.
        scheme: the quant_algo, written as it is.
        excluded: module patterns that are not quantised.
        quantized_layers: module path to quant_algo, for MIXED_PRECISION.
        model: what `config.json` says of the model beside its quantisation.

    Raises:
        OutputUnwritable: the folder cannot be made or written.
    """
    _save(path, tensors)
    algo = None if scheme is None else str(scheme)
    layers = {} if quantized_layers is None else {"quantized_layers": _named(quantized_layers)}
    _save_configs(path, algo, list(excluded), layers, dict(model or {}))


def synthetic_tensors(layer: LayerSpec, seed: int, equal_scales: bool) -> dict[str, torch.Tensor]:
    """Draw a layer's tensors; equal arguments give equal bytes.

    Args:
        layer: shapes, scheme and bias.
        seed: of a generator of its own.
        equal_scales: give all projections, or all channels, one weight scale.

    Returns:
        By checkpoint name: `weight` float8_e4m3fn [N, K]; `weight_scale` float32, () or [N]; for FP8
        `input_scale` float32 (), unequal, the largest never in projection 0 of several; `bias` bfloat16 [N].
    """
    generator = torch.Generator().manual_seed(seed)
    count, tensors = len(layer.projections), {}
    for i, projection in enumerate(layer.projections):
        n = projection.logical_width
        # Shifted by one against the input scales, so that the two largest lie in different projections.
        scale = torch.tensor(0.004 * (1 if equal_scales else 1 + 0.37 * ((i + 1) % count)))
        if layer.scheme is Scheme.FP8:
            tensors[f"{projection.name}.input_scale"] = torch.tensor(0.005 * (1 + 0.37 * i))
        else:
            unequal = torch.empty(n).uniform_(0.002, 0.02, generator=generator)
            scale = torch.full((n,), 0.004) if equal_scales else unequal
        values = torch.randn(n, layer.logical_k, generator=generator) * 150
        # Quantised range: a deviation of 150 lets some weights reach the clamp.
        quantised = values.clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
        tensors[f"{projection.name}.weight"] = quantised
        tensors[f"{projection.name}.weight_scale"] = scale
        if layer.bias:
            tensors[f"{projection.name}.bias"] = torch.randn(n, generator=generator).to(torch.bfloat16)
    return tensors


def write_source(path: Path, layer: LayerSpec, source: SyntheticSource | ForeignSource) -> None:
    """Write the checkpoint that a case names as its source; raises OutputUnwritable."""
    if isinstance(source, SyntheticSource):
        write_checkpoint(path, synthetic_tensors(layer, source.seed, source.equal_scales), layer.scheme)
        return
    tensors = synthetic_tensors(layer, source.seed, equal_scales=False)
    layers = {p.name: str(source.quant_algo) for p in layer.projections} if source.mixed else None
    algo = "MIXED_PRECISION" if source.mixed else source.quant_algo
    write_checkpoint(path, tensors, algo, quantized_layers=layers)


def extract_layer(source: Path, target: Path, layer: LayerSpec) -> None:
    """Write a checkpoint with only this layer of a real export; configs are copied.

    Rows beyond each projection's logical_width are cut off, of weight, channel scales and bias alike, and
    so are the weight's columns beyond the layer's logical_k.

    Raises:
        MissingTensor: `source` lacks a tensor of the layer.
        WrongTensor: a weight has fewer rows or columns than asked.
        OutputUnwritable: `target` cannot be written.
    """
    with CheckpointReader(source) as reader:
        tensors = reader.load(tensor_names(layer))
    for projection in layer.projections:
        _trim(tensors, projection.name, projection.logical_width, layer.logical_k, source)
    _save(target, tensors)
    try:
        for name in COPIED_CONFIGS:
            if (source / name).exists():
                shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise _unwritable(target, error) from error


def _trim(tensors: dict[str, torch.Tensor], module: str, width: int, k: int, source: Path) -> None:
    weight = tensors[f"{module}.weight"]
    if weight.dim() != 2 or weight.shape[0] < width or weight.shape[1] < k:
        raise wrong(f"{source}: {module}.weight", f"[at least {width}, at least {k}]", list(weight.shape))
    rows = weight.shape[0]
    tensors[f"{module}.weight"] = weight[:width, :k].clone()
    for suffix in ("weight_scale", "bias"):
        name = f"{module}.{suffix}"
        tensor = tensors.get(name)
        if tensor is not None and tensor.dim() and tensor.shape[0] == rows:
            tensors[name] = tensor[:width].clone()


def _save(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        packed = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(packed, path / WEIGHTS, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise _unwritable(path, error) from error


def _named(quantized_layers: Mapping[str, str]) -> dict[str, Any]:
    return {module: {"quant_algo": algo} for module, algo in quantized_layers.items()}


def _save_configs(
    path: Path, algo: str | None, excluded: list[str], layers: dict[str, Any], model: dict[str, Any]
) -> None:
    nested = {"quant_algo": algo, "kv_cache_quant_algo": None, "exclude_modules": excluded, **layers}
    flat: dict[str, Any] = {}
    if algo == Scheme.FP8:
        static = {"dynamic": False, "num_bits": 8, "type": "float"}
        group = {"input_activations": static, "weights": static, "targets": ["Linear"]}
        flat["config_groups"] = {"group_0": group}
    flat |= {"ignore": excluded, "quant_algo": algo, **layers}
    flat |= {"producer": PRODUCER, "quant_method": "modelopt"}
    try:
        _dump(path / HF_QUANT_CONFIG, {"producer": PRODUCER, "quantization": nested})
        _dump(path / CONFIG, {"dtype": "bfloat16", **model, "quantization_config": flat})
    except OSError as error:
        raise _unwritable(path, error) from error


def _dump(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=4), encoding="utf-8")


def _unwritable(path: Path, error: Exception) -> OutputUnwritable:
    return OutputUnwritable(
        path, expected="a folder to write to", found=error, remedy="Free space or name another."
    )
