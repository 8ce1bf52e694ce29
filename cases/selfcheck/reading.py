"""What a whole pass over a checkpoint gives, for tests that want all of it at once."""

from collections.abc import Iterable

import torch

from loadproof.harness.checkpoint.reader import CheckpointReader


def read_digested(reader: CheckpointReader, names: Iterable[str]) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors, and the content digest of the pass that read them."""
    return dict(reader.stream(names)), reader.content
