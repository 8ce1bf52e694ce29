"""What an engine does with a whole model: build it, generate, and tell what it is."""

import json
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils import deterministic

from ..checkpoint.config import model_config
from ..fingerprint import CHUNK_BYTES, fingerprint
from ..formats.e4m3 import quantize_per_token, quantize_static
from ..kernels import Kernel
from ..loaders import Loaded
from . import ARCHITECTURES
from .build import build
from .describe import describe_model
from .generate import generate
from .llama import LLAMA
from .points import points


class ModelWork:
    """One model on its prompts."""

    def __init__(
        self,
        checkpoint: Path,
        loaded: Loaded,
        kernel: Kernel,
        prompts: torch.Tensor,
        new_tokens: int,
        device: str,
    ) -> None:
        """Build the model of the loaded tensors; raises WrongTensor."""
        self._flags = make_deterministic()
        architecture = ARCHITECTURES[model_config(checkpoint)["model_type"]]
        self._model, self._groups = build(
            checkpoint, architecture, loaded.layers, loaded.plain, kernel, device
        )
        self._points = points(architecture, self._model.config.num_hidden_layers)
        self._prompts, self._new_tokens = prompts, new_tokens

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `Work.tensors`: asked of the model's modules, not of what was loaded."""
        held: dict[str, torch.Tensor] = {}
        for group in self._groups:
            processed = group.linear.processed
            held |= {f"{processed.name}.{name}": tensor for name, tensor in processed.tensors.items()}
        return held | {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def run(self) -> dict[str, torch.Tensor]:
        """See `generate`, and `description`: uint8, JSON of `describe_model` after the run."""
        results = generate(self._model, self._prompts, self._new_tokens, self._points)
        text = json.dumps(describe_model(self._model)).encode()
        return results | {"description": torch.frombuffer(bytearray(text), dtype=torch.uint8)}

    def observed(self) -> dict[str, Any]:
        """GEMMs of each fused layer, and the flags that decide bytes."""
        gemms = {group.linear.processed.name: group.gemms for group in self._groups}
        return {"gemms": gemms, "flags": self._flags}


def preload() -> None:
    """Import what building a model imports, which takes seconds: once, before engines are forked."""
    # transformers would import it, and SciPy and pandas with it, for assisted generation alone.
    vars(transformers.utils)["is_sklearn_available"] = lambda: False
    for architecture in ARCHITECTURES.values():
        getattr(transformers, architecture.causal_lm)


def warm_up(device: str) -> None:
    """Have CUDA load what a model launches, cuBLAS and torch's kernels: half a second of an engine's life.

    It reads each out of a library of a gigabyte when it is first launched. So a model of one layer runs.
    """
    make_deterministic()
    causal_lm = getattr(transformers, LLAMA.causal_lm)
    size = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    config = causal_lm.config_class(**size, **heads, attn_implementation="eager")
    with torch.device(device):
        model = causal_lm(config).to(torch.bfloat16)
        x = torch.ones(2, 64, dtype=torch.bfloat16)
        quantize_static(x, quantize_per_token(x)[1])
        fingerprint(torch.zeros(CHUNK_BYTES, dtype=torch.uint8))
    generate(model, torch.zeros(2, 5, dtype=torch.int64), 2, [LLAMA.final_norm])


def make_deterministic() -> dict[str, str]:
    """Set what decides a sum's order, and return it as it then stands."""
    # Read by cuBLAS when its first handle is made.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    # Decides no byte of a right kernel's output, and takes as long as the rest of a small forward pass.
    # torch puts a property there by exchanging the module's class, which types do not see.
    setattr(deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False
    matmul = torch.backends.cuda.matmul
    return {
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "cublas_workspace_config": os.environ["CUBLAS_WORKSPACE_CONFIG"],
        "allow_tf32": str(matmul.allow_tf32),
        "allow_bf16_reduced_precision_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
        "allow_fp16_reduced_precision_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
        "attention": "eager",
        "threads": str(torch.get_num_threads()),
    }
