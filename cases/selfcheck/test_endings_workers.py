"""Runs whose own processes die or hang: xdist workers, tests, engines, the forkserver, pytest itself."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadproof.cases.selfcheck.endings import FIRST, REAL, ROOT, SECOND, light, render, start
from loadproof.fixtures.scheduler import CaseScheduling
from loadproof.harness.matrix import cases
from loadproof.harness.outcome import Outcome

# In the second case that a process proves, with its daemon and an engine alive.
AT_SECOND_PROOF = """
import os, signal, time
def pytest_runtest_setup(item):
    from loadproof.harness.runner import Runner
    if hasattr(Runner, "plain"):
        return
    Runner.plain, seen_daemons = Runner._write_probe, []
    def probe(self):
        seen_daemons.append(self._socket)
        if len(set(seen_daemons)) == 2 and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            die()
        return self.plain()
    Runner._write_probe = probe
"""
KILLED = AT_SECOND_PROOF + "def die(): os.kill(os.getpid(), signal.SIGKILL)\n"
HUNG = f"""
import pytest, time
def pytest_collection_modifyitems(items):
    for item in items:
        if {SECOND!r} in item.nodeid:
            item.add_marker(pytest.mark.timeout(1))
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if {SECOND!r} in item.nodeid:
        time.sleep(60)
"""


class Node:
    """A worker, as xdist's scheduler sees it."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler(nodes: list[Node], nodeids: list[str], models: Sequence[str] = ()) -> CaseScheduling:
    options = SimpleNamespace(
        loadscopereorder=False, debug=False, tx=[f"{len(nodes)}*popen"], numprocesses=len(nodes)
    )
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: getattr(options, name, None))
    made = CaseScheduling(config)
    made.case_ids, made.model_ids = frozenset(CASE_IDS), frozenset(models)
    for node in nodes:
        made.add_node(node)
        made.add_node_collection(node, nodeids)
    made.schedule()
    return made


def finish(made: CaseScheduling, node: Node, count: int) -> None:
    for done in range(count):
        made.mark_test_complete(node, node.given[done])


CASE_IDS = [case.id for case in cases("synthetic-layers", transport=None, kernel=None)[:4]]
WHOLE_CASES = [f"t.py::test_{n}[{case_id}]" for case_id in CASE_IDS for n in range(3)]
LONE_TESTS = [f"t.py::test_{n}" for n in range(6)]


@pytest.mark.parametrize("nodeids", [WHOLE_CASES, LONE_TESTS], ids=["cases", "lone-tests"])
@pytest.mark.parametrize("done", range(4))
def test_replacement_of_a_dead_worker_is_given_what_was_left(nodeids: list[str], done: int) -> None:
    dying, other = Node("gw0"), Node("gw1")
    made = scheduler([dying, other], nodeids)
    finish(made, dying, done)
    # The other one has been told that nothing follows: all that is left falls to the replacement.
    other.shutting_down = True
    crashed = made.remove_node(dying)
    assert crashed == nodeids[dying.given[done]]
    replacement = Node("gw2")
    made.add_node(replacement)
    made.add_node_collection(replacement, nodeids)
    made.schedule()
    ran = 0
    while ran < len(replacement.given):
        # A worker starts a test only once it knows the next, or that there is none.
        if ran + 1 == len(replacement.given) and not (replacement.shutting_down or made.tests_finished):
            break
        made.mark_test_complete(replacement, replacement.given[ran])
        ran += 1
    assert not made.workqueue
    assert made._split_scope(crashed) not in {made._split_scope(nodeids[i]) for i in replacement.given}
    reached = {made._split_scope(nodeids[i]) for i in dying.given + other.given + replacement.given}
    assert reached == {made._split_scope(nodeid) for nodeid in nodeids}
    assert not set(dying.given[:done]) & set(replacement.given)


def test_whole_models_go_to_one_worker_while_there_is_other_work() -> None:
    models = [CASE_IDS[1], CASE_IDS[2]]
    nodeids = WHOLE_CASES + [f"{test}[lone]" for test in LONE_TESTS]
    nodes = [Node("gw0"), Node("gw1"), Node("gw2")]
    made = scheduler(nodes, nodeids, models)
    ran: list[tuple[str, str]] = []
    progress = dict.fromkeys(nodes, 0)
    while any(progress[node] < len(node.given) for node in nodes):
        for node in nodes:
            if progress[node] < len(node.given):
                index = node.given[progress[node]]
                ran.append((node.gateway.id, nodeids[index]))
                progress[node] += 1
                made.mark_test_complete(node, index)
    assert sorted(nodeid for _, nodeid in ran) == sorted(nodeids)
    assert {name for name, nodeid in ran if nodeid.partition("[")[2][:-1] in models} == {"gw0"}
    assert ran[0][1].partition("[")[2][:-1] == models[0]


def test_models_alone_are_shared_out() -> None:
    nodes = [Node("gw0"), Node("gw1")]
    scheduler(nodes, WHOLE_CASES, CASE_IDS)
    assert all(node.given for node in nodes)


