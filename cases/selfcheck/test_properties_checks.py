"""Checks on generated observations: right ones pass, wrong outputs do not, garbage is a verdict."""

import copy
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from loadproof.harness.checkpoint.layers import ProjectionTensors
from loadproof.harness.checks import CHECKS, case_verdict, run_checks
from loadproof.harness.checks.arithmetic import gemm_bounded
from loadproof.harness.checks.verdict import Tally
from loadproof.harness.engine import describe, digests, run_layer, stored
from loadproof.harness.formats import FORMATS
from loadproof.harness.inputs import make_inputs
from loadproof.harness.kernels.reference import ReferenceKernel
from loadproof.harness.layers import FusedFp8Linear
from loadproof.harness.loaders import Loaded
from loadproof.harness.observation import CaseObservation, RouteObservation
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import DaemonRecord
from loadproof.harness.routes import ROUTES
from loadproof.harness.spec import CaseSpec, LayerSpec, Projection, ProjectionKind, Scheme, SyntheticSource

from .strategies import any_codes, examples, json_values, layers_with_tensors, tensors

Drawn = tuple[LayerSpec, list[ProjectionTensors]]
ALLOCATION = "memfd:0:1:2"


def observed(layer: LayerSpec, projections: list[ProjectionTensors], m: int = 2) -> CaseObservation:
    """What four right engines and a right daemon would have shown."""
    case = CaseSpec(
        layer=layer,
        projection=ProjectionKind.PLAIN,
        source=SyntheticSource(seed=0),
        transport="memfd",
        m_values=(m,),
    )
    inputs = make_inputs(case, projections)
    processed = FORMATS[layer.scheme].process(layer, projections)
    kernel = ReferenceKernel()
    results = run_layer(FusedFp8Linear(processed, kernel), inputs) | stored(processed)
    loaded = Loaded(layers=[processed], route_taken="disk")
    held = describe(loaded)["tensors"]
    placed = [t | {"allocation": ALLOCATION, "offset": 512 * i} for i, t in enumerate(held)]
    routes = {
        route.name: RouteObservation(
            route=route,
            outcome=Outcome.PASS,
            decoy=route.decoy,
            nonce="n" if route.shares else None,
            files_opened=[] if route.shares else ["model.safetensors"],
            daemon_digests=digests(loaded.tensors) if route.shares else None,
            attachments=1 if route.shares else None,
            results=dict(results),
            reported={
                "route_taken": route.must_observe,
                "layouts": {processed.name: processed.layout.to_json()},
                "tensors": copy.deepcopy(placed if route.shares else held),
                "mapped_bytes": 4096 if route.shares else 0,
                "daemon_pid": 7 if route.shares else None,
                "probe": "n",
                "daemon_lost": False,
                "kernels": list(kernel.launched),
                "tensors_after": digests(loaded.tensors),
                "places_after": {
                    t["name"]: [t["allocation"], t["offset"]] for t in (placed if route.shares else held)
                },
            },
        )
        for route in ROUTES
    }
    daemon = DaemonRecord(pid=7, allocation=ALLOCATION, tensors=placed)  # type: ignore[arg-type]
    return CaseObservation(
        case=case,
        routes=routes,
        daemon=daemon,
        projections=projections,
        inputs=inputs,
        kernel=ReferenceKernel,
    )


def bound_verdict(seen: CaseObservation) -> Outcome:
    tally = Tally("gemm_bounded")
    return tally.record(gemm_bounded(seen, tally)).verdict


def single(width: int, k: int, scale: float, out_dtype: str = "bfloat16") -> Drawn:
    part = Projection(name="p", logical_width=width)
    layer = LayerSpec(name="l", scheme=Scheme.FP8, projections=(part,), logical_k=k, out_dtype=out_dtype)
    return layer, [
        ProjectionTensors(
            projection=part,
            weight=any_codes(1, width, k),
            weight_scale=torch.tensor(scale),
            input_scale=torch.tensor(scale),
            bias=None,
        )
    ]


@given(layers_with_tensors(), st.integers(1, 4))
@examples(40)
def test_right_observation_passes_every_check(drawn: Drawn, m: int) -> None:
    checks = run_checks(observed(*drawn, m))
    assert {c.name: c.detail for c in checks if c.verdict is not Outcome.PASS} == {}
    assert [c.name for c in checks] == list(CHECKS)


