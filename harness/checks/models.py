"""The checks of a whole model: what it generated, by what, and what it is beside its weights."""

import json
from typing import Any

import torch

from ..observation import CaseObservation, Missing, ModelObservation, RouteObservation
from ..outcome import Outcome
from ..routes import REFERENCE_ROUTE
from ..tensor_bytes import sha256
from .compare import compare
from .memory import layout_restored
from .route import kernel_witnessed
from .verdict import Tally

SHOWN_CHARACTERS = 300
SHOWN_PATHS = 5
DIGEST_BYTES = 32
"""Of sha256."""


def generation_exact(seen: CaseObservation, tally: Tally) -> str:
    """Logits, token ids and hidden states of every step equal the ordinary load's in every byte."""
    model = model_of(seen)
    routes, reference = seen.in_order(), seen.routes[REFERENCE_ROUTE.name]
    for route in routes[1:]:
        for name in (*(f"logits.{step}" for step in range(model.new_tokens)), "ids", "hidden"):
            expected = reference.result(name)
            verdict, found = compare(expected, route.result(name))
            if verdict is Outcome.PASS:
                tally.count("bytes", found["bytes"])
                continue
            first = first_divergence(seen, reference, route)
            detail = (
                f"{name} on route {route.route.name} differs from {REFERENCE_ROUTE.name}: {_said(first)}."
            )
            where = {"route": route.route.name, "tensor": name, "first_divergence": first}
            tally.fail(verdict, detail, **where, **found)
    for route in routes:
        _require_whole(model, route, tally)
        _require_greedy(model, route, tally)
        _require_fed(model, route, tally)
    return "Logits, token ids and hidden states of every step are equal in every byte on all four routes."


def model_of(seen: CaseObservation) -> ModelObservation:
    """What is known of the model; raises Missing."""
    if seen.model is None:
        raise Missing(REFERENCE_ROUTE.name, Outcome.INCOMPLETE, "a model")
    return seen.model


def _require_whole(model: ModelObservation, route: RouteObservation, tally: Tally) -> None:
    """The route has results of every prompt, step and point, and no others: nothing would compare those."""
    prompts, name = model.prompts.ids.shape[0], route.route.name
    shapes = {"ids": [prompts, model.new_tokens]}
    shapes["hidden"] = [prompts, model.new_tokens, len(model.points), DIGEST_BYTES]
    for result, shape in shapes.items():
        found = list(route.result(result).shape)
        detail = f"Route {name} has {result} of another shape."
        tally.require(found == shape, Outcome.SHAPE, detail, expected=shape, found=found)
    beyond = {n for n in route.results if n.startswith("logits.")}
    beyond -= {f"logits.{step}" for step in range(model.new_tokens)}
    detail = f"Route {name} has logits of steps that were not asked for."
    tally.require(not beyond, Outcome.SHAPE, detail, found=sorted(beyond)[:SHOWN_PATHS])


def _require_fed(model: ModelObservation, route: RouteObservation, tally: Tally) -> None:
    """The route ran these prompts, and after them each token that it took: shown by their embeddings."""
    name, ids, hidden = route.route.name, route.result("ids"), route.result("hidden")
    point = model.points.index(model.contents.architecture.embedding)
    for step in range(model.new_tokens):
        tokens = model.prompts.ids if step == 0 else ids[:, step - 1 : step]
        for prompt, fed in enumerate(tokens):
            expected = sha256(model.embedding[fed])
            found = bytes(hidden[prompt, step, point].tolist()).hex()
            detail = f"Route {name} was fed other tokens than prompt {prompt} has at step {step}."
            where = {"route": name, "prompt": prompt, "step": step}
            tally.require(found == expected, Outcome.BYTES, detail, **where, expected=expected, found=found)


def _require_greedy(model: ModelObservation, route: RouteObservation, tally: Tally) -> None:
    """The route ran these prompts for as many steps as were asked, and took the likeliest token each time."""
    ids, name = route.result("ids"), route.route.name
    prompts, length = model.prompts.ids.shape
    for step in range(model.new_tokens):
        logits = route.result(f"logits.{step}")
        shape = [prompts, length if step == 0 else 1, model.contents.vocabulary]
        detail = f"Route {name} has logits of another shape at step {step}."
        found_shape = list(logits.shape)
        tally.require(found_shape == shape, Outcome.SHAPE, detail, expected=shape, found=found_shape)
        usable = bool(torch.isfinite(logits).all())
        detail = f"Route {name} has logits that are no numbers at step {step}: nothing is shown by them."
        tally.require(usable, Outcome.INCOMPLETE, detail, step=step)
        likeliest, taken = logits[:, -1].argmax(dim=-1), ids[:, step]
        detail = f"Route {name} did not take the likeliest token at step {step}."
        found = {"expected": likeliest.tolist(), "found": taken.tolist()}
        tally.require(torch.equal(likeliest, taken), Outcome.BYTES, detail, step=step, **found)


