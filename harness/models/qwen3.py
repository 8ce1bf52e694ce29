"""Qwen3 without experts: a norm over each head of q and k."""

from .architecture import Architecture

QWEN3 = Architecture(
    model_type="qwen3",
    causal_lm="Qwen3ForCausalLM",
    norms=("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"),
)
