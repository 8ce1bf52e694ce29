"""Tiny ModelOpt exports of random models, made on the CPU by `python real_exports.py FOLDER`.

A process of its own: importing ModelOpt takes seconds, patches torch, and prints.
"""

import copy
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYERS = 2
QUIET = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, int]] = {
    "llama": ("Llama", 16),
    "qwen2": ("Qwen2", 16),
    "qwen3": ("Qwen3", 32),
}
"""Family to the prefix of its classes and its head_dim; Qwen2 has q, k and v biases."""
TENSOR, CHANNEL = "FP8_DEFAULT_CFG", "FP8_PER_CHANNEL_PER_TOKEN_CFG"
CHOSEN = "model.layers.0.mlp.down_proj"
"""The linear that a recipe may fill with zeros, leave out, or quantise otherwise."""
Rule = dict[str, Any]
"""One entry of ModelOpt's `quant_cfg`; later ones win."""
LEFT_OUT: Rule = {"quantizer_name": f"*{CHOSEN}*", "enable": False}
PER_CHANNEL: tuple[Rule, ...] = (
    {"quantizer_name": f"*{CHOSEN}*weight_quantizer", "cfg": {"num_bits": (4, 3), "axis": 0}},
    {
        "quantizer_name": f"*{CHOSEN}*input_quantizer",
        "cfg": {"num_bits": (4, 3), "type": "dynamic", "block_sizes": {-1: None}},
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one checkpoint is made."""

    config: str
    """Name of a ModelOpt quantisation config."""
    family: str = "llama"
    kv: str | None = None
    """Name of a ModelOpt KV-cache config."""
    rules: tuple[Rule, ...] = ()
    zeroed: bool = False


RECIPES = {
    **{f"{family}-fp8": Recipe(family=family, config=TENSOR) for family in FAMILIES},
    **{f"{family}-per-channel": Recipe(family=family, config=CHANNEL) for family in FAMILIES},
    "kv-fp8": Recipe(family="qwen2", config=TENSOR, kv="FP8_KV_CFG"),
    "kv-per-channel": Recipe(family="qwen3", config=CHANNEL, kv="FP8_KV_CFG"),
    "zeroed-fp8": Recipe(config=TENSOR, zeroed=True),
    "zeroed-per-channel": Recipe(config=CHANNEL, zeroed=True),
    "left-out": Recipe(config=TENSOR, rules=(LEFT_OUT,)),
    "mixed": Recipe(config=TENSOR, rules=PER_CHANNEL),
    "fp8-pb-wo": Recipe(config="FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"),
    "nvfp4": Recipe(config="NVFP4_DEFAULT_CFG"),
    "w4a16-nvfp4": Recipe(config="W4A16_NVFP4_CFG"),
    "w4a8-nvfp4-fp8": Recipe(config="W4A8_NVFP4_FP8_CFG"),
    "mxfp8": Recipe(config="MXFP8_DEFAULT_CFG"),
}


def exported(root: Path) -> Path:
    """The folder below `root` with one checkpoint a recipe; made once, whichever process asks first."""
    folder = root / "real-exports"
    with FileLock(root / "real-exports.lock"):
        if not folder.is_dir():
            scratch = root / "real-exports.part"
            done = subprocess.run(
                [sys.executable, __file__, str(scratch)],
                env=os.environ
                | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout
            scratch.rename(folder)
    return folder


def main(folder: Path) -> None:
    """Export every recipe below `folder`."""
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)  # the other worker needs its core
    for name, recipe in RECIPES.items():
        _export(recipe, folder / name)


def _export(recipe: Recipe, destination: Path) -> None:
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint

    def calibrate(model: "PreTrainedModel") -> None:
        with torch.inference_mode():
            model(input_ids=torch.arange(64).reshape(2, 32))

    config = copy.deepcopy(getattr(mtq, recipe.config))
    config["quant_cfg"] += copy.deepcopy(getattr(mtq, recipe.kv)["quant_cfg"]) if recipe.kv else []
    config["quant_cfg"] += recipe.rules
    model = _model(recipe.family)
    if recipe.zeroed:
        model.get_submodule(CHOSEN).weight.data.zero_()
    mtq.quantize(model, config, calibrate)
    export_hf_checkpoint(model, export_dir=destination)


def _model(family: str) -> "PreTrainedModel":
    import torch
    import transformers

    prefix, head_dim = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**SIZES, head_dim=head_dim)
    config.architectures = [f"{prefix}ForCausalLM"]  # ModelOpt looks here
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).to(torch.bfloat16).eval()
    for name, value in model.named_parameters():
        if name.endswith("_proj.bias"):
            torch.nn.init.normal_(value)  # they begin as zeros, which would not tell one from another
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]))
