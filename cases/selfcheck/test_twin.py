"""The twin for layer authors: the documented example, and mutants of its layer, each caught by name."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.harness.outcome import Outcome
from loadproof.harness.twin import REMEDIES, TwinFailure, TwinProof, prove_twin, rebind

ROOT = Path(__file__).resolve().parents[2]
Tensors = Mapping[str, torch.Tensor]


def documented_example() -> str:
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "twin.md").read_text(), re.M | re.S)
    return str(example)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(documented_example(), "docs/twin.md", "exec"), names)
    return names


ALONE = """
import importlib.abc, sys
ALLOWED = {"loadproof", "loadproof.harness", "loadproof.harness.twin"}
FOREIGN = {"pytest", "pydantic", "safetensors", "hypothesis", "blake3", "typer"}
class Gate(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("loadproof") and name not in ALLOWED or name.partition(".")[0] in FOREIGN:
            raise ImportError(f"the helper imports {name}")
sys.meta_path.insert(0, Gate())
names = {}
exec(compile(sys.stdin.read(), "docs/twin.md", "exec"), names)
tests = [value for name, value in names.items() if name.startswith("test_")]
for test in tests:
    test()
print(len(tests), sorted(name for name in sys.modules if name.startswith("loadproof")))
"""


def test_documented_example_passes_with_torch_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], input=documented_example(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 ['loadproof', 'loadproof.harness', 'loadproof.harness.twin']\n"


def prove(layer: type, **replaced: Any) -> TwinProof:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(83, 64, generator=generator).to(torch.float8_e4m3fn)
    asked = {
        "make": lambda: layer(83, 64),
        "load": lambda made: made.load_state_dict({"weight": weight}),
        "process": lambda made: made.process_weights_after_loading(),
        "attach": lambda made, tensors: made.restore(tensors),
        "apply": lambda made, x: made(x),
        "inputs": [torch.randn(m, 64, generator=generator).to(torch.bfloat16) for m in (0, 1, 17)],
    }
    return prove_twin(**(asked | replaced))


def test_twin_says_what_it_compared_and_that_it_is_an_alias(example: dict[str, Any]) -> None:
    proof = prove(example["PaddedLinear"])
    outputs, weight = (1 + 17) * 83 * 2, 96 * 64
    assert proof == TwinProof(
        transport="alias",
        tensors=("weight",),
        compared={
            "processing_repeatable": weight,
            "layout_restored": 2 + 2 * 3,
            "pointers_shared": 2 + 2 * 3,
            "contents_preserved": (2 + 3 * 3) * weight,
            "outputs_repeatable": outputs,
            "outputs_exact": 3 * outputs,
        },
    )


def edited(edit: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.nn.Module, Tensors], None]:
    """An attach that changes the weight that it was given."""

    def attach(layer: torch.nn.Module, tensors: Tensors) -> None:
        weight = torch.nn.Parameter(edit(tensors["weight"].detach()), requires_grad=False)
        layer.restore(dict(tensors) | {"weight": weight})

    return attach


def processed_again(layer: torch.nn.Module, tensors: Tensors) -> None:
    layer.restore(tensors)
    layer.process_weights_after_loading()


def padded_width_for_logical(layer: torch.nn.Module, tensors: Tensors) -> None:
    layer.restore(tensors)
    layer.logical_width = tensors["weight"].shape[1]


def stored_into(layer: torch.nn.Module, tensors: Tensors) -> None:
    layer.restore(tensors)
    layer.weight[0, 0] = 1.0 if layer.weight[0, 0] != 1.0 else 2.0


def ignored(layer: torch.nn.Module, tensors: Tensors) -> None:
    layer.logical_width = layer.weight.shape[0]


def one_more(layer: torch.nn.Module, tensors: Tensors) -> None:
    layer.restore(tensors)
    layer.register_buffer("input_scale", torch.ones(()))


ATTACHED_WRONGLY = {
    "copied": (edited(lambda w: w.t().clone().t()), "pointers_shared", "NOT_SHARED", "weight"),
    "transposed again": (edited(lambda w: w.t()), "layout_restored", "LAYOUT", "weight"),
    "made contiguous": (edited(lambda w: w.contiguous()), "layout_restored", "LAYOUT", "weight"),
    "padding cut off": (edited(lambda w: w[:, :83]), "layout_restored", "LAYOUT", "weight"),
    "another dtype": (edited(lambda w: w.view(torch.uint8)), "layout_restored", "LAYOUT", "weight"),
    "processed again": (processed_again, "layout_restored", "LAYOUT", "weight"),
    "not attached": (ignored, "layout_restored", "LAYOUT", "weight"),
    "a tensor more": (one_more, "layout_restored", "LAYOUT", "input_scale"),
    "stored into": (stored_into, "contents_preserved", "MUTATED", "weight"),
    "attribute forgotten": (rebind, "outputs_exact", "CRASHED", "logical_width"),
    "attribute wrong": (padded_width_for_logical, "outputs_exact", "SHAPE", "[0, 83]"),
}


@pytest.mark.parametrize("mutant", ATTACHED_WRONGLY)
def test_wrong_attachment_is_caught_by_its_own_check(example: dict[str, Any], mutant: str) -> None:
    attach, check, verdict, named = ATTACHED_WRONGLY[mutant]
    with pytest.raises(TwinFailure, match="attached layer 1") as caught:
        prove(example["PaddedLinear"], attach=attach)
    assert (caught.value.check, caught.value.verdict) == (check, verdict), caught.value
    assert named in str(caught.value)
    assert str(caught.value).endswith(REMEDIES[check])


def mutants_of(layer: type) -> dict[str, type]:
    """The example's layer, wrong in itself."""

    class WritesWhenItRuns(layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.view(torch.uint8)[0, 0] ^= 1
            return super().forward(x)

    class RebindsWhenItRuns(layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight = torch.nn.Parameter(self.weight.t().clone().t(), requires_grad=False)
            return super().forward(x)

    class NeverTheSame(layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.rand(())

    class ProcessesAtRandom(layer):
        def process_weights_after_loading(self) -> None:
            super().process_weights_after_loading()
            self.weight.view(torch.uint8)[0] ^= torch.randint(1, 256, (96,), dtype=torch.uint8)

    class FlagOnTheTensor(layer):
        def process_weights_after_loading(self) -> None:
            super().process_weights_after_loading()
            self.weight.negated = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(-x if getattr(self.weight, "negated", False) else x)

    class OtherDtypeWhenAttached(layer):
        def restore(self, tensors: Tensors) -> None:
            super().restore(tensors)
            self.attached = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.half() if hasattr(self, "attached") else x)

    class PaddedRowsWhenAttached(layer):
        def restore(self, tensors: Tensors) -> None:
            super().restore(tensors)
            self.attached = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return torch.nn.functional.pad(out, (0, 13))[:, :83] if hasattr(self, "attached") else out

    class AttachedAndOneBufferForAllOutputs(layer):
        shared = torch.empty(17, 83, dtype=torch.bfloat16)

        def restore(self, tensors: Tensors) -> None:
            super().restore(tensors)
            self.off_by = 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.shared[: len(x)]
            return out.copy_(super().forward(x) + getattr(self, "off_by", 0))

    class NegativeZeroWhenAttached(layer):
        def restore(self, tensors: Tensors) -> None:
            super().restore(tensors)
            self.zero = -0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full_like(super().forward(x), getattr(self, "zero", 0.0))

    return {each.__name__: each for each in locals().values() if isinstance(each, type) and each is not layer}


WRONG_IN_ITSELF = {
    "WritesWhenItRuns": ("contents_preserved", "MUTATED", "daemon layer, after input 0 [0, 64], weight"),
    "RebindsWhenItRuns": ("pointers_shared", "NOT_SHARED", "attached layer 1, after input 0 [0, 64], weight"),
    "NeverTheSame": ("outputs_repeatable", "BYTES", "ordinary layer, input 1 [1, 64], again"),
    "ProcessesAtRandom": ("processing_repeatable", "PROCESSED", "ordinary layer, weight"),
    "FlagOnTheTensor": ("outputs_exact", "BYTES", "attached layer 1, input 1 [1, 64]"),
    "OtherDtypeWhenAttached": ("outputs_exact", "DTYPE", "attached layer 1, input 0 [0, 64]"),
    "PaddedRowsWhenAttached": ("outputs_exact", "LAYOUT", "attached layer 1, input 2 [17, 64]"),
    "AttachedAndOneBufferForAllOutputs": ("outputs_exact", "BYTES", "attached layer 1, input 1 [1, 64]"),
    "NegativeZeroWhenAttached": ("outputs_exact", "BYTES", "attached layer 1, input 1 [1, 64]"),
}


def test_every_mutant_is_listed_here(example: dict[str, Any]) -> None:
    assert mutants_of(example["PaddedLinear"]).keys() == WRONG_IN_ITSELF.keys()


@pytest.mark.parametrize("mutant", WRONG_IN_ITSELF)
def test_wrong_layer_is_caught_by_its_own_check(example: dict[str, Any], mutant: str) -> None:
    check, verdict, where = WRONG_IN_ITSELF[mutant]
    with pytest.raises(TwinFailure) as caught:
        prove(mutants_of(example["PaddedLinear"])[mutant])
    assert (caught.value.check, caught.value.verdict) == (check, verdict), caught.value
    assert f" {where}: expected" in str(caught.value)


def test_weights_of_the_checkpoint_itself_are_no_memory_of_the_daemon(example: dict[str, Any]) -> None:
    one = torch.nn.Parameter(torch.zeros(83, 64), requires_grad=False)
    keep = {
        "load": lambda layer: setattr(layer, "weight", one),
        "process": lambda layer: setattr(layer, "logical_width", 83),
    }
    with pytest.raises(TwinFailure, match="processing_repeatable: NOT_SHARED") as caught:
        prove(example["PaddedLinear"], **keep)
    assert "Let load copy" in str(caught.value)


def test_layer_may_overwrite_its_input(example: dict[str, Any]) -> None:
    class UsesItsInputUp(example["PaddedLinear"]):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            x.zero_()
            return out

    x = torch.ones(2, 64, dtype=torch.bfloat16)
    prove(UsesItsInputUp, inputs=[x])
    assert torch.equal(x, torch.ones_like(x))


NOTHING = {"load": lambda layer: None, "process": lambda layer: None, "attach": rebind}


def test_layer_without_a_tensor_shows_nothing() -> None:
    with pytest.raises(TwinFailure, match="INCOMPLETE"):
        prove_twin(make=torch.nn.Identity, apply=lambda layer, x: layer(x), inputs=[torch.ones(2)], **NOTHING)


def test_layer_whose_tensors_are_empty_shares_nothing() -> None:
    def make() -> torch.nn.Module:
        layer = torch.nn.Identity()
        layer.register_buffer("weight", torch.empty(0, 4))
        return layer

    with pytest.raises(TwinFailure, match="INCOMPLETE"):
        prove_twin(make=make, apply=lambda layer, x: x, inputs=[torch.ones(2)], **NOTHING)


@pytest.mark.parametrize("inputs", [[], [torch.zeros(0, 64, dtype=torch.bfloat16)]], ids=["none", "empty"])
def test_outputs_without_elements_show_nothing(example: dict[str, Any], inputs: list[torch.Tensor]) -> None:
    with pytest.raises(TwinFailure, match="outputs_repeatable: INCOMPLETE"):
        prove(example["PaddedLinear"], inputs=inputs)


def test_verdicts_are_words_of_the_reports() -> None:
    listed = {row[2] for row in (*ATTACHED_WRONGLY.values(),)} | {row[1] for row in WRONG_IN_ITSELF.values()}
    assert listed | {"INCOMPLETE"} <= {outcome.value for outcome in Outcome}


class Processed(torch.nn.Module):
    """Processing turns a parameter into None, adds a parameter and a buffer, in a submodule too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, bias=False).double()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.fused = None
        self.register_buffer("table", torch.zeros(3), persistent=False)

    def process(self) -> None:
        self.inner.weight.mul_(2)
        self.inner.weight = torch.nn.Parameter(self.inner.weight.t(), requires_grad=False)
        self.fused = torch.nn.Parameter(self.scale.detach() * 2, requires_grad=False)
        self.inner.register_buffer("workspace", torch.ones(5))
        self.table = torch.ones(3)
        self.scale = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.inner.weight * self.fused + self.table.sum() + self.inner.workspace.sum()


def test_rebinding_takes_over_what_processing_added_removed_and_replaced() -> None:
    torch.manual_seed(1)
    state = Processed().state_dict()
    made: list[Processed] = []

    def make() -> Processed:
        made.append(Processed())
        return made[-1]

    proof = prove_twin(
        make=make,
        load=lambda layer: layer.load_state_dict(state),
        process=Processed.process,
        apply=Processed.forward,
        inputs=[torch.rand(3, 4).double()],
    )
    assert set(proof.tensors) == {"fused", "table", "inner.weight", "inner.workspace"}
    ordinary, attached = made[1], made[2]
    assert attached.scale is None
    assert attached.state_dict().keys() == ordinary.state_dict().keys()
    assert dict(attached.named_parameters()).keys() == dict(ordinary.named_parameters()).keys()


class Tied(torch.nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 4, bias=False).double()
        self.head = torch.nn.Linear(4, 4, bias=False).double()
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


def test_tied_weight_is_shared_under_each_of_its_names() -> None:
    torch.manual_seed(1)
    state = Tied().state_dict()
    proof = prove_twin(
        make=Tied,
        load=lambda layer: layer.load_state_dict(state),
        process=lambda layer: None,
        apply=Tied.forward,
        inputs=[torch.rand(3, 4).double()],
    )
    assert proof.tensors == ("embed.weight", "head.weight")
