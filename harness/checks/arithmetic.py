"""outputs_exact, processed_exact, activation_exact, gemm_bounded: what was computed."""

import numpy as np
import torch
from numpy.typing import NDArray

from ..observation import CaseObservation, RouteObservation
from ..outcome import Outcome
from ..routes import REFERENCE_ROUTE
from ..tensor_bytes import dtype_of, sha256
from .compare import compare
from .derivation import DECODED, activation_bytes, largest_input_scale, processed_bytes
from .verdict import Tally

Doubles = NDArray[np.float64]


def outputs_exact(seen: CaseObservation, tally: Tally) -> str:
    """Every output equals the ordinary load's in shape, dtype and every byte."""
    routes = seen.in_order()
    reference = seen.routes[REFERENCE_ROUTE.name]
    for m in seen.case.m_values:
        expected = reference.result(f"output.{m}")
        for route in routes[1:]:
            verdict, found = compare(expected, route.result(f"output.{m}"))
            if verdict is not Outcome.PASS:
                detail = f"Output at M={m}: route {route.route.name} differs from {REFERENCE_ROUTE.name}."
                tally.fail(verdict, detail, route=route.route.name, m=m, **found)
            tally.count("bytes", found.get("bytes", 0) if isinstance(found.get("bytes"), int) else 0)
    return "All outputs are equal in every byte on all four routes."


def processed_exact(seen: CaseObservation, tally: Tally) -> str:
    """Weights, scales and padding equal the independent derivation from the checkpoint."""
    expected = processed_bytes(seen.case.layer, seen.projections)
    for route in seen.in_order():
        held = {
            n.removeprefix("processed."): t for n, t in route.results.items() if n.startswith("processed.")
        }
        route.result("processed.weight")
        if held.keys() != expected.keys():
            detail = f"Route {route.route.name} holds other tensors than the scheme has."
            tally.fail(Outcome.PROCESSED, detail, expected=sorted(expected), found=sorted(held))
            continue
        for name, want in expected.items():
            verdict, found = compare(torch.from_numpy(want.copy()), held[name])
            if verdict is not Outcome.PASS:
                detail = f"{name} on route {route.route.name} differs from the independent derivation."
                where = {"route": route.route.name, "tensor": f"{seen.case.layer.name}.{name}"}
                tally.fail(Outcome.PROCESSED, detail, **where, kind=verdict.value, **found)
            tally.count("bytes", want.size)
    return "All processed tensors equal the independent derivation from the checkpoint."


def activation_exact(seen: CaseObservation, tally: Tally) -> str:
    """Quantised inputs and their scales equal the independent derivation."""
    input_scale = largest_input_scale(seen.projections)
    for m in seen.case.m_values:
        codes, scale = activation_bytes(seen.case.layer, seen.inputs[f"x.{m}"], input_scale)
        wanted = {"activation": torch.from_numpy(codes), "activation_scale": torch.from_numpy(scale.copy())}
        for route in seen.in_order():
            for name, want in wanted.items():
                found_tensor = route.result(f"{name}.{m}")
                held = found_tensor.view(torch.uint8) if name == "activation" else found_tensor
                verdict, found = compare(want, held)
                if verdict is not Outcome.PASS:
                    detail = f"{name} at M={m} on route {route.route.name} differs from the derivation."
                    tally.fail(verdict, detail, route=route.route.name, m=m, **found)
                tally.count("bytes", want.numel() * want.element_size())
    return "All quantised inputs equal the independent derivation."


def gemm_bounded(seen: CaseObservation, tally: Tally) -> str:
    """Outputs lie within the output dtype's rounding of the exact sum, and the kernel's own of its sum."""
    done: set[tuple[str, ...]] = set()
    for route in seen.in_order():
        weights = [sha256(t) for n, t in route.results.items() if n.startswith("processed.")]
        for m in seen.case.m_values:
            output = route.result(f"output.{m}")
            tally.count("outputs", output.numel())
            # The exact sum is a function of the operands: equal operands and outputs need one look.
            names = (f"activation.{m}", f"activation_scale.{m}", f"output.{m}")
            looked_at = (*(sha256(route.result(n)) for n in names), *weights)
            if looked_at in done:
                continue
            done.add(looked_at)
            _bound(seen, route, m, output, tally)
    return "All outputs lie within half a unit in the last place of the exact sum, as the kernel may sum."