def first_divergence(
    seen: CaseObservation, reference: RouteObservation, route: RouteObservation
) -> dict[str, Any] | None:
    """Prompt, step and module of the first hidden state that differs; the output layer where none does.

    In the order of computation: step, module, prompt. None where the digests cannot be set side by side.
    """
    model = model_of(seen)
    ours, theirs = reference.result("hidden"), route.result("hidden")
    if ours.shape != theirs.shape or ours.shape[2] != len(model.points):
        return None
    differing = (ours != theirs).any(dim=-1).permute(1, 2, 0).nonzero()
    first_hidden = differing[0].tolist() if len(differing) else None
    for step in range(model.new_tokens):
        if first_hidden and first_hidden[0] == step:
            _, point, prompt = first_hidden
            return {"prompt": prompt, "step": step, "layer": model.points[point]}
        for prompt in range(ours.shape[0]):
            pair = (side.result(f"logits.{step}")[prompt] for side in (reference, route))
            if compare(*pair)[0] is not Outcome.PASS:
                return {"prompt": prompt, "step": step, "layer": model.contents.architecture.head}
    return None


def _said(first: dict[str, Any] | None) -> str:
    if first is None:
        return "where they part is not known"
    return f"the first to differ is {first['layer']} at step {first['step']} of prompt {first['prompt']}"


def derivation_exact(seen: CaseObservation, tally: Tally) -> str:
    """Weights, scales, padding and plain tensors equal the independent derivation, by sha256 of each."""
    derived = model_of(seen).derived
    for route in seen.in_order():
        held = {tensor["name"]: tensor for tensor in route.said("tensors")}
        if held.keys() != derived.keys():
            detail = f"Route {route.route.name} holds other tensors than the checkpoint has."
            differing = sorted(held.keys() ^ derived.keys())[:SHOWN_PATHS]
            tally.fail(Outcome.PROCESSED, detail, differing=differing)
            continue
        for name, want in derived.items():
            if held[name]["sha256"] != want:
                detail = f"{name} on route {route.route.name} differs from the independent derivation."
                where = {"route": route.route.name, "tensor": name}
                tally.fail(Outcome.PROCESSED, detail, **where, expected=want, found=held[name]["sha256"])
            tally.count("tensors")
    return "All tensors of the model equal the independent derivation from the checkpoint."


def model_restored(seen: CaseObservation, tally: Tally) -> str:
    """Layouts of all layers, the flags that decide bytes, and the module tree: ties, dtypes, buffers, ..."""
    layouts = layout_restored(seen, tally)
    flags = seen.routes[REFERENCE_ROUTE.name].said("flags")
    tally.require(bool(flags), Outcome.INCOMPLETE, "The ordinary load names no flag that decides bytes.")
    reference = _description(seen.routes[REFERENCE_ROUTE.name])
    tally.require(bool(reference), Outcome.INCOMPLETE, "The ordinary load describes no module.")
    for route in seen.in_order():
        detail = f"Route {route.route.name} ran under other flags than {REFERENCE_ROUTE.name}."
        other = route.said("flags")
        tally.require(other == flags, Outcome.LAYOUT, detail, expected=flags, found=other)
        found = _description(route)
        differing = sorted(n for n in reference.keys() | found.keys() if reference.get(n) != found.get(n))
        detail = f"On route {route.route.name} the model is another beside its weights: {differing[:1]}."
        shown = {
            path: [str(side.get(path))[:SHOWN_CHARACTERS] for side in (reference, found)]
            for path in differing[:SHOWN_PATHS]
        }
        tally.require(not differing, Outcome.LAYOUT, detail, route=route.route.name, differing=shown)
        tally.count("described", len(found))
    return f"{layouts[:-1]}; flags, ties, dtypes, buffers, modes and config of the module tree are equal."


def _description(route: RouteObservation) -> dict[str, str]:
    described = json.loads(bytes(route.result("description").tolist()))
    if not isinstance(described, dict):
        raise ValueError("a description that is no object")
    return described


def model_kernel_witnessed(seen: CaseObservation, tally: Tally) -> str:
    """The case's kernel ran on every route, once for each fused layer and step."""
    detail = kernel_witnessed(seen, tally)
    model = model_of(seen)
    expected = {layer.name: model.new_tokens for layer in model.contents.layers}
    for route in seen.in_order():
        found = route.said("gemms")
        differing = {n: found.get(n) for n in expected if found.get(n) != expected[n]}
        wrong = f"Route {route.route.name} did not multiply each fused layer once a step."
        same = found == expected
        tally.require(same, Outcome.WRONG_KERNEL, wrong, expected=model.new_tokens, found=differing)
        tally.count("gemms", sum(found.values()))
    return f"{detail[:-1]}, once for each fused layer and step."
