"""Parts of a plan that different machines run, and how they prove to be the whole. Imports no torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from .chain import digest
from .errors import InvalidInput
from .outcome import Outcome

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"shard {self.index} of {self.count}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`2/4`; raises InvalidInput."""
        found = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", text)
        if found is None or int(found[1]) > int(found[2]):
            remedy = "Number the parts from 1: 1/4, 2/4, 3/4, 4/4."
            raise InvalidInput("shard", expected="i/n with 1 <= i <= n", found=repr(text), remedy=remedy)
        return cls(int(found[1]), int(found[2]))

    def part_of(self, ordered: Sequence[_T]) -> list[_T]:
        """Every n-th; neighbours, which cost about the same, go to different shards."""
        return list(ordered[self.index - 1 :: self.count])


def reunited(parts: Sequence[Sequence[_T]]) -> list[_T]:
    """The order that `Shard.part_of` took apart; `parts` in the order of their indexes."""
    missing = object()
    rounds = zip_longest(*parts, fillvalue=missing)
    return [one for together in rounds for one in together if one is not missing]  # type: ignore[misc]


def plan_digest(scope: str, cases: Mapping[str, Outcome]) -> str:
    """Identity of a whole plan: its scope, and its cases with what they expect, in order."""
    return digest([scope, [[case_id, expected.value] for case_id, expected in cases.items()]])