# A subject's infinity times zero is NaN, and outside the bound.
@np.errstate(invalid="ignore", over="ignore")
def _bound(
    seen: CaseObservation, route: RouteObservation, m: int, output: torch.Tensor, tally: Tally
) -> None:
    layer = seen.case.layer
    size, whole = route.result("processed.weight").numel(), layer.padded_width * layer.padded_k
    if size != whole:
        detail = f"The weight on route {route.route.name} has another size, so there is no exact sum."
        tally.fail(Outcome.LAYOUT, detail, expected=whole, found=size)
        return
    exact, uncertain = _exact(seen, route, m)
    if exact.shape != tuple(output.shape):
        detail = f"Output at M={m} on route {route.route.name} has another shape than the exact sum."
        tally.fail(Outcome.SHAPE, detail, expected=list(exact.shape), found=list(output.shape))
        return
    info = torch.finfo(dtype_of(layer.out_dtype))
    # Half a unit in the last place of whatever the kernel may have summed to.
    largest = np.abs(exact) + uncertain
    allowed = np.maximum(largest * info.eps / 2, info.smallest_normal * info.eps / 2) + uncertain
    held = output.to(torch.float64).numpy()
    excess = np.abs(held - exact) - allowed * (1 + 2.0**-20)
    # From half a step beyond the largest number on, the nearest one is infinity.
    beyond = largest >= info.max * (1 + info.eps / 2 / (2 - info.eps)) * (1 - 2.0**-40)
    excess = np.where(beyond & (held == np.copysign(np.inf, exact)), 0.0, excess)
    worst = int(excess.argmax()) if excess.size else 0
    if excess.size and not excess.max() <= 0:
        row, column = divmod(worst, exact.shape[1])
        tally.fail(
            Outcome.BOUND,
            f"Output at M={m} on route {route.route.name} is outside the bound.",
            route=route.route.name,
            m=m,
            index=[row, column],
            value=repr(output[row, column].item()),
            exact=repr(float(exact[row, column])),
            allowed=repr(float(allowed[row, column])),
        )


def _exact(seen: CaseObservation, route: RouteObservation, m: int) -> tuple[Doubles, Doubles]:
    """The exact integer sum x scales + bias, from what the route held, and how far the kernel may be off it.

    Both float64 [M, logical_width]. Codes are integers times 2^-9, and float64 sums of their products
    stay below 2^53, so the sum is exact.
    """
    layer = seen.case.layer
    codes = route.result(f"activation.{m}").view(torch.uint8).numpy()
    weight = route.result("processed.weight").numpy().reshape(layer.padded_width, layer.padded_k)
    a, b = np.rint(DECODED[codes] * 512), np.rint(DECODED[weight] * 512)
    total, magnitude = a @ b.T, np.abs(a) @ np.abs(b).T
    scale_a = route.result(f"activation_scale.{m}").numpy().astype(np.float64)
    scale_b = _checkpoint_scale(seen)
    scales = 2.0**-18 * (scale_a * scale_b)
    exact = total[:, : layer.logical_width] * scales
    uncertain = magnitude[:, : layer.logical_width] * scales * seen.kernel.sum_error(layer.logical_k)
    if layer.bias:
        out_dtype = dtype_of(layer.out_dtype)
        bias = [p.bias.to(out_dtype).double().numpy() for p in seen.projections if p.bias is not None]
        exact = exact + np.concatenate(bias)
    return exact, uncertain


def _checkpoint_scale(seen: CaseObservation) -> Doubles:
    scales = [p.weight_scale.double().numpy() for p in seen.projections]
    if scales[0].ndim == 0:
        return np.asarray(max(float(s) for s in scales))
    joined: Doubles = np.concatenate(scales)
    return joined
