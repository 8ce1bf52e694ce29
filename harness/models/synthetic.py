"""Small models with random weights, written as ModelOpt writes an export."""

from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.writer import synthetic_tensors, write_checkpoint
from ..model_spec import SyntheticModel
from ..spec import LayerSpec, Projection, Scheme
from . import ARCHITECTURES

WEIGHT_SHRINK = 0.05
"""Weight scales of single layers, taken down so that activations stay near 1 from layer to layer."""
BIASED = {"qwen2": ("qkv_proj",)}
"""Architecture to the fused layers that have a bias."""


def write_model(path: Path, model: SyntheticModel, scheme: Scheme) -> None:
    """Write a checkpoint; equal arguments give equal bytes. Raises OutputUnwritable."""
    tensors: dict[str, torch.Tensor] = {}
    for number, layer in enumerate(layers_of(model, scheme)):
        drawn = synthetic_tensors(layer, model.seed + number, equal_scales=False)
        for name, tensor in drawn.items():
            tensors[name] = tensor * WEIGHT_SHRINK if name.endswith(".weight_scale") else tensor
    architecture = ARCHITECTURES[model.architecture]
    excluded = [architecture.head, architecture.embedding]
    write_checkpoint(path, tensors | _plain(model), scheme, excluded, model=config_of(model))


def layers_of(model: SyntheticModel, scheme: Scheme) -> list[LayerSpec]:
    """All fused layers of the model, in its order."""
    architecture = ARCHITECTURES[model.architecture]
    head = model.hidden // model.heads
    widths = {
        "q_proj": model.hidden,
        "k_proj": head * model.kv_heads,
        "v_proj": head * model.kv_heads,
        "o_proj": model.hidden,
        "gate_proj": model.intermediate,
        "up_proj": model.intermediate,
        "down_proj": model.hidden,
    }
    layers = []
    for i, (name, members) in product(range(model.layers), architecture.fused):
        parent, _, leaf = f"{architecture.decoder}.{i}.{name}".rpartition(".")
        projections = (Projection(name=f"{parent}.{m}", logical_width=widths[m]) for m in members)
        layer = LayerSpec(
            name=f"{parent}.{leaf}",
            scheme=scheme,
            projections=tuple(projections),
            logical_k=model.intermediate if leaf == "down_proj" else model.hidden,
            bias=leaf in BIASED.get(model.architecture, ()),
        )
        layers.append(layer)
    return layers


def config_of(model: SyntheticModel) -> dict[str, Any]:
    """`config.json` without its quantisation."""
    return {
        "model_type": model.architecture,
        "architectures": [ARCHITECTURES[model.architecture].causal_lm],
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _plain(model: SyntheticModel) -> dict[str, torch.Tensor]:
    architecture = ARCHITECTURES[model.architecture]
    generator = torch.Generator().manual_seed(model.seed)

    def drawn(*shape: int, around: float = 0.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.2 + around).to(torch.bfloat16)

    tensors = {f"{architecture.embedding}.weight": drawn(model.vocabulary, model.hidden)}
    for i in range(model.layers):
        for norm in architecture.norms:
            size = model.hidden // model.heads if norm.startswith("self_attn") else model.hidden
            tensors[f"{architecture.decoder}.{i}.{norm}.weight"] = drawn(size, around=1.0)
    tensors[f"{architecture.final_norm}.weight"] = drawn(model.hidden, around=1.0)
    if not model.tied:
        tensors[f"{architecture.head}.weight"] = drawn(model.vocabulary, model.hidden)
    return tensors
