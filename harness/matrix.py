"""Which cases exist: the one source for parametrisation, CI jobs and the planned count. Imports no torch."""

from .spec import (
    CaseSpec,
    LayerSpec,
    Projection,
    ProjectionKind,
    RealSource,
    Scheme,
    SyntheticSource,
)

CPU_TRANSPORTS = ("memfd", "memfd-writable")

Widths = dict[ProjectionKind, dict[str, tuple[int, ...]]]
"""Logical widths of the projections, by kind and by what they show."""

_MEMBERS = {
    ProjectionKind.PLAIN: ("o_proj", ("o_proj",)),
    ProjectionKind.QKV: ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
}
"""Fused name, and the projections it joins, below `model.layers.0.self_attn`."""

_SYNTHETIC_WIDTHS: Widths = {
    ProjectionKind.PLAIN: {"aligned": (96,), "padded": (83,)},
    ProjectionKind.QKV: {"aligned": (96, 32, 32), "padded": (91, 33, 25)},
}
_REAL_WIDTHS: Widths = {
    ProjectionKind.PLAIN: {"whole": (576,), "trimmed": (571,)},
    ProjectionKind.QKV: {"whole": (576, 192, 192), "trimmed": (571, 189, 190)},
}
"""SmolLM2-135M's own widths are multiples of 16, so padding needs trimmed rows."""

_SYNTHETIC_K = 64
_REAL_K = 576


def layer_spec(kind: ProjectionKind, scheme: Scheme, widths: tuple[int, ...], logical_k: int) -> LayerSpec:
    """The layer of this kind in decoder layer 0, named as llama checkpoints name it."""
    prefix = "model.layers.0.self_attn"
    fused, members = _MEMBERS[kind]
    projections = tuple(
        Projection(name=f"{prefix}.{member}", logical_width=width)
        for member, width in zip(members, widths, strict=True)
    )
    return LayerSpec(name=f"{prefix}.{fused}", scheme=scheme, projections=projections, logical_k=logical_k)


def synthetic_layers() -> list[CaseSpec]:
    """Seeded layers with unequal scales: 2 schemes x {plain, qkv} x {aligned, padded} x transports."""
    return [
        CaseSpec(
            layer=layer_spec(kind, scheme, widths, _SYNTHETIC_K),
            projection=kind,
            source=SyntheticSource(seed=20261130),
            transport=transport,
        )
        for scheme in Scheme
        for kind, by_name in _SYNTHETIC_WIDTHS.items()
        for widths in by_name.values()
        for transport in CPU_TRANSPORTS
    ]


def real_layers() -> list[CaseSpec]:
    """SmolLM2 layer 0, qkv and o_proj, of the real exports: as they are, and trimmed to unaligned N."""
    return [
        CaseSpec(
            layer=layer_spec(kind, scheme, widths, _REAL_K),
            projection=kind,
            source=RealSource(trimmed=name == "trimmed"),
            transport=transport,
        )
        for scheme in Scheme
        for kind, by_name in _REAL_WIDTHS.items()
        for name, widths in by_name.items()
        for transport in CPU_TRANSPORTS
    ]


GROUPS = {"synthetic-layers": synthetic_layers, "real-layers": real_layers}
"""Groups of cases by the name that a test module asks for."""


def cases(group: str, *, transport: str | None = None, kernel: str | None = None) -> list[CaseSpec]:
    """A group's cases in a fixed order, narrowed to one transport or kernel where given."""
    return [
        case
        for case in GROUPS[group]()
        if transport in (None, case.transport) and kernel in (None, case.kernel)
    ]
