"""outputs_exact, processed_exact, activation_exact, gemm_bounded: what was computed."""

import numpy as np
import torch

from ..observation import CaseObservation, RouteObservation
from ..outcome import Outcome
from ..routes import REFERENCE_ROUTE
from ..tensor_bytes import dtype_name, dtype_of, sha256
from .compare import compare
from .derivation import DECODED, Doubles, activation_bytes, largest_input_scale, nearest, processed_bytes
from .verdict import Tally


def outputs_exact(seen: CaseObservation, tally: Tally) -> str:
    """Every output equals the ordinary load's in shape, dtype and every byte."""
    routes = seen.in_order()
    reference = seen.routes[REFERENCE_ROUTE.name]
    # Route by route: where one was refused, the others have been compared in full.
    for route in routes[1:]:
        for m in seen.layer_case.m_values:
            expected = reference.result(f"output.{m}")
            verdict, found = compare(expected, route.result(f"output.{m}"))
            if verdict is not Outcome.PASS:
                detail = f"Output at M={m}: route {route.route.name} differs from {REFERENCE_ROUTE.name}."
                tally.fail(verdict, detail, route=route.route.name, m=m, **found)
            tally.count("bytes", found.get("bytes", 0) if isinstance(found.get("bytes"), int) else 0)
    return "All outputs are equal in every byte on all four routes."


def processed_exact(seen: CaseObservation, tally: Tally) -> str:
    """Weights, scales and padding equal the independent derivation from the checkpoint."""
    expected = processed_bytes(seen.layer_case.layer, seen.projections)
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
            pair = torch.from_numpy(want.copy()), held[name]
            # Compared as what they are, so that a difference has a coordinate and a value.
            typed = [_typed(seen, name, side) for side in pair] if pair[0].shape == pair[1].shape else pair
            verdict, found = compare(*typed)
            if verdict is not Outcome.PASS:
                detail = f"{name} on route {route.route.name} differs from the independent derivation."
                where = {"route": route.route.name, "tensor": f"{seen.layer_case.layer.name}.{name}"}
                tally.fail(Outcome.PROCESSED, detail, **where, kind=verdict.value, **found)
            tally.count("bytes", want.size)
    return "All processed tensors equal the independent derivation from the checkpoint."


def _typed(seen: CaseObservation, name: str, stored: torch.Tensor) -> torch.Tensor:
    """Bytes in memory order as the tensor that they are; a weight as its stored [N, K] rows."""
    layer = seen.layer_case.layer
    if name == "weight":
        return stored.view(torch.float8_e4m3fn).reshape(layer.padded_width, layer.padded_k)
    return stored.view(dtype_of(layer.out_dtype) if name == "bias" else torch.float32)


def activation_exact(seen: CaseObservation, tally: Tally) -> str:
    """Quantised inputs and their scales equal the independent derivation."""
    input_scale = largest_input_scale(seen.projections)
    wanted: dict[str, torch.Tensor] = {}
    for m in seen.layer_case.m_values:
        codes, scale = activation_bytes(seen.layer_case.layer, seen.inputs[f"x.{m}"], input_scale)
        wanted[f"activation.{m}"] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        wanted[f"activation_scale.{m}"] = torch.from_numpy(scale.copy())
    for route in seen.in_order():
        for name, want in wanted.items():
            verdict, found = compare(want, route.result(name))
            if verdict is not Outcome.PASS:
                detail = f"{name} on route {route.route.name} differs from the derivation."
                tally.fail(verdict, detail, route=route.route.name, tensor=name, **found)
            tally.count("bytes", want.numel() * want.element_size())
    return "All quantised inputs equal the independent derivation."


def gemm_bounded(seen: CaseObservation, tally: Tally) -> str:
    """Outputs lie within the output dtype's rounding of the exact sum, and the kernel's own of its sum."""
    done: set[tuple[str, ...]] = set()
    for route in seen.in_order():
        weights = [sha256(t) for n, t in route.results.items() if n.startswith("processed.")]
        for m in seen.layer_case.m_values:
            output = route.result(f"output.{m}")
            tally.count("outputs", output.numel())
            # The exact sum is a function of the operands: equal operands and outputs need one look.
            names = (f"activation.{m}", f"activation_scale.{m}", f"output.{m}")
            looked_at = (*(sha256(route.result(n)) for n in names), *weights)
            if looked_at in done:
                continue
            done.add(looked_at)
            _bound(seen, route, m, output, tally)
    return "All outputs are the nearest numbers to the exact sum, as far as the kernel sums exactly."


# A subject's infinity times zero is NaN, and outside the bound.
@np.errstate(invalid="ignore", over="ignore")
def _bound(
    seen: CaseObservation, route: RouteObservation, m: int, output: torch.Tensor, tally: Tally
) -> None:
    layer = seen.layer_case.layer
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
    dtype = dtype_of(layer.out_dtype)
    if output.dtype is not dtype:
        detail = f"Output at M={m} on route {route.route.name} is of another dtype than the layer's."
        tally.fail(Outcome.DTYPE, detail, expected=layer.out_dtype, found=dtype_name(output.dtype))
        return
    held = output.to(torch.float64).numpy()
    # The two ends of what the kernel may have summed to, each rounded once; equal where it sums exactly.
    low, high = nearest(exact - uncertain, dtype), nearest(exact + uncertain, dtype)
    excess = np.maximum(low - held, held - high)
    # Infinite ends leave no difference to speak of, and -0 is not the rounding of an exact +0.
    excess = np.where((held == low) | (held == high), 0.0, excess)
    excess = np.where((uncertain == 0) & (held == 0) & np.signbit(held) & ~np.signbit(low), np.inf, excess)
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
            allowed=[repr(float(low[row, column])), repr(float(high[row, column]))],
        )


def _exact(seen: CaseObservation, route: RouteObservation, m: int) -> tuple[Doubles, Doubles]:
    """The exact integer sum x scales + bias, from what the route held, and how far the kernel may be off it.

    Both float64 [M, logical_width]. Codes are integers times 2^-9, and float64 sums of their products
    stay below 2^53, so the sum is exact.
    """
    layer = seen.layer_case.layer
    codes = route.result(f"activation.{m}").view(torch.uint8).numpy()
    weight = route.result("processed.weight").numpy().reshape(layer.padded_width, layer.padded_k)
    a, b = np.rint(DECODED[codes] * 512), np.rint(DECODED[weight] * 512)
    total, off = a @ b.T, seen.kernel.sum_error(a, b)
    scale_a = route.result(f"activation_scale.{m}").numpy().astype(np.float64)
    scale_b = _checkpoint_scale(seen)
    scales = 2.0**-18 * (scale_a * scale_b)
    exact = total[:, : layer.logical_width] * scales
    uncertain = off[:, : layer.logical_width] * scales
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
