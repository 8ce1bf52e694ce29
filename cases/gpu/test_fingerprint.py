"""Fingerprints on a GPU: those of a CPU, and faster than a copy to it."""

import time

import pytest
import torch

from loadproof.harness.fingerprint import CHUNK_BYTES, fingerprint

GIB = 1 << 30


@pytest.mark.parametrize("nbytes", [1, 5, CHUNK_BYTES, 200 * CHUNK_BYTES + 7])
def test_is_that_of_a_cpu(nbytes: int) -> None:
    data = torch.randint(256, (nbytes,), dtype=torch.uint8)
    assert fingerprint(data.cuda()) == fingerprint(data)


def test_of_much_memory() -> None:
    data = torch.randint(256, (8 * GIB,), dtype=torch.uint8, device="cuda")
    first = fingerprint(data)
    began = time.perf_counter()
    again = fingerprint(data)
    seconds = time.perf_counter() - began
    print(f"\n8 GiB in {seconds * 1e3:.0f} ms: {8 / seconds:.0f} GiB/s")
    data[-1] ^= 1
    assert again == first != fingerprint(data)
