"""A transformers model whose weights are loaded or attached tensors; nothing is copied or initialised."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers
from torch import nn

from ..checkpoint.config import CONFIG, model_config
from ..errors import ConfigError, WrongTensor
from ..formats import ProcessedLayer
from ..kernels import Kernel
from ..layers import FusedFp8Linear
from ..model_spec import PlainTensor
from ..spec import LayerSpec
from ..tensor_bytes import dtype_name
from .architecture import Architecture
from .shims import FusedGroup, FusedProjection

REMEDY = "Export the checkpoint again: files and config.json must be of one model."


def skeleton(checkpoint: Path, architecture: Architecture) -> transformers.PreTrainedModel:
    """The model that `config.json` describes, in evaluation mode; all tensors on the meta device.

    Raises:
        ConfigError: transformers makes no model of it.
    """
    try:
        return _skeleton(checkpoint, architecture)
    except Exception as error:  # of a config that is wrong in any way, transformers raises any
        raise ConfigError(
            checkpoint / CONFIG,
            expected=f"the config of a {architecture.causal_lm} for transformers {transformers.__version__}",
            found=f"{type(error).__name__}: {error}"[:300],
            remedy="Copy config.json from the export as it was made, or install another transformers.",
        ) from error


def _skeleton(checkpoint: Path, architecture: Architecture) -> transformers.PreTrainedModel:
    causal_lm = getattr(transformers, architecture.causal_lm)
    # Not by AutoConfig: it may ask to run code of the checkpoint's, and read another file than config.json.
    config = causal_lm.config_class.from_dict(model_config(checkpoint))
    # What is quantised is decided here, not by transformers.
    config.__dict__.pop("quantization_config", None)
    # Each route has a folder of its own, and a model is no other for that.
    config._name_or_path = ""
    config._attn_implementation = "eager"
    # How a model's parts hand over their results is no part of the model, and only this way runs.
    config.return_dict = True
    with torch.device("meta"):
        model: transformers.PreTrainedModel = causal_lm(config)
    model.train(False)
    return model


def require_fitting(
    model: transformers.PreTrainedModel,
    architecture: Architecture,
    layers: Sequence[LayerSpec],
    plain: Sequence[PlainTensor],
    checkpoint: Path,
) -> None:
    """Hold what the files have against the skeleton's parameters.

    Raises:
        WrongTensor: one is missing, has another shape, or is not the model's.
    """
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    found = {each.name: each.shape for each in plain}
    for layer in layers:
        for projection in layer.projections:
            found[f"{projection.name}.weight"] = (projection.logical_width, layer.logical_k)
            if layer.bias:
                found[f"{projection.name}.bias"] = (projection.logical_width,)
    if model.config.tie_word_embeddings:
        wanted.pop(f"{architecture.head}.weight", None)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise WrongTensor(
                f"{checkpoint}: {name}",
                expected=_shown(wanted.get(name), "no such tensor, by the config"),
                found=_shown(found.get(name), "none"),
                remedy=REMEDY,
            )


def _shown(shape: tuple[int, ...] | None, absent: str) -> str:
    return absent if shape is None else f"shape {list(shape)}"


def build(
    checkpoint: Path,
    architecture: Architecture,
    layers: Sequence[ProcessedLayer],
    plain: Mapping[str, torch.Tensor],
    kernel: Kernel,
    device: str,
) -> tuple[transformers.PreTrainedModel, list[FusedGroup]]:
    """A model that computes with exactly these tensors.

    Args:
        checkpoint: folder with `config.json`; no weight file is opened.
        architecture: of the model.
        layers: processed, each in place of its projections.
        plain: by parameter name.
        kernel: multiplies the fused layers.
        device: where the tensors lie, and where computed buffers go.

    Raises:
        WrongTensor: the tensors are not those of this model.
    """
    model = skeleton(checkpoint, architecture)
    described = [
        PlainTensor(name=n, dtype=dtype_name(t.dtype), shape=tuple(t.shape)) for n, t in plain.items()
    ]
    require_fitting(model, architecture, [layer.spec for layer in layers], described, checkpoint)
    groups = [_fuse(model, layer, kernel) for layer in layers]
    for name, tensor in plain.items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, nn.Parameter(tensor, requires_grad=False))
    if model.config.tie_word_embeddings:
        model.get_submodule(architecture.head).weight = model.get_submodule(architecture.embedding).weight
    for path in architecture.computed:
        _replace(model, path, type(model.get_submodule(path))(config=model.config).to(device))
    model.train(False)
    _require_whole(model, device, checkpoint)
    return model, groups


def _fuse(model: nn.Module, layer: ProcessedLayer, kernel: Kernel) -> FusedGroup:
    group = FusedGroup(FusedFp8Linear(layer, kernel))
    for index, projection in enumerate(layer.spec.projections):
        _replace(model, projection.name, FusedProjection(group, index))
    return group


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def _require_whole(model: nn.Module, device: str, checkpoint: Path) -> None:
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        if tensor.device.type != device:
            raise WrongTensor(
                f"{checkpoint}: {name}",
                expected=f"a tensor on {device}",
                found=f"on {tensor.device}",
                remedy="Name the module in the architecture's `computed`, or see why it was not loaded.",
            )
