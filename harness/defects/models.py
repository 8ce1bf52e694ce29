"""Planted in a whole model: in what is beside its weights, in its fusion, and in one layer or step alone."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import loaders
from ..formats import ProcessedLayer
from ..outcome import Outcome
from .registry import MODEL_DEFECTS, defect, edit_processed, is_attached, replace, with_tensors

ROTARY = "model.rotary_emb"


def edit_attached_model(process: str, edit: Callable[[nn.Module], object]) -> None:
    """Change the model that an attached engine has built."""
    if process != "engine":
        return
    # transformers is there in engines of models alone.
    from ..models import work
    from ..models.build import build as original

    def build(checkpoint: Any, architecture: Any, layers: Any, plain: Any, *others: Any) -> Any:
        model, groups = original(checkpoint, architecture, layers, plain, *others)
        if any(map(is_attached, plain.values())):
            edit(model)
        return model, groups

    replace(work, "build", build)


def _edit_results(process: str, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change what this engine has generated."""
    if process != "engine":
        return
    from ..models import work
    from ..models.generate import generate as original

    def generate(*arguments: Any) -> dict[str, torch.Tensor]:
        results = original(*arguments)
        with torch.inference_mode():
            edit(results)
        return results

    replace(work, "generate", generate)


def _edit_inputs(process: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the tokens that this engine's model is fed at each step."""
    if process != "engine":
        return
    from ..models import work
    from ..models.generate import generate as original

    def generate(model: Any, *others: Any) -> dict[str, torch.Tensor]:
        def fed(module: nn.Module, args: object, kwargs: dict[str, Any]) -> Any:
            return args, kwargs | {"input_ids": edit(kwargs["input_ids"])}

        with model.register_forward_pre_hook(fed, with_kwargs=True):
            return original(model, *others)

    replace(work, "generate", generate)


def _set(model: nn.Module, path: str, weight: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(weight, requires_grad=False)
    model.get_submodule(path).register_parameter("weight", parameter)
    return parameter


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def tied_embedding_untied(process: str, loader: str) -> None:
    """The attached engine's output layer has a copy of the embedding; every output is right."""

    def untie(model: nn.Module) -> None:
        _set(model, "lm_head", model.get_parameter("lm_head.weight").detach().clone())

    edit_attached_model(process, untie)


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def norm_in_float32(process: str, loader: str) -> None:
    """The attached engine widens the first norm, and so rounds one time less."""

    def widen(model: nn.Module) -> None:
        norm = "model.layers.0.input_layernorm"
        _set(model, norm, model.get_parameter(f"{norm}.weight").detach().float())

    edit_attached_model(process, widen)


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def inverse_frequencies_lost(process: str, loader: str) -> None:
    """The attached engine's rotary embedding has an empty buffer: it is in no checkpoint."""
    edit_attached_model(process, lambda model: model.get_buffer(f"{ROTARY}.inv_freq").zero_())


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def buffer_made_persistent(process: str, loader: str) -> None:
    """The attached engine registers a computed buffer as one to be saved; every output is right."""

    def register(model: nn.Module) -> None:
        buffer = model.get_buffer(f"{ROTARY}.inv_freq")
        model.get_submodule(ROTARY).register_buffer("inv_freq", buffer, persistent=True)

    edit_attached_model(process, register)


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def training_mode_left_on(process: str, loader: str) -> None:
    """The attached engine's model is in training mode; without dropout, every output is right."""
    edit_attached_model(process, lambda model: model.train())


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def gradients_left_on(process: str, loader: str) -> None:
    """The attached engine's embedding takes gradients; every output is right."""
    edit_attached_model(process, lambda model: model.get_submodule("model.embed_tokens").requires_grad_(True))


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def weight_shadowed(process: str, loader: str) -> None:
    """A copy stands before the last norm's weight in the attached engine; every output is right."""

    def shadow(model: nn.Module) -> None:
        norm = model.get_submodule("model.norm")
        vars(norm)["weight"] = norm.get_parameter("weight").detach().clone()

    edit_attached_model(process, shadow)


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def forward_replaced(process: str, loader: str) -> None:
    """The attached engine's output layer multiplies by a copy, by a method of its own; outputs are right."""

    def substitute(model: nn.Module) -> None:
        head = model.get_submodule("lm_head")
        copied = head.get_parameter("weight").detach().clone()
        replace(head, "forward", lambda x: nn.functional.linear(x, copied))

    edit_attached_model(process, substitute)


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def hook_left_on(process: str, loader: str) -> None:
    """The attached engine's first decoder layer has a hook that will act later; every output is right."""
    edit_attached_model(
        process,
        lambda model: model.get_submodule("model.layers.0").register_forward_hook(lambda *_: None),
    )


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def config_of_its_own(process: str, loader: str) -> None:
    """One attention module of the attached engine has another config than the model; outputs are right."""

    def part(model: nn.Module) -> None:
        attention = model.get_submodule("model.layers.0.self_attn")
        own = copy.deepcopy(getattr(attention, "config"))  # noqa: B009 # a module's attribute is no Tensor here
        own.attention_dropout = 0.9
        replace(attention, "config", own)

    edit_attached_model(process, part)


@defect("pointers_shared", Outcome.NOT_SHARED, MODEL_DEFECTS)
def embedding_copied(process: str, loader: str) -> None:
    """The attached engine clones an embedding that it should share, ties and all; every output is right."""

    def duplicate(model: nn.Module) -> None:
        copied = _set(model, "model.embed_tokens", model.get_parameter("lm_head.weight").detach().clone())
        model.get_submodule("lm_head").register_parameter("weight", copied)

    edit_attached_model(process, duplicate)


@defect("outputs_exact", Outcome.BYTES, MODEL_DEFECTS)
def keys_taken_for_values(process: str, loader: str) -> None:
    """The attached engine's v takes k's columns of the fused result."""

    def mistake(model: nn.Module) -> None:
        k, v = (model.get_submodule(f"model.layers.0.self_attn.{name}_proj") for name in "kv")
        k.register_forward_hook(lambda module, inputs, out: held.update(k=out))
        v.register_forward_hook(lambda module, inputs, out: held["k"])

    held: dict[str, torch.Tensor] = {}
    edit_attached_model(process, mistake)


@defect("processed_exact", Outcome.PROCESSED, MODEL_DEFECTS)
def layer_of_a_neighbour(process: str, loader: str) -> None:
    """The daemon serves decoder layer 0's output projection as layer 1's too; shapes and digests fit."""
    held: dict[str, torch.Tensor] = {}

    def take(layer: ProcessedLayer) -> ProcessedLayer:
        if layer.name == "model.layers.0.self_attn.o_proj":
            held.update(layer.tensors)
        return with_tensors(layer, **held) if layer.name == "model.layers.1.self_attn.o_proj" else layer

    if process == "daemon":
        edit_processed(take)


@defect("processed_exact", Outcome.PROCESSED, MODEL_DEFECTS)
def bit_flipped_in_a_norm(process: str, loader: str) -> None:
    """The daemon alters one bit of the last norm before it digests what it serves."""
    original = loaders._checked_plain

    def flip(wanted: Any, tensor: torch.Tensor, checkpoint: Any) -> torch.Tensor:
        checked = original(wanted, tensor, checkpoint)
        if wanted.name == "model.norm.weight":
            checked.view(torch.uint8)[0] ^= 1
        return checked

    if process == "daemon":
        replace(loaders, "_checked_plain", flip)


@defect("outputs_exact", Outcome.BYTES, MODEL_DEFECTS)
def layer_altered_at_one_step(process: str, loader: str) -> None:
    """The attached engine's decoder layer 1 is off in its last bits at step 3, and at no other."""
    calls: list[None] = []

    def alter(module: nn.Module, inputs: object, output: Any) -> Any:
        calls.append(None)
        if len(calls) != 4:
            return None
        states = output[0] if isinstance(output, tuple) else output
        altered = (states.view(torch.int16) ^ 1).view(states.dtype)
        return (altered, *output[1:]) if isinstance(output, tuple) else altered

    edit_attached_model(
        process, lambda model: model.get_submodule("model.layers.1").register_forward_hook(alter)
    )


@defect("outputs_exact", Outcome.BYTES, MODEL_DEFECTS)
def logits_altered_at_one_step(process: str, loader: str) -> None:
    """The cache loader's engines have one other bit in the logits of step 2; the token is the same."""

    def alter(results: dict[str, torch.Tensor]) -> None:
        results["logits.2"].view(torch.int16)[1, 0, 0] ^= 1

    if loader == "cache":
        _edit_results(process, alter)


@defect("contents_preserved", Outcome.MUTATED, MODEL_DEFECTS)
def store_into_the_embedding(process: str, loader: str) -> None:
    """The attached engine stores one byte into the daemon's embedding once it has run."""

    def store(model: nn.Module) -> None:
        weight = model.get_submodule("model.embed_tokens").get_parameter("weight")
        _edit_results(process, lambda results: weight.detach().view(torch.uint8)[0].bitwise_xor_(1))

    edit_attached_model(process, store)


@defect("outputs_exact", Outcome.BYTES, MODEL_DEFECTS)
def another_token_taken(process: str, loader: str) -> None:
    """Every engine reports another token than the likeliest: equal four times, and wrong four times."""
    _edit_results(process, lambda results: results["ids"][0, 0].bitwise_xor_(1))


@defect("outputs_exact", Outcome.INCOMPLETE, MODEL_DEFECTS)
def logits_not_a_number(process: str, loader: str) -> None:
    """Every engine's logits are NaN: equal in every byte, and worth nothing."""
    _edit_results(process, lambda results: results["logits.0"].fill_(torch.nan))


@defect("outputs_exact", Outcome.SHAPE, MODEL_DEFECTS)
def a_step_too_many(process: str, loader: str) -> None:
    """Every engine hands in the logits of a step that nobody asked for."""
    _edit_results(process, lambda results: results.update({"logits.16": results["logits.15"].clone()}))


@defect("outputs_exact", Outcome.SHAPE, MODEL_DEFECTS)
def hidden_states_left_out(process: str, loader: str) -> None:
    """Every engine digests no hidden state: equal in every byte of none."""
    _edit_results(process, lambda results: results.update(hidden=results["hidden"][:, :, :0].clone()))


@defect("outputs_exact", Outcome.BYTES, MODEL_DEFECTS)
def prompts_exchanged(process: str, loader: str) -> None:
    """Every engine runs each prompt in the other's place: equal four times, and not what was asked."""
    _edit_inputs(process, lambda ids: ids.flip(0) if ids.shape[1] > 1 else ids)


@defect("outputs_exact", Outcome.BYTES, MODEL_DEFECTS)
def another_token_fed_back(process: str, loader: str) -> None:
    """Every engine goes on from another token than it took and reports."""
    _edit_inputs(process, lambda ids: ids ^ 1 if ids.shape[1] == 1 else ids)


@defect("layout_restored", Outcome.LAYOUT, MODEL_DEFECTS)
def determinism_left_off(process: str, loader: str) -> None:
    """The cache loader's engines allow algorithms that are not deterministic; every output is right."""
    if process != "engine" or loader != "cache":
        return
    from ..models import work

    original = work.make_deterministic

    def make() -> dict[str, str]:
        flags = original()
        torch.use_deterministic_algorithms(False)
        return flags | {"deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled())}

    replace(work, "make_deterministic", make)


@defect("outputs_exact", Outcome.INCOMPLETE, MODEL_DEFECTS)
def last_step_left_out(process: str, loader: str) -> None:
    """Every engine stops a token early."""
    _edit_results(process, lambda results: results.pop("logits.15"))


@defect("kernel_witnessed", Outcome.WRONG_KERNEL, MODEL_DEFECTS)
def a_product_for_each_projection(process: str, loader: str) -> None:
    """Every engine multiplies the whole fused layer for each of its projections; every output is right."""
    if process != "engine":
        return
    from ..models.shims import FusedGroup

    original = FusedGroup.project

    def project(self: FusedGroup, index: int, x: torch.Tensor) -> torch.Tensor:
        if index:
            self._multiply(x)
        return original(self, index, x)

    replace(FusedGroup, "project", project)
