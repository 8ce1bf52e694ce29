"""The committed JSON Schema is the models', and evidence holds to it by another hand than pydantic's."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadproof.harness.chain import as_json, case_digest, digest
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import SCHEMA_VERSION, CheckRecord
from loadproof.harness.schema import schema_text

from .sealed_runs import write_run
from .test_report_samples import case_record, failing_record

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "docs" / "schema" / f"evidence-v{SCHEMA_VERSION}.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(COMMITTED.read_text()))


def test_committed_schema_is_what_the_models_give() -> None:
    assert COMMITTED.read_text() == schema_text(), (
        f"Make it again: python -m loadproof.harness.schema > {COMMITTED.relative_to(ROOT)}; and where a "
        "file of the old schema would not hold to the new one, count SCHEMA_VERSION up."
    )


def test_run_and_evidence_on_disk_hold_to_the_schema(tmp_path: Path) -> None:
    run = write_run(tmp_path, [case_record("a"), failing_record("b")], missing=("c",))
    files = [run / "run.json", *sorted((run / "evidence").iterdir())]
    lines = (run / "evidence.jsonl").read_text().splitlines()
    documents = [json.loads(text) for text in [*(file.read_text() for file in files), *lines]]
    assert len(documents) == 5
    for document in documents:
        VALIDATOR.validate(document)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"schema_version": 2}, id="version"),
        pytest.param({"verdict": "FINE"}, id="word"),
        pytest.param({"surprise": 1}, id="unknown-field"),
        pytest.param({"duration_ms": "long"}, id="type"),
    ],
)
def test_schema_refuses_what_the_models_refuse(change: dict[str, Any]) -> None:
    document = as_json(case_record("a"))
    VALIDATOR.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document | change)


def test_digest_is_of_rfc_8785_text() -> None:
    # printf '{"a":[1,1.5,1e+21,"\xc3\xa9\\n"],"b":null}' | sha256sum
    value = {"b": None, "a": [1.0, 1.5, 1e21, "é\n"]}
    assert digest(value) == "d01f7e15b1d47d7a67c0325cf789ad34e7c4029d629b35778f7c9dcb9c730162"


def test_long_integers_that_a_double_would_confuse_have_digests_of_their_own() -> None:
    assert len({digest({"offset": 2**60 + n}) for n in range(3)}) == 3
    assert digest(2**53 - 1) != digest(str(2**53 - 1))


def test_digest_in_memory_is_the_digest_of_the_file_also_where_json_has_no_number() -> None:
    check = CheckRecord(name="n", verdict=Outcome.PASS, detail="d", evidence={"x": math.nan, "y": 1.0})
    record = case_record("a", checks=[check])
    assert case_digest(record) == digest(json.loads(record.model_dump_json(indent=1)))
