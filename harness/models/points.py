"""Where a model's hidden states are looked at."""

from .architecture import Architecture


def points(architecture: Architecture, decoder_layers: int) -> list[str]:
    """Module paths at whose outputs hidden states are digested, in the order in which they are computed."""
    decoder = [f"{architecture.decoder}.{i}" for i in range(decoder_layers)]
    return [architecture.embedding, *decoder, architecture.final_norm]
