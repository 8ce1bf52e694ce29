"""All that a model is beside its weights' bytes, in words: what an attachment must restore as well."""

from collections.abc import Mapping, Set
from typing import Any

import torch
import transformers
from torch import nn

from ..tensor_bytes import dtype_name, sha256

SAID_ELSEWHERE = {"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
"""Attributes of a module that have words of their own."""
OF_EVERY_MODULE = vars(nn.Module()).keys()


def describe_model(model: transformers.PreTrainedModel) -> dict[str, str]:
    """Path to a description, for parameters, buffers, modules and config.

    A parameter: dtype, shape, whether it takes gradients, the first parameter with the same memory, and its
    attributes. A buffer: dtype, shape, whether it is saved, and its digest. A module: class, training mode,
    hooks, and attributes, among them what stands before a parameter or a method of the same name.
    """
    config = model.config
    described = {"config": str(sorted(config.to_dict().items()))}
    described["attention"] = str(getattr(config, "_attn_implementation", None))
    first: dict[tuple[int, torch.Size], str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        same = first.setdefault((parameter.data_ptr(), parameter.shape), name)
        described[name] = f"{_tensor(parameter)}, gradients {parameter.requires_grad}, memory of {same}"
        if vars(parameter):
            described[name] += f", {_value(vars(parameter), config)}"
    for path, module in model.named_modules():
        for leaf, buffer in module._buffers.items():
            if buffer is not None:
                saved = leaf not in module._non_persistent_buffers_set
                described[f"{path}.{leaf}"] = f"{_tensor(buffer)}, saved {saved}, {sha256(buffer)}"
        described[f"module {path}"] = _module(module, config)
    return described


def _module(module: nn.Module, config: transformers.PretrainedConfig) -> str:
    attributes = {}
    for name, value in sorted(vars(module).items()):
        if name in SAID_ELSEWHERE:
            continue
        if name in OF_EVERY_MODULE:
            # Hooks, by numbers that count all hooks of a process.
            value = list(value.values()) if isinstance(value, Mapping) else value
            if not value:
                continue
        attributes[name] = value
    shown = _value(attributes, config)
    return f"{type(module).__name__}({module.extra_repr()}), training {module.training}, {shown}"


def _value(value: Any, config: transformers.PretrainedConfig) -> str:
    """In words that are equal in all processes: no address, and no order of a set."""
    if value is config:
        return "the model's config"
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"{_tensor(value)} {sha256(value)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_value(each, config)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each, config) for each in value)}]"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(_value(each, config) for each in value))}}}"
    if isinstance(value, transformers.PretrainedConfig | transformers.GenerationConfig):
        return f"{type(value).__name__}({_value(value.to_dict(), config)})"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _tensor(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
