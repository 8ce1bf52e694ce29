"""Greedy generation with a record of what it computed on the way."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers
from torch import nn

from ..tensor_bytes import sha256


@torch.inference_mode()
def generate(
    model: transformers.PreTrainedModel, prompts: torch.Tensor, new_tokens: int, watched: list[str]
) -> dict[str, torch.Tensor]:
    """Prefill, then one token a step; the end-of-text token is a token like any other.

    Args:
        model: in evaluation mode.
        prompts: int64 [P, L], on the CPU; one batch, without padding.
        new_tokens: to generate after each prompt.
        watched: `points`.

    Returns:
        On the CPU: `ids` int64 [P, new_tokens]; for each step `logits.<step>` [P, tokens, vocabulary] in the
        model's dtype, step 0 being the prefill; `hidden` uint8 [P, new_tokens, points, 32], the sha256 of
        each prompt's hidden states.
    """
    cache_name = _cache_name(model)
    results: dict[str, torch.Tensor] = {}
    ids: list[torch.Tensor] = []
    hidden: list[list[list[bytes]]] = []
    tokens, cache = prompts, None
    for step in range(new_tokens):
        with _digested(model, watched) as digests:
            out = model(input_ids=tokens.to(model.device), use_cache=True, **{cache_name: cache})
        cache = getattr(out, cache_name)
        logits = results[f"logits.{step}"] = out.logits.cpu()
        # On the CPU, where the first of equal logits wins.
        tokens = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids.append(tokens)
        hidden.append([digests[point] for point in watched])
    by_step = torch.frombuffer(
        bytearray(b"".join(d for s in hidden for p in s for d in p)), dtype=torch.uint8
    )
    shape = (new_tokens, len(watched), prompts.shape[0], 32)
    results["hidden"] = by_step.reshape(shape).permute(2, 0, 1, 3).contiguous()
    results["ids"] = torch.cat(ids, dim=1)
    return results


@contextmanager
def _digested(model: nn.Module, watched: list[str]) -> Iterator[dict[str, list[bytes]]]:
    """Point to the digest of each prompt's output there, for what runs meanwhile."""
    digests: dict[str, list[bytes]] = {}

    def note(point: str, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        states = output[0] if isinstance(output, tuple) else output
        # To the host as one: each copy waits for the device.
        digests[point] = [bytes.fromhex(sha256(each)) for each in states.cpu()]

    hooks = [
        model.get_submodule(point).register_forward_hook(
            lambda module, inputs, output, point=point: note(point, output)
        )
        for point in watched
    ]
    try:
        yield digests
    finally:
        for hook in hooks:
            hook.remove()


def _cache_name(model: nn.Module) -> str:
    # transformers 5.24 renames it, in arguments and outputs alike.
    named = inspect.signature(model.forward).parameters
    return "cache" if "cache" in named else "past_key_values"
