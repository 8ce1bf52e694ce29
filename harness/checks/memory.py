"""pointers_shared, contents_preserved, layout_restored: where the weights lie and what became of them."""

from typing import Any

from ..formats import Layout
from ..observation import CaseObservation, RouteObservation
from ..outcome import Outcome
from ..record import TensorRecord
from ..spec import LayerSpec
from .verdict import Tally


def pointers_shared(seen: CaseObservation, tally: Tally) -> str:
    """Attached tensors lie in the daemon's memory at the manifest's offsets; loaded ones do not."""
    manifest = {t.name: t for t in seen.daemon.tensors}
    for route in seen.in_order():
        tensors = [TensorRecord(**t) for t in route.said("tensors")]
        tally.require(bool(tensors), Outcome.INCOMPLETE, f"Route {route.route.name} lists no tensor.")
        _require_unmoved(route, tensors, tally)
        if not route.route.shares:
            for tensor in tensors:
                private = tensor.allocation != seen.daemon.allocation
                detail = f"{tensor.name} on route {route.route.name} lies in the daemon's memory."
                where = {"route": route.route.name, "tensor": tensor.name}
                tally.require(private, Outcome.NOT_SHARED, detail, **where, allocation=tensor.allocation)
            continue
        held = sorted(t.name for t in tensors)
        complete = held == sorted(manifest) and bool(held)
        detail = f"Route {route.route.name} holds other tensors than the manifest lists."
        tally.require(
            complete,
            Outcome.NOT_SHARED,
            detail,
            route=route.route.name,
            expected=sorted(manifest),
            found=held,
        )
        for tensor in tensors:
            _require_shared(route, tensor, manifest.get(tensor.name), tally)
        _require_probe(route, tally)
    return (
        "Each attached tensor lies in the daemon's allocation at the manifest's offset, and the probe "
        "page shows the daemon's writes; the loaded ones lie elsewhere."
    )


def _require_unmoved(route: RouteObservation, tensors: list[TensorRecord], tally: Tally) -> None:
    loaded = {t.name: [t.allocation, t.offset] for t in tensors}
    found = route.said("places_after")
    detail = f"Route {route.route.name} computed with other memory than it had loaded."
    name = route.route.name
    tally.require(found == loaded, Outcome.NOT_SHARED, detail, route=name, expected=loaded, found=found)


def _require_shared(
    route: RouteObservation, tensor: TensorRecord, listed: TensorRecord | None, tally: Tally
) -> None:
    same = listed is not None and (tensor.allocation, tensor.offset) == (listed.allocation, listed.offset)
    tally.require(
        same,
        Outcome.NOT_SHARED,
        f"{tensor.name} on route {route.route.name} is not where the manifest says.",
        route=route.route.name,
        tensor=tensor.name,
        expected=f"{listed.allocation} + {listed.offset}" if listed else "not in the manifest",
        found=f"{tensor.allocation} + {tensor.offset}",
    )


def _require_probe(route: RouteObservation, tally: Tally) -> None:
    probe = route.said("probe")
    tally.require(
        probe == route.nonce,
        Outcome.NOT_SHARED,
        f"Route {route.route.name} does not see what the daemon wrote after the attachment.",
        route=route.route.name,
        expected=route.nonce,
        found=probe,
    )


def contents_preserved(seen: CaseObservation, tally: Tally) -> str:
    """Shared bytes are the manifest's before and after each run, seen by engine and daemon."""
    manifest = {t.name: t.fingerprint for t in seen.daemon.tensors}
    hashes = {t.name: t.sha256 for t in seen.daemon.tensors}
    for route in seen.in_order():
        before = {t["name"]: t["fingerprint"] for t in route.said("tensors")}
        if route.route.shares:
            hashed = {t["name"]: t["sha256"] for t in route.said("tensors")}
            _require_unchanged(route, "the engine, by sha256,", hashes, hashed, tally)
        expected = manifest if route.route.shares else before
        tally.require(bool(expected), Outcome.INCOMPLETE, f"Route {route.route.name} lists no tensor.")
        views = {"the engine, after its run": route.said("tensors_after")}
        if route.route.shares:
            views |= {
                "the engine, on attaching": before,
                f"the daemon, {'before its end' if route.daemon_killed else 'afterwards'},": (
                    route.daemon_digests or {}
                ),
            }
        for viewer, digests in views.items():
            _require_unchanged(route, viewer, expected, digests, tally)
            tally.count("digests", len(digests))
    return "No byte of any weight changed, in the daemon or in any engine."


def _require_unchanged(
    route: RouteObservation, viewer: str, expected: dict[str, str], found: dict[str, str], tally: Tally
) -> None:
    changed = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
    detail = f"Route {route.route.name}: {viewer} sees other bytes than the manifest names."
    tally.require(not changed, Outcome.MUTATED, detail, route=route.route.name, tensors=changed)


def layout_restored(seen: CaseObservation, tally: Tally) -> str:
    """Shapes, strides and logical widths are those of a correctly processed layer, on every route."""
    for route in seen.in_order():
        layouts, tensors = route.said("layouts"), {t["name"]: t for t in route.said("tensors")}
        for layer in seen.layers:
            _require_layout(route.route.name, layer, layouts[layer.name], tensors, tally)
    return "Shape, strides, logical and padded sizes are as processing leaves them, on all routes."


def _require_layout(
    route: str, layer: LayerSpec, found: dict[str, Any], tensors: dict[str, Any], tally: Tally
) -> None:
    expected = Layout.of(layer).to_json()
    wrong = {name: [want, found.get(name)] for name, want in expected.items() if found.get(name) != want}
    detail = f"Route {route} restored another layout of {layer.name}."
    tally.require(not wrong, Outcome.LAYOUT, detail, route=route, expected_found=wrong)
    weight, k, n = tensors[f"{layer.name}.weight"], layer.padded_k, layer.padded_width
    shape = (weight["shape"], weight["stride"])
    detail = f"The weight of {layer.name} on route {route} is not column-major [K, N]."
    expected_shape = ([k, n], [1, k])
    tally.require(
        shape == expected_shape, Outcome.LAYOUT, detail, route=route, expected=expected_shape, found=shape
    )
    scale = tensors[f"{layer.name}.weight_scale"]["shape"]
    detail = f"The weight scale of {layer.name} on route {route} has another shape."
    tally.require(scale in ([], [n]), Outcome.LAYOUT, detail, route=route, found=scale)
