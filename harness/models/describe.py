"""All that a model is beside its weights' bytes, in words: what an attachment must restore as well."""

import torch
import transformers
from torch import nn

from ..tensor_bytes import dtype_name, sha256

SCALARS = (bool, int, float, str, type(None))


def describe_model(model: transformers.PreTrainedModel) -> dict[str, str]:
    """Path to a description, for parameters, buffers, modules and config.

    A parameter: dtype, shape, whether it takes gradients, and the first parameter with the same memory. A
    buffer: dtype, shape, whether it is saved, and its digest. A module: class, training mode, attributes.
    """
    described = {"config": str(sorted(model.config.to_dict().items()))}
    described["attention"] = str(getattr(model.config, "_attn_implementation", None))
    first: dict[tuple[int, torch.Size], str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        same = first.setdefault((parameter.data_ptr(), parameter.shape), name)
        described[name] = f"{_tensor(parameter)}, gradients {parameter.requires_grad}, memory of {same}"
    for path, module in model.named_modules():
        for leaf, buffer in module._buffers.items():
            if buffer is not None:
                saved = leaf not in module._non_persistent_buffers_set
                described[f"{path}.{leaf}"] = f"{_tensor(buffer)}, saved {saved}, {sha256(buffer)}"
        described[f"module {path}"] = _module(module)
    return described


def _module(module: nn.Module) -> str:
    plain = {n: v for n, v in sorted(vars(module).items()) if isinstance(v, SCALARS) and n != "training"}
    return f"{type(module).__name__}({module.extra_repr()}), training {module.training}, {plain}"


def _tensor(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
