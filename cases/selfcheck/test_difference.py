"""What evidence keeps of two tensors that differ: true, about the differing elements alone, and bounded."""

import json
from typing import Any

import pytest
import torch

from loadproof.harness.checks.compare import compare
from loadproof.harness.checks.difference import EXAMPLES, GRID_SIDE, WORST_BLOCKS
from loadproof.harness.outcome import Outcome
from loadproof.reports.heatmap import heat_map

E4M3 = torch.float8_e4m3fn


def difference(reference: torch.Tensor, candidate: torch.Tensor) -> dict[str, Any]:
    verdict, found = compare(reference, candidate)
    assert verdict is Outcome.BYTES
    return found


@pytest.mark.parametrize(
    ("dtype", "left", "right", "distance"),
    [
        pytest.param(E4M3, 1.0, 1.125, 1, id="e4m3-neighbours"),
        pytest.param(E4M3, 448.0, -448.0, 252, id="e4m3-ends"),
        pytest.param(E4M3, 0.0, -0.0, 0, id="e4m3-zeros"),
        pytest.param(E4M3, -(2.0**-9), 2.0**-9, 2, id="e4m3-around-zero"),
        pytest.param(torch.bfloat16, 1.0, 1.0078125, 1, id="bf16-neighbours"),
        pytest.param(torch.bfloat16, 1.0, 2.0, 128, id="bf16-octave"),
        pytest.param(torch.float16, -1.0, -1.0009765625, 1, id="fp16-negative"),
        pytest.param(torch.float32, 1.0, 1.0 + 2.0**-23, 1, id="fp32-neighbours"),
        pytest.param(torch.bfloat16, 1.0, float("nan"), None, id="nan-has-no-distance"),
        pytest.param(torch.float64, 1.0, 2.0, None, id="fp64-is-not-measured"),
    ],
)
def test_distance_counts_the_codes_between(
    dtype: torch.dtype, left: float, right: float, distance: int | None
) -> None:
    pair = (torch.tensor([3.0, value]).to(dtype) for value in (left, right))
    found = difference(*pair)
    assert found["worst"]["code_distance"] == distance
    assert found["first_index"] == [1]


def test_figures_are_of_the_differing_elements_alone() -> None:
    reference = torch.tensor([[0.0, 1.0, float("nan")], [float("inf"), 2.0, 5.0]])
    candidate = torch.tensor([[-0.0, 1.0, float("nan")], [float("inf"), float("nan"), 6.0]])
    found = difference(reference, candidate)
    assert (found["differing_elements"], found["elements"]) == (3, 6)
    assert (found["equal_values"], found["nan"], found["inf"]) == (1, [0, 1], [0, 0])
    assert [each["index"] for each in found["examples"]] == [[0, 0], [1, 1], [1, 2]]
    assert found["worst"]["index"] == [1, 2]


def test_one_differing_element_of_many_shows_in_the_grid() -> None:
    reference = torch.zeros(1000, 3000)
    candidate = reference.clone()
    candidate[999, 2999] = 1.0
    grid = difference(reference, candidate)["grid"]
    assert grid["block"] == [16, 47]
    marked = [(r, line) for r, line in enumerate(grid["levels"]) if line.strip("0")]
    assert [r for r, _ in marked] == [999 // 16]
    assert bytes.fromhex(marked[0][1])[2999 // 47] == 1
    assert grid["worst"] == [[992, 2961, 1, 8 * 39]]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (65,), (1, 4096), (4096, 1), (3, 5, 7), (300, 500)])
def test_evidence_is_bounded_and_plain(shape: tuple[int, ...]) -> None:
    found = difference(torch.zeros(shape), torch.ones(shape))
    assert len(json.dumps(found)) < 16_000
    assert len(found["examples"]) <= EXAMPLES
    grid = found["grid"]
    assert len(grid["levels"]) <= GRID_SIDE
    assert {len(line) for line in grid["levels"]} == {len(grid["levels"][0])}
    assert len(grid["levels"][0]) <= 2 * GRID_SIDE
    assert set("".join(grid["levels"])) == {"f"}
    assert len(grid["worst"]) <= WORST_BLOCKS


def test_the_picture_is_the_grid_and_always_the_same() -> None:
    reference = torch.zeros(100, 200)
    candidate = reference.clone()
    candidate[10:20, 100:] = 1.0
    grid = difference(reference, candidate)["grid"]
    first, second = heat_map(grid), heat_map(grid)
    assert first == second
    assert first.uri.startswith("data:image/png;base64,")
    assert len(first.uri) < 6_000
    assert (first.rows, first.columns, first.block) == (100, 200, "2 × 4")
    assert first.worst[0] == ("10–11", "100–103", "8 of 8")
