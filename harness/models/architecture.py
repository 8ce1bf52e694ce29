"""What an architecture is here: which projections of a decoder layer are fused, and what stays plain."""

from dataclasses import dataclass

QKV = ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj"))
OUT = ("self_attn.o_proj", ("o_proj",))
GATE_UP = ("mlp.gate_up_proj", ("gate_proj", "up_proj"))
DOWN = ("mlp.down_proj", ("down_proj",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family of transformers models. Paths are those of modules, in model and checkpoint alike."""

    model_type: str
    """As `config.json` spells it."""
    causal_lm: str
    """Class in transformers."""
    fused: tuple[tuple[str, tuple[str, ...]], ...] = (QKV, OUT, GATE_UP, DOWN)
    """Below a decoder layer: the fused layer's path, and its members' names in the order of concatenation.
    The members of one are called with one and the same tensor, in this order."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Below a decoder layer: modules that are used as the checkpoint stores them."""
    decoder: str = "model.layers"
    """The list of decoder layers."""
    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    """The output layer."""
    computed: tuple[str, ...] = ("model.rotary_emb",)
    """Modules whose buffers are computed from the config, and stored nowhere."""

    def fused_names(self, layers: int) -> set[str]:
        """Names of all layers that may be quantised, in a model of so many decoder layers."""
        below = {f"{self.decoder}.{i}.{name}" for i in range(layers) for name, _ in self.fused}
        return below | {self.head}

    def plain_modules(self, layers: int) -> set[str]:
        """Modules whose tensors may be used as stored: norms, embedding, and projections left unquantised."""
        leaves = [*self.norms]
        for name, members in self.fused:
            parent = name.rpartition(".")[0]
            leaves += [f"{parent}.{member}" for member in members]
        below = {f"{self.decoder}.{i}.{leaf}" for i in range(layers) for leaf in leaves}
        return below | {self.embedding, self.final_norm, self.head}
