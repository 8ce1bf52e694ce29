"""The evidence's JSON Schema, made from the models: `python -m loadproof.harness.schema` prints it."""

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from .record import SCHEMA_VERSION, CaseRecord, RunRecord


def evidence_schema() -> dict[str, Any]:
    """A schema for `run.json`, for `evidence/<case-id>.json` and for each line of `evidence.jsonl`."""
    _, definitions = models_json_schema([(RunRecord, "validation"), (CaseRecord, "validation")])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"loadproof evidence, version {SCHEMA_VERSION}",
        "anyOf": [{"$ref": f"#/$defs/{model.__name__}"} for model in (RunRecord, CaseRecord)],
        **definitions,
    }


def schema_text() -> str:
    """The text of `docs/schema/evidence-v<version>.json`."""
    return json.dumps(evidence_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
