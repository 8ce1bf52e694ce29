"""The header parser against safetensors' own, on mutated files.

A file on which the two differ in a way that `STRICTER` does not list ends the run. The failure names a line
of JSON in the test's own folder, and the command that appends it to `corpus/header/finds.jsonl`, from where
every later run replays it first. Do that before mending the parser, and name the fault in the line's `what`.
"""

import base64
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors import SafetensorError, deserialize, safe_open

from loadproof.cases.selfcheck.header_mutations import OF_BYTES, OF_MODELS, mutation
from loadproof.harness.checkpoint import header, strict_json
from loadproof.harness.checkpoint.header import Header, read_header
from loadproof.harness.errors import MalformedCheckpoint

MUTATIONS = 10_000
SEED = 20_250
FINDS = Path(__file__).resolve().parent / "corpus" / "header" / "finds.jsonl"
STRICTER = {
    "duplicate key": r"found duplicate key ",
    "white space before the {": r"expected a header that begins with '\{', found b'( |\\[nrt])'",
    "unknown field": r"expected an object of dtype, shape and data_offsets, found \{",
    "tensor written as a list": r"expected an object of dtype, shape and data_offsets, found \[",
    "dtype written as an object": r"expected a dtype of .*, found \{",
    "metadata that is null": r"expected an object of strings, found None",
    "size above 2**63 - 1 beside a size of 0": r"expected shape: a list of integers from 0 to 2\*\*63 - 1",
    "sizes that overflow beside a size of 0": r"expected a shape of fewer than 2\*\*63 bits",
}
"""What safetensors accepts and the parser refuses, on purpose: name to a pattern of the refusal."""


class Parsers:
    """Both parsers on bytes; the file is one in memory, written anew each time."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("header")

    def ours(self, data: bytes) -> Header | MalformedCheckpoint:
        """What `read_header` makes of it; anything that it raises untyped is raised here too."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, data, 0)
        try:
            return read_header(self.fd, Path("mutated"))
        except MalformedCheckpoint as error:
            return error

    def theirs(self, data: bytes) -> dict[str, dict[str, Any]] | None:
        """Name to dtype, shape and bytes as safetensors reads them; None where it refuses."""
        try:
            return dict(deserialize(data))
        except SafetensorError:
            return None

    def their_metadata(self) -> dict[str, str]:
        """Of the file that `ours` was given last."""
        with safe_open(f"/proc/self/fd/{self.fd}", "np") as opened:
            return opened.metadata() or {}

    def verdict(self, data: bytes) -> str:
        """`accepted`, `refused`, or a name in STRICTER; raises AssertionError on any other difference."""
        ours, theirs = self.ours(data), self.theirs(data)
        if isinstance(ours, MalformedCheckpoint):
            return "refused" if theirs is None else _strictness(ours)
        assert theirs is not None, "accepted, but safetensors refuses it"
        read = {
            name: {"dtype": e.dtype, "shape": list(e.shape), "data": data[e.start : e.stop]}
            for name, e in ours.entries.items()
        }
        assert read == theirs, "read otherwise than safetensors does"
        assert ours.metadata == self.their_metadata(), "metadata read otherwise than safetensors does"
        return "accepted"


def _strictness(error: MalformedCheckpoint) -> str:
    names = [name for name, pattern in STRICTER.items() if re.search(pattern, str(error))]
    assert len(names) == 1, f"refused for a reason that STRICTER lists {len(names)} times: {error}"
    return names[0]


@pytest.fixture
def parsers() -> Iterator[Parsers]:
    """Both parsers; the file goes with the test."""
    both = Parsers()
    yield both
    os.close(both.fd)


def corpus() -> list[dict[str, str]]:
    """The finds: `what` each is, its `verdict`, and its `bytes` in base64."""
    return [json.loads(line) for line in FINDS.read_text().splitlines()]


def fuzz(parsers: Parsers, mutations: int, folder: Path) -> Counter[str]:
    """Count the verdicts; raises AssertionError at the first difference, which is left in `folder`."""
    random, verdicts = Random(SEED), Counter[str]()
    for _ in range(mutations):
        data, done = mutation(random)
        try:
            verdicts[parsers.verdict(data)] += 1
        except Exception as error:
            find = {"what": done, "verdict": "refused", "bytes": base64.b64encode(data).decode()}
            file = folder / "find.jsonl"
            file.write_text(json.dumps(find) + "\n")
            raise AssertionError(f"{error!r}\n{data!r}\nTo keep it: cat {file} >> {FINDS}") from error
    return verdicts


def test_every_find_is_read_as_it_should_be(parsers: Parsers) -> None:
    finds = corpus()
    assert len({find["bytes"] for find in finds}) == len(finds)
    for find in finds:
        assert parsers.verdict(base64.b64decode(find["bytes"])) == find["verdict"], find["what"]
    assert {find["verdict"] for find in finds} == {"accepted", "refused", *STRICTER}


def test_mutated_files_are_read_as_safetensors_reads_them(parsers: Parsers, tmp_path: Path) -> None:
    verdicts = fuzz(parsers, MUTATIONS, tmp_path)
    # Each listed difference is met, so that none outlives its reason.
    assert set(verdicts) == {"accepted", "refused", *STRICTER}
    assert verdicts["accepted"] > MUTATIONS // 10
    assert verdicts["refused"] > MUTATIONS // 2


def test_every_mutation_is_made() -> None:
    random = Random(SEED)
    made = {name for _ in range(MUTATIONS) for name in mutation(random)[1].split()}
    assert made == {change.__name__ for change in (*OF_MODELS, *OF_BYTES)}


def _later_key_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pairs)


WEAKENED: dict[str, tuple[object, str, object]] = {
    "gaps and overlaps": (header, "_require_gapless", lambda *_: None),
    "sizes not compared": (header, "_bits_of", lambda shape, dtype, where: 0),
    "any integer": (header, "_integers", lambda value, where, field: tuple(int(n) for n in value)),
    "floats for integers": (strict_json, "_integer", float),
    "minus zero": (strict_json, "_integer", int),
    "duplicate keys": (strict_json, "_unique", _later_key_wins),
    "width of one dtype": (header, "BITS", header.BITS | {"F8_E8M0": 4}),
    "dtypes in lower case": (header, "BITS", header.BITS | {k.lower(): v for k, v in header.BITS.items()}),
    "a dtype too few": (header, "BITS", {k: v for k, v in header.BITS.items() if k != "F4"}),
    "any metadata": (header, "_metadata", lambda value, file: value),
}


@pytest.mark.parametrize("name", WEAKENED)
def test_a_weakened_parser_is_found_out(
    name: str, parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*WEAKENED[name])
    with pytest.raises(AssertionError, match="To keep it: cat "):
        fuzz(parsers, MUTATIONS, tmp_path)
    (line,) = (tmp_path / "find.jsonl").read_text().splitlines()
    assert set(json.loads(line)) == {"what", "verdict", "bytes"}
