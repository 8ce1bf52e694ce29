"""`python -m loadproof.harness.models CHECKPOINT`: can it be proved? JSON on stdout; reads no weight."""

import importlib.util
import json
import sys
from pathlib import Path

from ..errors import InvalidInput, LoadproofError
from ..model_spec import PROMPTS
from .contents import read_contents
from .prompts import make_prompts


def main(checkpoint: Path) -> None:
    """Print `error` (null where it can be proved) and `notes`, what is left out."""
    try:
        contents = read_contents(checkpoint)
        _require_transformers()
        from .build import require_fitting, skeleton

        model = skeleton(checkpoint, contents.architecture)
        require_fitting(model, contents.architecture, contents.layers, contents.plain, checkpoint)
        prompts = make_prompts(checkpoint, PROMPTS, contents.vocabulary)
    except LoadproofError as error:
        print(json.dumps({"error": f"{error.type_name}: {error}", "notes": []}))
        return
    notes = list(contents.notes)
    if prompts.tokenizer is None:
        notes.append("The checkpoint has no tokenizer.json: fixed token ids stand for the prompts.")
    print(json.dumps({"error": None, "notes": notes}))


def _require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise InvalidInput(
            "package 'transformers'",
            expected="version 5 or newer: whole models are transformers models",
            found="none",
            remedy="Install it, as in `pip install transformers`.",
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
