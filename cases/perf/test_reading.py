"""What a digested load costs beside safetensors' own load: `pytest cases/perf/test_reading.py -s`.

Both read the same 1 GiB from a warm page cache into memory of their own, in one process, in ABBA order. A run
is void, and skipped as such, where the machine changes under it, or has no second core to spare: hashing
overlaps with reading only there.
"""

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file

from loadproof.cases.perf.ratios import ratio
from loadproof.cases.selfcheck.reading import read_digested
from loadproof.harness.checkpoint.digest import CHUNK, content_digest
from loadproof.harness.checkpoint.reader import CheckpointReader

REPEATS = 8
"""Rounds of ABBA: twice as many samples of either side."""
MIB = 1 << 20
TENSORS = {"embedding": 256 * MIB, **{f"layer.{i}": 64 * MIB for i in range(11)}, "head": 64 * MIB}
GOAL = 1.3
"""Our median time over theirs, with the whole interval below."""
DRIFT = 0.1
"""By which the probe's medians of the first and the second half may differ; beyond, a run says nothing."""
CROWDED = 1.2
"""Time of two hashes at once over the time of one; 2 where there is but one core."""
WEIGHTS = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """1 GiB of random bytes, in the page cache since it was just written."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
        for name, size in TENSORS.items()
    }
    save_file(tensors, tmp_path / WEIGHTS)
    return tmp_path


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call; what it returns is freed outside of them."""
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    del result
    return seconds


@pytest.mark.timeout(600)
def test_a_digested_load_beside_safetensors(
    checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    buffer = bytearray(CHUNK)

    def ours() -> object:
        with CheckpointReader(checkpoint) as reader:
            return read_digested(reader, reader.names)

    def theirs() -> object:
        return {name: tensor.clone() for name, tensor in load_file(checkpoint / WEIGHTS).items()}

    def probe() -> None:
        with (checkpoint / WEIGHTS).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def one() -> None:
        blake3(hashed)

    def two() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(blake3, (hashed, hashed)))

    hashed = bytes(256 * MIB)
    loaded, digest = ours()
    expected = theirs()
    assert digest == content_digest(checkpoint)
    assert all(torch.equal(loaded[name], expected[name]) for name in TENSORS)
    del loaded, expected
    sides = (ours, theirs, theirs, ours, probe, one, two)
    seconds: dict[str, list[float]] = {side.__name__: [] for side in sides}
    for _ in range(REPEATS):
        for side in sides:
            seconds[side.__name__].append(timed(side))
    found = ratio(seconds["ours"], seconds["theirs"])
    halves = seconds["probe"][: REPEATS // 2], seconds["probe"][REPEATS // 2 :]
    drift = abs(statistics.median(halves[0]) / statistics.median(halves[1]) - 1)
    crowded = statistics.median(seconds["two"]) / statistics.median(seconds["one"])
    figures = {
        "ratio": round(found.median, 3),
        "interval": [round(found.low, 3), round(found.high, 3)],
        **{f"{side}_s": round(statistics.median(values), 3) for side, values in seconds.items()},
        "probe_drift": round(drift, 3),
        "crowded": round(crowded, 3),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "samples": {side: [round(value, 4) for value in values] for side, values in seconds.items()},
    }
    print(figures)
    for name, value in figures.items():
        record_property(name, value)
    if drift > DRIFT or crowded > CROWDED:
        pytest.skip(f"void: drift {drift:.0%}, two hashes {crowded:.2f} times one (ratio {found})")
    assert found.high <= GOAL, f"ratio {found}"
