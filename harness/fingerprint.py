"""128-bit fingerprints of tensors, computed where the tensors lie; equal bytes give equal ones on any device.

They tell whether memory changed, without a copy to the host. Each 32-bit word is multiplied by a weight of
its own place, and the sums are kept modulo 2^64, twice with other weights. The weights are odd, so no change
of a single word leaves a sum as it was; other changes leave both by a chance of 2^-64 at most. That is
enough against accidents, and nothing against an adversary: what identifies a checkpoint is hashed by BLAKE3
and sha256.
"""

import functools

import numpy as np
import torch

from .tensor_bytes import bytes_in_place

CHUNK_WORDS = 1 << 16
CHUNK_BYTES = 4 * CHUNK_WORDS
CHUNKS_AT_ONCE = {"cpu": 1, "cuda": 256}
"""By device: few where memory is short, many where each step is a launch. Each word takes 16 bytes."""
LOW_HALF = 0xFFFFFFFF
MODULUS = 1 << 64
BETWEEN_CHUNKS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Odd factors by which a half moves on from one chunk to the next."""


def fingerprint(tensor: torch.Tensor) -> str:
    """32 hex digits of the tensor's bytes, in the order in which memory holds them."""
    data = bytes_in_place(tensor)
    if data.numel() < CHUNK_BYTES:
        # A model has hundreds of scales: a copy of one takes less than the launches.
        data = data.cpu()
    whole = data.numel() // CHUNK_BYTES * CHUNK_BYTES
    step = CHUNKS_AT_ONCE[data.device.type] * CHUNK_BYTES
    sums = [_sums(data[start : min(start + step, whole)], CHUNK_WORDS) for start in range(0, whole, step)]
    if rest := data.numel() - whole:
        words = -(-rest // 4)
        last = torch.zeros(4 * words, dtype=torch.uint8, device=data.device)
        last[:rest] = data[whole:]
        sums.append(_sums(last, words))
    # The length, since zeros at the end leave no trace.
    halves = [data.numel(), data.numel()]
    for chunk in torch.cat(sums, dim=1).T.tolist() if sums else []:
        pairs = zip(halves, BETWEEN_CHUNKS, chunk, strict=True)
        halves = [(half * factor + found) % MODULUS for half, factor, found in pairs]
    return "".join(f"{half:016x}" for half in halves)


def _sums(data: torch.Tensor, words: int) -> torch.Tensor:
    """Of uint8 in chunks of so many words: int64 [2, chunks], each modulo 2^64."""
    chunks = data.view(torch.int32).view(-1, words).to(torch.int64) & LOW_HALF
    return torch.stack([(chunks * weights[:words]).sum(dim=1) for weights in _weights(data.device)])


@functools.cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two times int64 [CHUNK_WORDS], odd: the numbers that splitmix64 gives for 1, 2, 3, ..."""
    mixed = np.arange(1, 2 * CHUNK_WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd = ((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)).view(np.int64)
    first, second = torch.from_numpy(odd).to(device).view(2, CHUNK_WORDS)
    return first, second
