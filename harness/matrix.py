"""Which cases exist: the one source for parametrisation, CI jobs and the planned count. Imports no torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import TypeVar

from .backends import BACKENDS, SEED, Backends
from .matrix_models import real_models, synthetic_models
from .model_spec import ModelCaseSpec
from .spec import (
    CaseSpec,
    Claim,
    ForeignSource,
    LayerSpec,
    Projection,
    ProjectionKind,
    RealSource,
    Refusal,
    Scheme,
    Source,
    SyntheticSource,
)

Case = CaseSpec | ModelCaseSpec
AnyCase = TypeVar("AnyCase", bound=Claim)
ALIAS = "alias"
"""A twin's transport: other names for the same storage, in one process."""
DECODER_LAYER = "model.layers.0"

MEMBERS = {
    ProjectionKind.PLAIN: ("self_attn.o_proj", ("o_proj",)),
    ProjectionKind.QKV: ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
    ProjectionKind.GATE_UP: ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
    ProjectionKind.ROW: ("mlp.down_proj", ("down_proj",)),
}
"""Fused name below a decoder layer, and the projections that it joins, as llama checkpoints name them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """One kind's sizes in multiples of 16, and others that need padding."""

    widths: tuple[int, ...]
    odd_widths: tuple[int, ...]
    k: int
    odd_k: int


SYNTHETIC = {
    ProjectionKind.PLAIN: Sizes((96,), (83,), 64, 57),
    ProjectionKind.QKV: Sizes((96, 32, 32), (91, 33, 25), 64, 57),
    ProjectionKind.GATE_UP: Sizes((80, 80), (75, 75), 64, 57),
    ProjectionKind.ROW: Sizes((48,), (41,), 160, 149),
}
SMOLLM2 = {
    ProjectionKind.PLAIN: Sizes((576,), (571,), 576, 569),
    ProjectionKind.QKV: Sizes((576, 192, 192), (571, 189, 190), 576, 569),
    ProjectionKind.GATE_UP: Sizes((1536, 1536), (1531, 1530), 576, 569),
    ProjectionKind.ROW: Sizes((576,), (571,), 1536, 1529),
}
"""SmolLM2-135M's own sizes are multiples of 16, so padding needs trimmed rows and columns."""


def layer_spec(
    kind: ProjectionKind,
    scheme: Scheme,
    widths: tuple[int, ...],
    logical_k: int,
    *,
    bias: bool = False,
    out_dtype: str = "bfloat16",
) -> LayerSpec:
    """The layer of this kind in decoder layer 0; one width for several members means fused on disk."""
    path, members = MEMBERS[kind]
    parent, _, fused = path.partition(".")
    stored = members if len(widths) == len(members) else (fused,)
    projections = tuple(
        Projection(name=f"{DECODER_LAYER}.{parent}.{member}", logical_width=width)
        for member, width in zip(stored, widths, strict=True)
    )
    return LayerSpec(
        name=f"{DECODER_LAYER}.{path}",
        scheme=scheme,
        projections=projections,
        logical_k=logical_k,
        bias=bias,
        out_dtype=out_dtype,
    )


def synthetic_layers(on: Backends) -> list[CaseSpec]:
    """Every kind, padding and relation of scales, under both schemes, on both transports.

    Each runs once with a bias and once without, once in bfloat16 and once in float16; which goes with
    which alternates, so that every pair of such values meets somewhere.
    """
    cases = []
    for scheme, kind, odd_n, odd_k, equal in product(
        Scheme, ProjectionKind, (False, True), (False, True), (True, False)
    ):
        sizes = SYNTHETIC[kind]
        widths = sizes.odd_widths if odd_n else sizes.widths
        if scheme is Scheme.FP8 and len(widths) == 1 and not equal:
            continue
        parity = (list(ProjectionKind).index(kind) + odd_n + odd_k + equal) % 2
        for index, transport in enumerate(on.transports):
            layer = layer_spec(
                kind,
                scheme,
                widths,
                sizes.odd_k if odd_k else sizes.k,
                bias=bool(index) != bool(parity),
                out_dtype="float16" if bool(index) != (odd_n != equal) else "bfloat16",
            )
            source = SyntheticSource(seed=SEED, equal_scales=equal)
            cases += _each_kernel(on, layer, kind, source, transport)
    return cases


def corner_layers(on: Backends) -> list[CaseSpec]:
    """A shard of width zero, a square weight, one output, one input, and projections fused on disk."""
    corners = [
        (ProjectionKind.QKV, (48, 0, 25), 64),
        (ProjectionKind.GATE_UP, (0, 40), 64),
        (ProjectionKind.PLAIN, (64,), 64),
        (ProjectionKind.PLAIN, (1,), 16),
        (ProjectionKind.ROW, (16,), 1),
        (ProjectionKind.QKV, (149,), 64),
        (ProjectionKind.GATE_UP, (160,), 57),
    ]
    return [
        case
        for scheme, transport in zip(Scheme, cycle(on.transports), strict=False)
        for kind, widths, k in corners
        for case in _each_kernel(
            on,
            layer_spec(kind, scheme, widths, k, bias=len(widths) == 1),
            kind,
            SyntheticSource(seed=SEED),
            transport,
        )
    ]


