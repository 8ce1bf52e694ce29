"""Without a GPU every test here says so; asked in set-up, since collection must leave CUDA untouched."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU on this host")
