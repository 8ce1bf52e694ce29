"""Fingerprints of tensors: by position, by every bit, and the same as plain integers give."""

import pytest
import torch

from loadproof.harness import fingerprint as module
from loadproof.harness.fingerprint import BETWEEN_CHUNKS, CHUNK_BYTES, CHUNK_WORDS, MODULUS, fingerprint

SIZES = [1, 3, 4, 512, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 5, 3 * CHUNK_BYTES]


def drawn(nbytes: int) -> torch.Tensor:
    return torch.randint(256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(nbytes))


def splitmix64(index: int) -> int:
    mixed = index * 0x9E3779B97F4A7C15 % MODULUS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % MODULUS
    return mixed ^ mixed >> 31


def by_integers(data: bytes) -> str:
    halves = []
    for half, factor in enumerate(BETWEEN_CHUNKS):
        value = len(data)
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            words = [int.from_bytes(chunk[i : i + 4], "little") for i in range(0, len(chunk), 4)]
            weights = (splitmix64(1 + half * CHUNK_WORDS + i) | 1 for i in range(len(words)))
            value = (value * factor + sum(w * x for w, x in zip(weights, words, strict=True))) % MODULUS
        halves.append(f"{value:016x}")
    return "".join(halves)


@pytest.mark.parametrize("nbytes", SIZES)
def test_is_what_plain_integers_give(nbytes: int) -> None:
    data = drawn(nbytes)
    assert fingerprint(data) == by_integers(bytes(data.tolist()))


def test_of_nothing() -> None:
    assert fingerprint(torch.empty(0)) == "0" * 32


@pytest.mark.parametrize("nbytes", SIZES)
def test_every_place_and_bit_counts(nbytes: int) -> None:
    data = drawn(nbytes)
    places = {0, 1, nbytes // 2, nbytes - 1} & set(range(nbytes))
    found = {fingerprint(data)}
    for place in places:
        for bit in range(8):
            changed = data.clone()
            changed[place] ^= 1 << bit
            found.add(fingerprint(changed))
    assert len(found) == 1 + 8 * len(places)


def test_order_counts_within_a_chunk_and_between_chunks() -> None:
    data = drawn(3 * CHUNK_BYTES)
    a, b, c = data.split(CHUNK_BYTES)
    swapped = data.clone()
    swapped[:4], swapped[4:8] = data[4:8].clone(), data[:4].clone()
    assert len({fingerprint(torch.cat(parts)) for parts in ((a, b, c), (b, a, c), (a, c, b), (c, b, a))}) == 4
    assert fingerprint(swapped) != fingerprint(data)


def test_zeros_at_the_end_count() -> None:
    zeros = [fingerprint(torch.zeros(n, dtype=torch.uint8)) for n in (1, 2, 4, CHUNK_BYTES, 2 * CHUNK_BYTES)]
    assert len(set(zeros)) == len(zeros)


def test_is_of_the_bytes_in_memory_order() -> None:
    weight = torch.arange(48 * 32, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(32, 48)
    assert fingerprint(weight.t()) == fingerprint(weight)
    assert fingerprint(weight.t().contiguous()) != fingerprint(weight)
    assert fingerprint(torch.tensor(0.0)) != fingerprint(torch.tensor(-0.0))


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    data = drawn(3 * CHUNK_BYTES)
    whole = fingerprint(data)
    monkeypatch.setattr(module, "CHUNKS_AT_ONCE", {"cpu": 1})
    assert fingerprint(data) == whole
