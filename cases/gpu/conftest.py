"""Without a GPU every test here says so; asked in set-up, since collection must leave CUDA untouched."""

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU on this host")


@pytest.fixture
def _alone() -> None:
    """For a test that looks at the memory of the whole GPU, or at all processes of the host."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("looks at the whole GPU and host: run it without -n, and with nothing beside it")
