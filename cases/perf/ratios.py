"""Two sides of one ratio, measured in one process in ABBA order."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Sample = TypeVar("Sample")
RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of medians, with 95 % bootstrapped; nothing holds unless the whole interval does."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} (95 %: {self.low:.2f} to {self.high:.2f})"


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """The samples' ratio; neither side may be empty."""
    random = Random(0)
    drawn = sorted(
        statistics.median(random.choices(numerator, k=len(numerator)))
        / statistics.median(random.choices(denominator, k=len(denominator)))
        for _ in range(RESAMPLES)
    )
    edge = RESAMPLES // 40
    whole = statistics.median(numerator) / statistics.median(denominator)
    return Ratio(whole, drawn[edge], drawn[-edge - 1])


def abba(
    first: Callable[[], Sample], second: Callable[[], Sample], rounds: int
) -> tuple[list[Sample], list[Sample]]:
    """Samples of two measurements, each `2 * rounds`, so that a drift falls on both alike."""
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(rounds):
        for side, measure in ((0, first), (1, second), (1, second), (0, first)):
            samples[side].append(measure())
    return samples
