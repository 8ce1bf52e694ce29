"""What the tensors of SmolLM2's exports are made of: quantised blocks of one GGUF file, and little else.

Making them again needs torch alone; finding the recipes, where the exports were made, needs gguf too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from loadproof.harness.tensor_bytes import memory_bytes

Q4_1_BYTES, Q8_0_BYTES = 20, 34
"""Of a block of 32 weights, as ggml stores it."""
LARGEST_E4M3 = 448.0
Tensors = Mapping[str, torch.Tensor]


class Step(NamedTuple):
    """How one tensor of an export is made."""

    tensor: str
    blocks: str | None
    """GGUF's name of its blocks, or None: the tensor travels as it is."""
    heads: int
    """How many heads' rows GGUF reorders; 0: none."""


def carried_out(step: Step, blocks: Tensors, kept: Tensors) -> torch.Tensor:
    """The tensor that `step` makes of the blocks and of the tensors that travel as they are."""
    if step.blocks is None:
        return kept[step.tensor]
    return rebuilt(blocks[step.blocks], step.heads, kept.get(f"{step.tensor}_scale"))


def dequantised(blocks: torch.Tensor) -> torch.Tensor:
    """float32 [rows, 32 n] of uint8 [rows, n, Q4_1_BYTES or Q8_0_BYTES]."""
    if blocks.shape[-1] == Q4_1_BYTES:
        pair = blocks[..., :4].contiguous().view(torch.float16).float()
        codes = torch.cat([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], dim=-1)
        return torch.flatten(pair[..., :1] * codes + pair[..., 1:], 1)
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    return torch.flatten(scale * blocks[..., 2:].contiguous().view(torch.int8), 1)


def rebuilt(blocks: torch.Tensor, heads: int, scale: torch.Tensor | None) -> torch.Tensor:
    """The checkpoint's tensor: bfloat16 [rows, 32 n] without a scale, else float8_e4m3fn.

    Args:
        blocks: as `dequantised` takes them.
        heads: see `Step`.
        scale: `weight_scale`, float32 () or [rows].
    """
    weight = dequantised(blocks)
    if heads:  # GGUF interleaves the two rotary halves of a head
        weight = weight.reshape(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    weight = weight.to(torch.bfloat16)
    if scale is None:
        return weight
    # ModelOpt's order: a scale of shape () leaves the quotient in bfloat16, one a row makes it float32.
    quotient = weight / (scale[:, None] if scale.dim() else scale)
    # Rounding in bfloat16 can pass the largest value; what a cast makes of that depends on torch's release.
    return quotient.clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)


# --- where the exports were made ----------------------------------------------------------------


def gguf_blocks(file: Path) -> dict[str, torch.Tensor]:
    """By GGUF name, the tensors that `dequantised` knows: uint8 [rows, blocks, bytes a block]."""
    import gguf

    known = {gguf.GGMLQuantizationType.Q4_1: Q4_1_BYTES, gguf.GGMLQuantizationType.Q8_0: Q8_0_BYTES}
    return {
        tensor.name: torch.tensor(tensor.data).reshape(len(tensor.data), -1, known[tensor.tensor_type])
        for tensor in gguf.GGUFReader(file).tensors
        if tensor.tensor_type in known
    }


def recipe(order: Sequence[str], config: Mapping[str, Any], stored: Tensors, blocks: Tensors) -> list[Step]:
    """A step for each tensor of an export; one that uses blocks was tried, and gives the stored bytes.

    Args:
        order: the tensors' names.
        config: the export's config.json.
        stored: the tensors.
        blocks: as `gguf_blocks` returns them.
    """
    import gguf

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    steps = []
    for tensor in order:
        name = names.get_name(tensor, try_suffixes=(".weight",)) or ""
        tried = Step(tensor, name, heads.get(name.removesuffix(".weight").rpartition(".")[2], 0))
        follows = name in blocks and _same(carried_out(tried, blocks, stored), stored[tensor])
        steps.append(tried if follows else Step(tensor, None, 0))
    return steps


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and torch.equal(memory_bytes(one), memory_bytes(other))
