"""What an engine hands in of a model is held to its form before evidence is made of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loadproof.harness.testimony import check_observed, take_results

GOOD = {
    "ids": torch.zeros(2, 16, dtype=torch.int64),
    "hidden": torch.zeros(2, 16, 4, 32, dtype=torch.uint8),
    "description": torch.zeros(3, dtype=torch.uint8),
    "logits.0": torch.zeros(2, 5, 8),
}


def taken(tmp_path: Path, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
    save_file(GOOD | changed, tmp_path / "results")
    return take_results(tmp_path / "results")


def test_results_of_a_model_are_taken(tmp_path: Path) -> None:
    assert taken(tmp_path).keys() == GOOD.keys()


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("ids", torch.zeros(2, 16)),
        ("ids", torch.full((2, 16), -1)),
        ("ids", torch.full((2, 16), 2**40)),
        ("ids", torch.zeros(16, dtype=torch.int64)),
        ("hidden", torch.zeros(2, 16, dtype=torch.uint8)),
        ("description", torch.zeros(3, 3, dtype=torch.uint8)),
        ("logits.0", torch.zeros(5)),
        ("logits.x", torch.zeros(2, 5, 8)),
    ],
)
def test_results_of_another_form_are_refused(tmp_path: Path, name: str, result: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"result|token ids"):
        taken(tmp_path, **{name: result})


@pytest.mark.parametrize(
    "observed",
    [{"gemms": {"a": "many"}}, {"gemms": [1]}, {"flags": {"a": 1}}, {"memory_bytes": {"loaded": "much"}}],
)
def test_observations_of_another_form_are_refused(observed: dict[str, object]) -> None:
    check_observed({"gemms": {"a": 1}, "flags": {"a": "b"}, "memory_bytes": {"loaded": 1}}, 1.0)
    with pytest.raises(ValueError, match=r"GenerationRecord|RouteRecord"):
        check_observed(observed, 1.0)
