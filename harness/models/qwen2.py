"""Qwen2 and Qwen2.5: biases on q, k and v, which the checkpoint tells."""

from .architecture import Architecture

QWEN2 = Architecture(model_type="qwen2", causal_lm="Qwen2ForCausalLM")