def real_layers(on: Backends) -> list[CaseSpec]:
    """SmolLM2's layer 0 of the real exports, all four kinds: as they are, and trimmed to odd sizes."""
    return [
        case
        for scheme in Scheme
        for kind, sizes in SMOLLM2.items()
        for trimmed in (False, True)
        for transport in on.transports
        for case in _each_kernel(
            on,
            layer_spec(
                kind,
                scheme,
                sizes.odd_widths if trimmed else sizes.widths,
                sizes.odd_k if trimmed else sizes.k,
            ),
            kind,
            RealSource(trimmed=trimmed),
            transport,
        )
    ]


def _each_kernel(
    on: Backends, layer: LayerSpec, kind: ProjectionKind, source: Source, transport: str
) -> list[CaseSpec]:
    return [
        CaseSpec(
            layer=layer,
            projection=kind,
            source=source,
            transport=transport,
            kernel=kernel,
            device=on.device,
        )
        for kernel in on.attaching
    ]


REFUSED_ALGOS = (
    "FP8_PB_WO",
    "fp8_pb_wo",
    "NVFP4",
    "W4A16_NVFP4",
    "MXFP8",
    "MIXED_PRECISION",
    "W4A16_AWQ",
    None,
)
"""Known and refused, one of them also as ModelOpt writes it in lower case; the last two unknown and null."""
REFUSED_IN_MIXED = ("FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")


def refused_schemes(on: Backends) -> list[CaseSpec]:
    """Checkpoints in a scheme that is not processed: no route may load them, with or without fallback."""
    sources = [ForeignSource(seed=SEED, quant_algo=algo) for algo in REFUSED_ALGOS]
    sources += [ForeignSource(seed=SEED, quant_algo=algo, mixed=True) for algo in REFUSED_IN_MIXED]
    layer = layer_spec(ProjectionKind.QKV, Scheme.FP8, (96, 32, 32), 64)
    return [
        CaseSpec(
            layer=layer,
            projection=ProjectionKind.QKV,
            source=source,
            transport=on.transports[0],
            kernel=on.attaching[0],
            device=on.device,
            fallback_allowed=fallback,
            refusal=Refusal(
                error="RefusedScheme", names=(layer.name, source.quant_algo or "null"), every_route=True
            ),
        )
        for source in sources
        for fallback in (False, True)
    ]


def refused_kernels(on: Backends) -> list[CaseSpec]:
    """Backends that may load from disk, but not take pre-processed weights, or not this daemon's."""
    undeclared = [(kernel, "", "RefusedKernel", (kernel,)) for kernel in on.refused]
    other = (on.attaching[0], on.refused[0], "KeyMismatch", ("kernel:", "kernel_build:"))
    return [
        CaseSpec(
            layer=layer,
            projection=ProjectionKind.QKV,
            source=SyntheticSource(seed=SEED),
            transport=on.transports[0],
            kernel=kernel,
            device=on.device,
            daemon_kernel=daemon_kernel,
            fallback_allowed=fallback,
            refusal=Refusal(
                error=error,
                names=names if daemon_kernel else (layer.name, *names),
                every_route=False,
            ),
        )
        for layer in _both_schemes()
        for kernel, daemon_kernel, error, names in (*undeclared, other)
        for fallback in (False, True)
    ]


def lost_daemons(on: Backends) -> list[CaseSpec]:
    """The daemon is killed under an attached engine, which must finish on the memory that it has mapped."""
    return [
        replace(case, daemon_killed=True)
        for layer in _both_schemes()
        for transport in on.transports
        for case in _each_kernel(on, layer, ProjectionKind.QKV, SyntheticSource(seed=SEED), transport)
    ]


def _both_schemes() -> Iterator[LayerSpec]:
    for scheme in Scheme:
        yield layer_spec(ProjectionKind.QKV, scheme, (91, 33, 25), 57)


GROUPS: dict[str, Callable[[Backends], Sequence[Case]]] = {
    "synthetic-layers": synthetic_layers,
    "corner-layers": corner_layers,
    "real-layers": real_layers,
    "lost-daemons": lost_daemons,
    "refused-schemes": refused_schemes,
    "refused-kernels": refused_kernels,
    "real-models": real_models,
    "synthetic-models": synthetic_models,
}
"""Groups of cases by the name that a test module asks for."""


def cases(
    group: str, *, device: str = "cpu", transport: str | None = None, kernel: str | None = None
) -> list[Case]:
    """A group's cases for a device in a fixed order, narrowed to one transport or kernel where given."""
    return narrowed(GROUPS[group](BACKENDS[device]), transport, kernel)


def narrowed(cases: Iterable[AnyCase], transport: str | None, kernel: str | None) -> list[AnyCase]:
    """Those of one transport and of one kernel; None leaves all."""
    return [case for case in cases if transport in (None, case.transport) and kernel in (None, case.kernel)]


def twins(
    group: str, *, device: str = "cpu", transport: str | None = None, kernel: str | None = None
) -> list[Case]:
    """The layers of `cases`, each once: in one process, cases that differ in transport alone are the same."""
    selected = cases(group, device=device, transport=transport, kernel=kernel)
    return list(dict.fromkeys(replace(case, transport=ALIAS) for case in selected))


def every_case() -> list[Case]:
    """All groups on all devices."""
    return [case for on in BACKENDS.values() for group in GROUPS.values() for case in group(on)]


CONTROLS = (
    "flipped-bit-in-padding",
    "disk-instead-of-attach",
    "copied-by-value",
    "store-into-shared-memory",
    "store-into-sealed-memory",
    "header-only-key",
)
"""Defects of `harness.defects` that are planted in every run; see `harness.controls`."""
