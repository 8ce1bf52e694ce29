"""Llama, and what is built like it: SmolLM2, TinyLlama, Yi."""

from .architecture import Architecture

LLAMA = Architecture(model_type="llama", causal_lm="LlamaForCausalLM")
