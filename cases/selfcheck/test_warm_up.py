"""What is loaded onto a GPU ahead of a model's job must be what the model then launches.

Told by the operators of torch that are dispatched, which are the same on a CPU.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loadproof.harness import forkserver
from loadproof.harness.engine import describe, digests
from loadproof.harness.kernels.protocol import Kernel
from loadproof.harness.loaders import load_from_disk
from loadproof.harness.model_spec import SyntheticModel
from loadproof.harness.models import ARCHITECTURES
from loadproof.harness.models.contents import read_contents
from loadproof.harness.models.synthetic import write_model
from loadproof.harness.models.work import ModelWork, warm_up
from loadproof.harness.spec import Scheme


class Dispatched(TorchDispatchMode):
    """Names of the operators that run meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **kwargs or {})


class NoKernel:
    """Computes nothing, so that no operator here is a kernel's."""

    launched = ()

    def scaled_mm(self, a: torch.Tensor, b: torch.Tensor, *rest: Any) -> torch.Tensor:
        return torch.zeros(a.shape[0], b.shape[1], dtype=rest[-1])


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_runs_no_operator_that_was_not_warmed(
    tmp_path: Path, architecture: str, scheme: Scheme
) -> None:
    write_model(tmp_path, SyntheticModel(architecture=architecture, seed=3, intermediate=64), scheme)
    contents = read_contents(tmp_path)
    loaded = load_from_disk(tmp_path, contents.layers, plain=contents.plain)
    kernel: Kernel = NoKernel()  # type: ignore[assignment]
    with Dispatched() as warmed:
        warm_up("cpu")
    with Dispatched() as used:
        describe(loaded)
        work = ModelWork(tmp_path, loaded, kernel, torch.ones(2, 5, dtype=torch.int64), 3, "cpu")
        work.run()
        digests(work.tensors())
    assert len(used.names) > 30
    assert used.names - warmed.names == set()


@pytest.mark.parametrize("transformers", [False, True])
def test_only_what_builds_a_model_is_warmed_and_a_failure_is_the_engine_s(
    monkeypatch: pytest.MonkeyPatch, transformers: bool
) -> None:
    warmed: list[str] = []

    def fails(device: str) -> None:
        warmed.append(device)
        raise OSError("no such library")

    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr("importlib.import_module", lambda _: SimpleNamespace(warm_up=fails))
    forkserver.start_device("cuda", transformers)
    forkserver.start_device("cpu", transformers)
    assert warmed == ["cuda"] * transformers
