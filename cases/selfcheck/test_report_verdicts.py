"""The three verdicts of a route: worked out from the record, and never better than the check's word."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from loadproof.cases.selfcheck.test_report_samples import case_record
from loadproof.harness.backends import BACKENDS
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, CheckRecord
from loadproof.harness.routes import ROUTES
from loadproof.reports.verdicts import RouteVerdicts, route_verdicts

if TYPE_CHECKING:
    from loadproof.harness.proof import Prover

PASS = Outcome.PASS
MANIFEST = "a" * 64


def verdicts(case: CaseRecord) -> dict[str, RouteVerdicts]:
    return route_verdicts(case)


def changed(route: str, **fields: Any) -> CaseRecord:
    case = case_record("a")
    daemon = case.daemon.model_copy(update={"manifest": MANIFEST})
    routes = case.routes | {route: case.routes[route].model_copy(update=fields)}
    return case.model_copy(update={"routes": routes, "daemon": daemon})


def with_check(case: CaseRecord, name: str, verdict: Outcome, **evidence: Any) -> CaseRecord:
    check = CheckRecord(name=name, verdict=verdict, detail="So.", evidence=evidence)
    return case.model_copy(update={"checks": [c if c.name != name else check for c in case.checks]})


def test_a_good_case_passes_in_all_three_on_every_route() -> None:
    found = verdicts(case_record("a"))
    assert set(found.values()) == {RouteVerdicts(PASS, PASS, PASS, PASS)}


@pytest.mark.parametrize(("defect", "part"), [(None, None), ("store-into-shared-memory", "contents")])
def test_what_a_real_run_records_is_what_the_verdicts_read(
    prover: "Prover", tmp_path: Path, defect: str | None, part: str | None
) -> None:
    from loadproof.harness.controls import control_case, control_request

    case = control_case("store-into-shared-memory", BACKENDS["cpu"], "reference")
    request = control_request(case, "store-into-shared-memory", tmp_path, "selfcheck", "selfcheck")
    record = prover.prove(dataclasses.replace(request, defect=defect))
    assert set(record.routes["ipc"].weights) == {"held", "after", "daemon"}
    failing = {
        (name, of)
        for name, found in verdicts(record).items()
        for of, verdict in found.parts.items()
        if verdict is not PASS
    }
    assert {of for name, of in failing if name == "ipc"} == ({part} if part else set())
    assert bool(failing) is bool(part)


def test_nothing_recorded_is_incomplete() -> None:
    assert {v.word for v in route_verdicts(None).values()} == {Outcome.INCOMPLETE}
    case = case_record("a")
    lost = case.model_copy(update={"routes": {n: r for n, r in case.routes.items() if n != "ipc"}})
    assert verdicts(lost)["ipc"].word is Outcome.INCOMPLETE
    assert verdicts(lost)["ipc-repeat"].word is PASS


def test_weights_elsewhere_are_not_shared_and_the_rest_is_untouched() -> None:
    private = case_record("a").routes["ordinary"].tensors
    found = verdicts(changed("ipc", tensors=private))
    assert found["ipc"] == RouteVerdicts(PASS, PASS, Outcome.NOT_SHARED, PASS)
    assert found["ipc-repeat"].shared is PASS


def test_a_loaded_engine_in_the_daemons_memory_is_not_as_due() -> None:
    served = case_record("a").routes["ipc"].tensors
    assert verdicts(changed("fallback", tensors=served))["fallback"].shared is Outcome.NOT_SHARED


def test_sharing_needs_the_nonce() -> None:
    witness = case_record("a").routes["ipc"].witness.model_copy(update={"probe": False})
    assert verdicts(changed("ipc", witness=witness))["ipc"].shared is Outcome.NOT_SHARED


@pytest.mark.parametrize("moment", ["held", "after", "daemon"])
def test_other_bytes_at_any_moment_are_mutated(moment: str) -> None:
    good = dict.fromkeys(("held", "after", "daemon"), MANIFEST)
    assert verdicts(changed("ipc", weights=good))["ipc"].contents is PASS
    assert verdicts(changed("ipc", weights=good | {moment: "0" * 64}))["ipc"].contents is Outcome.MUTATED
    assert verdicts(changed("ipc", weights={m: d for m, d in good.items() if m != moment}))[
        "ipc"
    ].contents is (Outcome.INCOMPLETE)


def test_the_check_is_believed_where_it_names_the_route() -> None:
    found = verdicts(with_check(case_record("a"), "pointers_shared", Outcome.NOT_SHARED, route="ipc"))
    assert {name: v.shared for name, v in found.items()} == {
        route.name: Outcome.NOT_SHARED if route.name == "ipc" else PASS for route in ROUTES
    }


def test_a_failure_that_names_no_route_leaves_every_route_in_doubt() -> None:
    found = verdicts(with_check(case_record("a"), "contents_preserved", Outcome.INCOMPLETE))
    assert {v.contents for v in found.values()} == {Outcome.INCOMPLETE}


def test_a_check_that_was_not_made_shows_nothing() -> None:
    case = case_record("a")
    case = case.model_copy(update={"checks": [c for c in case.checks if c.name != "outputs_exact"]})
    assert {v.outputs for v in verdicts(case).values()} == {Outcome.INCOMPLETE}
