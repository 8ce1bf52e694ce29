"""The in-process twin: is a layer that is handed processed tensors byte for byte the layer that made them?

For the tests of a quantised linear layer, in any project: this file imports torch alone. A daemon layer
and two attached layers share storage within one process, which costs milliseconds. It shows that the layer
can live on tensors that another has processed; it says nothing of IPC.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Layer = TypeVar("Layer", bound=torch.nn.Module)

TRANSPORT = "alias"
REMEDIES = {
    "processing_repeatable": "Let load copy the checkpoint's tensors, and processing depend on them alone.",
    "layout_restored": "Let attach leave exactly the tensors that processing leaves, strides included.",
    "pointers_shared": "Let attach take the tensors as they are: neither copied, converted nor processed.",
    "contents_preserved": "Let neither attaching nor running write to a processed tensor.",
    "outputs_repeatable": "Make the kernel deterministic; until then, outputs cannot speak of a cache.",
    "outputs_exact": "Let attach restore what processing sets beside tensors, such as the logical width.",
}
"""Check to what to do where it fails."""


class TwinFailure(AssertionError):
    """A check of the twin does not hold; names the layer, the tensor or input, and what to do."""

    def __init__(self, check: str, verdict: str, where: str, *, expected: object, found: object) -> None:
        self.check = check
        """A key of REMEDIES."""
        self.verdict = verdict
        """One word, as in loadproof's reports: LAYOUT, NOT_SHARED, MUTATED, SHAPE, DTYPE, BYTES, …"""
        super().__init__(
            f"{check}: {verdict}: {where}: expected {expected}, found {found}. {REMEDIES[check]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinProof:
    """All checks hold."""

    compared: dict[str, int]
    """Check to what it compared, never 0: tensors for layout_restored and pointers_shared, else bytes."""
    tensors: tuple[str, ...]
    """Names of the processed tensors that were shared."""
    transport: str = TRANSPORT
    """How: as other names for the same storage in one process. No claim about IPC."""


def rebind(layer: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make these the layer's parameters and buffers, without a copy; what it had besides becomes None.

    Args:
        layer: as made, neither loaded nor processed.
        tensors: by dotted name; a `torch.nn.Parameter` becomes a parameter, any other tensor a buffer.
    """
    for stale in _tensors(layer).keys() - tensors.keys():
        owner, name = _owner(layer, stale)
        setattr(owner, name, None)
    for dotted, tensor in tensors.items():
        owner, name = _owner(layer, dotted)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if name in (owner._parameters if is_parameter else owner._buffers):
            # Assignment keeps a buffer as persistent as it was made.
            setattr(owner, name, tensor)
            continue
        if hasattr(owner, name):
            delattr(owner, name)
        if isinstance(tensor, torch.nn.Parameter):
            owner.register_parameter(name, tensor)
        else:
            owner.register_buffer(name, tensor)


def prove_twin(
    *,
    make: Callable[[], Layer],
    load: Callable[[Layer], object],
    process: Callable[[Layer], object],
    apply: Callable[[Layer, torch.Tensor], torch.Tensor],
    inputs: Sequence[torch.Tensor],
    attach: Callable[[Layer, Mapping[str, torch.Tensor]], object] = rebind,
) -> TwinProof:
    """Prove that two layers attached to a processed one compute what an ordinarily loaded one computes.

    The daemon layer and the ordinary layer are each made, loaded and processed. The attached layers are
    made only, and handed the daemon layer's tensors: the same storage, as new tensor objects.

    Args:
        make: a new layer, with parameters as they are before loading.
        load: copies the checkpoint's tensors into a layer.
        process: post-load processing; may replace, add and remove parameters and buffers.
        apply: runs a layer on one input; returns one tensor.
        inputs: one forward pass each; apply gets a copy.
        attach: gives a layer processed tensors by name, and restores all else that processing sets.

    Raises:
        TwinFailure: the first check that does not hold. One that compared nothing does not hold.
    """
    twin = _Twin()
    with torch.no_grad():
        daemon, ordinary = make(), make()
        for layer in (daemon, ordinary):
            load(layer)
            process(layer)
        served = _Served(daemon)
        twin.compare_processing(ordinary, served)
        attached = {"attached layer 1": make(), "attached layer 2": make()}
        for name, layer in attached.items():
            attach(layer, served.aliases())
            twin.compare_attached(name, layer, served)
        for index, x in enumerate(inputs):
            run = f"input {index} {list(x.shape)}"
            outputs = {f"daemon layer, {run}": _Output(apply(daemon, x.clone()))}
            twin.compare_contents(f"daemon layer, after {run}", served)
            for name, layer in attached.items():
                with _crash_named(f"{name}, {run}"):
                    outputs[f"{name}, {run}"] = _Output(apply(layer, x.clone()))
                twin.compare_attached(f"{name}, after {run}", layer, served)
            expected, again = (_Output(apply(ordinary, x.clone())) for _ in range(2))
            twin.compare_outputs("outputs_repeatable", f"ordinary layer, {run}, again", expected, again)
            for where, output in outputs.items():
                twin.compare_outputs("outputs_exact", where, expected, output)
    return twin.finish(served)


class _Served:
    """The daemon layer's processed tensors, and a copy of their bytes to hold them against."""

    def __init__(self, daemon: torch.nn.Module) -> None:
        self.tensors = _tensors(daemon)
        self.contents = {name: _memory_bytes(tensor).clone() for name, tensor in self.tensors.items()}
        self.storages = {_storage(tensor) for tensor in self.tensors.values() if tensor.numel()}

    def aliases(self) -> dict[str, torch.Tensor]:
        """New objects for the same storage: attributes of the daemon's objects do not travel."""
        return {
            name: torch.nn.Parameter(tensor.detach(), requires_grad=False)
            if isinstance(tensor, torch.nn.Parameter)
            else tensor.detach()
            for name, tensor in self.tensors.items()
        }


class _Twin:
    """Compares, raises the first TwinFailure, and counts what was compared."""

    def __init__(self) -> None:
        self._compared = dict.fromkeys(REMEDIES, 0)

    def compare_processing(self, ordinary: torch.nn.Module, served: _Served) -> None:
        check, tensors = "processing_repeatable", _tensors(ordinary)
        _require_layout(check, "ordinary layer", tensors, served)
        for name, tensor in tensors.items():
            where = f"ordinary layer, {name}"
            if tensor.numel() and _storage(tensor) in served.storages:
                _fail(check, "NOT_SHARED", where, "memory of its own", "the daemon layer's memory")
            found = _memory_bytes(tensor)
            if not torch.equal(found, served.contents[name]):
                _fail(check, "PROCESSED", where, "the daemon layer's bytes", "others")
            self._compared[check] += found.numel()

    def compare_attached(self, who: str, layer: torch.nn.Module, served: _Served) -> None:
        tensors = _tensors(layer)
        _require_layout("layout_restored", who, tensors, served)
        self._compared["layout_restored"] += len(tensors)
        for name, tensor in tensors.items():
            pointer = served.tensors[name].data_ptr()
            if tensor.data_ptr() != pointer:
                found = f"{tensor.data_ptr():#x}"
                _fail("pointers_shared", "NOT_SHARED", f"{who}, {name}", f"data_ptr {pointer:#x}", found)
            self._compared["pointers_shared"] += bool(tensor.numel())
        self.compare_contents(who, served)

    def compare_contents(self, who: str, served: _Served) -> None:
        for name, tensor in served.tensors.items():
            found, expected = _memory_bytes(tensor), served.contents[name]
            if not torch.equal(found, expected):
                changed = f"{int((found != expected).sum())} of {len(expected)} changed"
                _fail("contents_preserved", "MUTATED", f"{who}, {name}", "bytes as processed", changed)
            self._compared["contents_preserved"] += found.numel()

    def compare_outputs(self, check: str, where: str, expected: "_Output", found: "_Output") -> None:
        if found.shape != expected.shape:
            _fail(check, "SHAPE", where, list(expected.shape), list(found.shape))
        if found.dtype != expected.dtype:
            _fail(check, "DTYPE", where, expected.dtype, found.dtype)
        if found.stride != expected.stride:
            _fail(check, "LAYOUT", where, f"stride {list(expected.stride)}", list(found.stride))
        differing = (found.content != expected.content).any(1)
        if differing.any():
            count = f"{int(differing.sum())} of {len(differing)} elements that differ"
            _fail(check, "BYTES", where, "the ordinary layer's bytes", count)
        self._compared[check] += found.content.numel()

    def finish(self, served: _Served) -> TwinProof:
        for check, count in self._compared.items():
            if not count:
                _fail(check, "INCOMPLETE", "twin", "something to compare", "nothing: no tensor or no output")
        return TwinProof(compared=self._compared, tensors=tuple(served.tensors))


class _Output:
    """An output as it was when it came: a layer may use its memory again."""

    def __init__(self, output: torch.Tensor) -> None:
        self.shape, self.dtype, self.stride = output.shape, output.dtype, output.stride()
        self.content = _memory_bytes(output).clone().view(output.numel(), output.element_size())


def _fail(check: str, verdict: str, where: str, expected: object, found: object) -> None:
    raise TwinFailure(check, verdict, where, expected=expected, found=found)


@contextmanager
def _crash_named(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise TwinFailure("outputs_exact", "CRASHED", where, expected="an output", found=found) from error


def _require_layout(check: str, who: str, tensors: Mapping[str, torch.Tensor], served: _Served) -> None:
    if tensors.keys() != served.tensors.keys():
        _fail(check, "LAYOUT", who, f"tensors {sorted(served.tensors)}", sorted(tensors))
    for name, tensor in tensors.items():
        expected, found = _layout(served.tensors[name]), _layout(tensor)
        if found != expected:
            _fail(check, "LAYOUT", f"{who}, {name}", expected, found)


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} stride {list(tensor.stride())} on {tensor.device}"


def _tensors(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by dotted name; tied ones under each of their names."""
    parameters = dict[str, torch.Tensor](layer.named_parameters(remove_duplicate=False))
    return parameters | dict(layer.named_buffers(remove_duplicate=False))


def _owner(layer: torch.nn.Module, dotted: str) -> tuple[torch.nn.Module, str]:
    path, _, name = dotted.rpartition(".")
    return layer.get_submodule(path), name


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _memory_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes in the order in which memory holds them, uint8 [nbytes]; no copy where they are dense."""
    order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
    dense = tensor.detach().permute(order).contiguous()
    # Not reshape: it keeps the stride of a single element, whatever it is, and view then refuses.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