@given(layers_with_tensors(), st.data())
@examples(30)
def test_output_three_steps_off_is_outside_the_bound(drawn: Drawn, data: st.DataObject) -> None:
    seen = observed(*drawn)
    output = seen.routes["ipc"].results["output.2"].clone()
    at = data.draw(st.integers(0, output.numel() - 1))
    bits = output.view(-1).view(torch.int16)
    assume(output.isfinite().all())
    bits[at] += data.draw(st.sampled_from([3, -3])) if bits[at] & 0x7FFF > 3 else 3
    assume(output.isfinite().all())
    seen.routes["ipc"].results["output.2"] = output
    assert bound_verdict(seen) is Outcome.BOUND


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_output_that_is_no_number_is_outside_the_bound(value: float) -> None:
    seen = observed(*single(4, 4, 0.01))
    seen.routes["ipc"].results["output.2"] = torch.full_like(seen.routes["ipc"].results["output.2"], value)
    assert bound_verdict(seen) is Outcome.BOUND


def test_output_beyond_float16_is_infinite_and_within_the_bound() -> None:
    seen = observed(*single(4, 40, 100.0, "float16"))
    output = seen.routes["ipc"].results["output.2"]
    assert output.isinf().any()
    assert bound_verdict(seen) is Outcome.PASS
    seen.routes["ipc"].results["output.2"] = -output
    assert bound_verdict(seen) is Outcome.BOUND


GOOD = observed(*single(17, 33, 0.01))
REPORTED = sorted(GOOD.routes["ipc"].reported)
RESULTS = sorted(GOOD.routes["ipc"].results)


def altered(route: str, **fields: Any) -> CaseObservation:
    before = GOOD.routes[route]
    changed = RouteObservation(**{n: getattr(before, n) for n in before.__dataclass_fields__} | fields)
    return replace(GOOD, routes=GOOD.routes | {route: changed})


@pytest.mark.parametrize("name", REPORTED)
@given(route=st.sampled_from([r.name for r in ROUTES]), value=json_values)
@examples(60)
def test_garbled_report_is_a_verdict(name: str, route: str, value: Any) -> None:
    reported = GOOD.routes[route].reported
    # Where memory is not shared, nothing is asked of the daemon's page.
    assume(value != reported[name] and not (name == "probe" and "ipc" not in route))
    checks = run_checks(altered(route, reported=reported | {name: value}))
    assert len(checks) == len(CHECKS)
    if name == "mapped_bytes":
        # To Python, JSON's false is the 0 of a disk route; how much is mapped is an engine's own figure.
        return
    assert case_verdict(checks) is not Outcome.PASS


@pytest.mark.parametrize("name", RESULTS)
@given(route=st.sampled_from([r.name for r in ROUTES]), value=tensors())
@examples(60)
def test_garbled_result_is_a_verdict(name: str, route: str, value: torch.Tensor) -> None:
    results = GOOD.routes[route].results
    checks = run_checks(altered(route, results=results | {name: value}))
    assert len(checks) == len(CHECKS)
    same = (value.shape, value.dtype) == (results[name].shape, results[name].dtype)
    assert case_verdict(checks) is not Outcome.PASS or same


@pytest.mark.parametrize("missing", [*REPORTED, *RESULTS])
def test_what_is_missing_is_incomplete(missing: str) -> None:
    before = GOOD.routes["ipc"]
    reported = {n: v for n, v in before.reported.items() if n != missing}
    results = {n: t for n, t in before.results.items() if n != missing}
    checks = run_checks(altered("ipc", reported=reported, results=results))
    assert case_verdict(checks) in (Outcome.INCOMPLETE, Outcome.PROCESSED)


def verdict_of(seen: CaseObservation, name: str) -> Outcome:
    return next(check.verdict for check in run_checks(seen) if check.name == name)


@pytest.mark.parametrize(
    ("lost", "exit_status", "verdict"),
    [
        (True, -signal.SIGKILL, Outcome.PASS),
        (True, 0, Outcome.INCOMPLETE),
        (False, -signal.SIGKILL, Outcome.WRONG_ROUTE),
    ],
)
def test_daemon_that_is_to_be_killed_is_killed_and_missed(
    lost: bool, exit_status: int, verdict: Outcome
) -> None:
    reported = GOOD.routes["ipc-repeat"].reported | {"daemon_lost": lost}
    seen = altered("ipc-repeat", reported=reported, daemon_killed=True)
    seen.daemon = seen.daemon.model_copy(update={"exit": exit_status})
    assert verdict_of(seen, "route_witnessed") is verdict


@pytest.mark.parametrize("digest", ["sha256", "fingerprint"])
def test_either_digest_alone_tells_of_changed_bytes(digest: str) -> None:
    reported = copy.deepcopy(GOOD.routes["ipc"].reported)
    reported["tensors"][0][digest] = "0" * len(reported["tensors"][0][digest])
    assert verdict_of(altered("ipc", reported=reported), "contents_preserved") is Outcome.MUTATED
