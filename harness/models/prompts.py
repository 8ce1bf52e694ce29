"""Prompts as token ids: by the checkpoint's own tokenizer, or fixed ids where it has none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..checkpoint.files import read_small
from ..errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
FIXED_LENGTH = 6
FIXED_STEP = 7919
"""A prime, so that fixed ids spread over any vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """What a model is asked, and how to read its answer."""

    ids: torch.Tensor
    """int64 [P, L]."""
    tokenizer: "Tokenizer | None"

    def text(self, ids: Sequence[int]) -> str | None:
        """What these tokens say, special ones included; None without a tokenizer."""
        return None if self.tokenizer is None else str(self.tokenizer.decode(ids, skip_special_tokens=False))


def make_prompts(checkpoint: Path, texts: Sequence[str], vocabulary: int) -> Prompts:
    """Tokenise, and cut all to the shortest one's tokens.

    Raises:
        MalformedCheckpoint: a tokenizer that is no regular file, or too large for one.
        ConfigError: one that cannot be used, or that gives ids beyond the vocabulary.
    """
    file = checkpoint / TOKENIZER
    try:
        content = read_small(file)
    except FileNotFoundError:
        ids = [
            [(i * FIXED_STEP + 1 + p) % vocabulary for i in range(FIXED_LENGTH)] for p in range(len(texts))
        ]
        return Prompts(ids=torch.tensor(ids), tokenizer=None)
    # Comes with transformers, which layers do without.
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        encoded = [tokenizer.encode(text).ids for text in texts]
        for each in encoded:
            tokenizer.decode(each)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and its panics are no Exception
        raise _unusable(file, "a tokenizer that the tokenizers library reads", error) from error
    length = min(map(len, encoded))
    ids = [each[:length] for each in encoded]
    if not length or max(map(max, ids)) >= vocabulary:
        raise _unusable(file, f"some token ids below {vocabulary} for each prompt", ids)
    return Prompts(ids=torch.tensor(ids), tokenizer=tokenizer)


def _unusable(file: Path, expected: str, found: object) -> ConfigError:
    return ConfigError(
        file, expected=expected, found=str(found)[:200], remedy="Copy it from the export, or remove it."
    )