def test_every_worker_has_noted_the_plan_before_the_first_test(tmp_path: Path) -> None:
    plant = """
import os, time
from pathlib import Path
noted = Path(os.environ["TMPDIR"])
def pytest_configure():
    from loadproof.fixtures.run import Run
    def plan(self, *arguments, plan=Run.plan):
        worker = os.environ["PYTEST_XDIST_WORKER"]
        time.sleep(2 if worker == "gw1" else 0)
        plan(self, *arguments)
        (noted / f"noted-{worker}").touch()
    Run.plan = plan
def pytest_runtest_setup(item):
    assert len(list(noted.glob("noted-*"))) == 2
"""
    run = start(tmp_path, *light(tmp_path), "-n", "2", plant=plant)
    code, text = run.end()
    assert code == 0, text


def test_killed_worker_is_named_and_the_other_cases_run(tmp_path: Path) -> None:
    run = start(tmp_path, *REAL, "-n", "1", plant=KILLED)
    code, text = run.end()
    assert code == 1, text
    run.require_reports()
    # The killed worker itself could not remove its scratch folder.
    run.require_nothing_left(folders=False)
    assert run.verdicts() == {FIRST: "PASS", SECOND: "INCOMPLETE"}
    assert text.count("VERIFIED") == 1
    named = [message for message in run.record()["messages"] if "gw0 died in" in message]
    assert len(named) == 1
    assert SECOND in named[0]


def test_killed_worker_that_is_not_replaced_ends_the_run(tmp_path: Path) -> None:
    plant = """
import os, signal
def pytest_runtest_call(item):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and item.name.startswith("test_two"):
        os.kill(os.getpid(), signal.SIGKILL)
"""
    run = start(tmp_path, *light(tmp_path), "-n", "2", "--max-worker-restart=0", plant=plant)
    code, text = run.end()
    assert code != 0
    run.require_reports()
    run.require_nothing_left()
    assert run.record()["verdict"] == "INCOMPLETE"
    assert "Worker gw0 died in" in text


def test_worker_killed_among_many_cases_costs_only_its_case(tmp_path: Path) -> None:
    plant = """
import os, signal
def pytest_runtest_setup(item):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and item.session.testsfailed == 0:
        count = item.config.count = getattr(item.config, "count", 0) + 1
        if count == 7:
            os.kill(os.getpid(), signal.SIGKILL)
"""
    run = start(tmp_path, *light(tmp_path), "-n", "2", plant=plant)
    code, text = run.end()
    assert code == 1, text
    run.require_reports()
    verdicts = list(run.verdicts().values())
    assert (verdicts.count("PASS"), verdicts.count("INCOMPLETE")) == (len(verdicts) - 1, 1)
    assert text.count("VERIFIED") == len(verdicts) - 1


def test_hung_test_in_a_worker_ends_the_worker_not_the_run(tmp_path: Path) -> None:
    run = start(tmp_path, *light(tmp_path), "-n", "1", plant=HUNG)
    code, text = run.end()
    assert code == 1, text
    run.require_reports()
    run.require_nothing_left()
    verdicts = run.verdicts()
    assert verdicts.pop(SECOND) == "INCOMPLETE"
    assert set(verdicts.values()) == {"PASS"}


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_pytest_that_dies_leaves_what_can_be_rendered(tmp_path: Path, how: str) -> None:
    # pytest-timeout ends a hung test's process on the spot, as a signal would.
    killed = how == "killed"
    selection, plant = (REAL, KILLED) if killed else (light(tmp_path), HUNG)
    run = start(tmp_path, *selection, plant=plant)
    code, text = run.end()
    assert code == (-signal.SIGKILL if killed else 1), text
    assert f"evidence goes to {os.path.relpath(run.out, ROOT)}" in text
    run.require_nothing_left(2.0, folders=False)
    assert {file.name for file in run.out.iterdir()} == {"planned.json", "evidence"}
    status, report = render(run)
    assert status == 0, report
    assert "INCOMPLETE" in report
    assert "did not end in order" in report
    assert SECOND in report


def test_hung_engine_is_named_and_the_other_cases_run(tmp_path: Path) -> None:
    plant = f"""
from dataclasses import replace
def pytest_runtest_setup(item):
    from loadproof.harness.proof import Prover
    if not hasattr(Prover, "plain"):
        Prover.plain = Prover.prove
        Prover.prove = lambda self, request: self.plain(
            replace(request, defect="hang", phase_seconds=2.0) if request.case.id == {FIRST!r} else request)
"""
    run = start(tmp_path, *REAL, plant=plant)
    code, text = run.end()
    assert code == 1, text
    assert run.verdicts() == {FIRST: "TIMEOUT", SECOND: "PASS"}
    run.require_reports()
    run.require_nothing_left()


def test_killed_forkserver_is_an_outcome_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadproof.cases.selfcheck.test_defects import prove
    from loadproof.harness.proof import Prover
    from loadproof.harness.runner import Runner

    with Prover() as prover, monkeypatch.context() as planted:
        original = Runner._write_probe

        def kill(self: Runner) -> str:
            os.kill(prover._forkserver._server.process.pid, signal.SIGKILL)
            return original(self)

        planted.setattr(Runner, "_write_probe", kill)
        record = prove(prover, tmp_path / "killed", None)
        ends = {name: route.outcome for name, route in record.routes.items()}
        assert (ends["ordinary"], ends["fallback"]) == (Outcome.PASS, Outcome.PASS)
        assert {ends["ipc"], ends["ipc-repeat"]} <= {Outcome.CRASHED, Outcome.INFRA}
        assert all(record.routes[name].error for name in ("ipc", "ipc-repeat"))
        planted.undo()
        assert prove(prover, tmp_path / "after", None).verdict is Outcome.PASS
