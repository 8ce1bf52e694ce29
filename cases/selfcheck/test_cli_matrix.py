"""`loadproof matrix` and the pipelines that use it: held against schemas, against each other, and run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadproof.harness.matrix import cases
from loadproof.harness.shards import Shard
from loadproof.reports.jobs import LABELS
from loadproof.reports.markdown import render_markdown

from .sealed_runs import run_command, write_run
from .test_cli_merge import write_shard
from .test_report_samples import case_record, run_of

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "validate.yml"
EXAMPLES = {
    WORKFLOW: "vendor.github-workflows",
    ROOT / "docs" / "ci" / "gitlab-ci.yml": "vendor.gitlab-ci",
    ROOT / "docs" / "ci" / "buildkite.yml": "vendor.buildkite",
}
ALL_LABELS = [word for name in LABELS for word in ("--label", name)]


def plan(system: str, *options: object) -> Any:
    ended = run_command("matrix", "--format", system, *options)
    assert ended.status == 0, ended
    return json.loads(ended.stdout)


def refusal(*options: object) -> str:
    ended = run_command("matrix", *options)
    assert (ended.status, ended.stdout) == (2, ""), ended
    return ended.stderr


def check_schema(file: Path, schema: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_committed_pipelines_hold_to_their_systems_schema(file: Path) -> None:
    checked = check_schema(file, EXAMPLES[file])
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("system", ["gitlab", "buildkite"])
def test_planned_jobs_hold_to_their_systems_schema_and_a_broken_one_does_not(
    system: str, tmp_path: Path
) -> None:
    jobs = plan(system, *ALL_LABELS, "--minutes", 6)
    file, schema = (
        tmp_path / "jobs.json",
        {"gitlab": "vendor.gitlab-ci", "buildkite": "vendor.buildkite"}[system],
    )
    file.write_text(json.dumps(jobs))
    assert check_schema(file, schema).returncode == 0
    broken = jobs["steps"][0] if system == "buildkite" else jobs["merge-cpu"]
    broken["timeout_in_minutes" if system == "buildkite" else "script"] = {"no": "such thing"}
    file.write_text(json.dumps(jobs))
    assert check_schema(file, schema).returncode == 1


def test_each_label_is_covered_once_whatever_the_time() -> None:
    for minutes in (5, 6, 10, 30):
        include = plan("github", *ALL_LABELS, "--minutes", minutes)["matrix"]["include"]
        by_label: dict[str, list[Shard]] = {name: [] for name in LABELS}
        for job in include:
            by_label[job["label"]].append(Shard.parse(job["shard"]))
        for shards in by_label.values():
            assert [shard.index for shard in shards] == list(range(1, shards[0].count + 1))
            assert {shard.count for shard in shards} == {len(shards)}
        assert len({job["name"] for job in include}) == len(include)


def groups_in(*folders: str) -> set[str]:
    """Groups of the matrix that the tests in these folders run."""
    sources = [file.read_text() for folder in folders for file in (ROOT / "cases" / folder).glob("*.py")]
    return set(re.findall(r'loadproof_cases\("([^"]+)"\)', "".join(sources)))


def test_a_label_counts_the_cases_that_its_command_runs() -> None:
    validated = re.findall(r"cases/(\w+)", (ROOT / "validate").read_text())
    assert set(LABELS["cpu"].seconds) == groups_in(*validated)
    on_gpu = re.findall(r"cases/(\w+)", LABELS["h200"].command)
    assert set(LABELS["h200"].seconds) == groups_in(*on_gpu) - {"real-layers"}
    recorded = json.loads((ROOT / "docs" / "evidence" / "h200-2026-11-30" / "run.json").read_text())
    known = {case.id for group in LABELS["h200"].seconds for case in cases(group, device="cuda")}
    # The recorded run had whole models and SmolLM2 as well.
    assert known <= {entry["id"] for entry in recorded["cases"]}
    taken = recorded["duration_s"] / len(recorded["cases"])
    assert all(seconds >= taken for seconds in LABELS["h200"].seconds.values())


def test_jobs_fit_the_time() -> None:
    for name, label in LABELS.items():
        for minutes in (5, 6, 10):
            include = plan("github", "--label", name, "--minutes", minutes)["matrix"]["include"]
            taken = label.setup_seconds + label.total_seconds / len(include) + max(label.seconds.values())
            assert taken <= minutes * 60
            assert {job["timeout_minutes"] for job in include} == {2 * minutes}


def test_commands_ask_for_their_device_and_their_shard() -> None:
    for job in plan("github", *ALL_LABELS, "--minutes", 5)["matrix"]["include"]:
        assert f"--loadproof-shard {job['shard']} --loadproof-out {job['name']}" in job["command"]
        device = "--loadproof-device cpu" if job["label"] == "cpu" else "--loadproof-require cuda"
        assert device in job["command"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(("--format", "github", "--max-jobs", 257), "at most 256", id="github"),
        pytest.param(("--format", "gitlab", "--max-jobs", 201), "at most 200", id="gitlab"),
        pytest.param(("--format", "buildkite", "--max-jobs", 501), "at most 500", id="buildkite"),
        pytest.param(
            ("--format", "github", "--label", "h200", "--minutes", 2, "--max-jobs", 1),
            ", for jobs of 2 minutes, found 1. Allow more jobs",
            id="too-few",
        ),
        pytest.param(
            ("--format", "github", "--minutes", 4),
            "expected at least 5: set-up and one case take 270 s",
            id="no-time",
        ),
        pytest.param(("--format", "github", "--label", "h100"), "cpu, h200, l4", id="unknown"),
        pytest.param(("--format", "github", "--label", "l4", "--label", "l4"), "at most once", id="twice"),
        pytest.param(("--format", "travis"), "travis", id="system"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: tuple[object, ...], told: str) -> None:
    assert told in refusal(*options)


def test_gitlab_merges_after_all_shards_also_after_a_failed_one() -> None:
    jobs = plan("gitlab", *ALL_LABELS, "--minutes", 6)
    assert jobs["stages"] == ["validate", "merge"]
    shards = [job for job in jobs.values() if isinstance(job, dict) and job["stage"] == "validate"]
    assert {job["artifacts"]["when"] for job in shards} == {"always"}
    merges = {name: job for name, job in jobs.items() if name.startswith("merge-")}
    assert set(merges) == {f"merge-{name}" for name in LABELS}
    assert {(job["stage"], job["when"]) for job in merges.values()} == {("merge", "always")}


def test_buildkite_merge_waits_for_its_labels_shards() -> None:
    steps = {step["key"]: step for step in plan("buildkite", *ALL_LABELS, "--minutes", 5)["steps"]}
    assert steps["merge-h200"]["depends_on"] == ["loadproof-h200-1-of-2", "loadproof-h200-2-of-2"]
    assert steps["merge-h200"]["allow_dependency_failure"] is True
    assert steps["merge-h200"]["agents"] == {"queue": "cpu"}


@pytest.mark.parametrize(
    ("status", "report"), [(0, True), (1, True), (2, False)], ids=["equivalent", "not", "refused"]
)
def test_buildkite_annotates_with_every_report_that_there_is(
    tmp_path: Path, status: int, report: bool
) -> None:
    """The report of a run that is not EQUIVALENT is the one to be read."""
    (merge,) = [step for step in plan("buildkite")["steps"] if step["key"] == "merge-cpu"]
    (tmp_path / "tools").mkdir()
    write = "mkdir merged-cpu; echo told >merged-cpu/validation.md; " if report else ""
    scripts = {"tools/loadproof": f"{write}exit {status}", "buildkite-agent": "cat >annotation"}
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    # The upload turns $$ into $.
    script = merge["command"][-1].replace("$$", "$")
    ended = shell(script, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.returncode == status, ended.stderr
    assert (tmp_path / "annotation").exists() == report


# --- the workflow -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workflow() -> Any:
    return yaml.safe_load(WORKFLOW.read_text())


def used(job: Any, what: str) -> set[str]:
    """Names after `what.` in a job's expressions."""
    return set(re.findall(rf"\b{re.escape(what)}\.(\w+)", yaml.safe_dump(job, width=10_000)))


def test_workflow_uses_what_the_matrix_gives_and_leaves_nothing_out(workflow: Any) -> None:
    jobs = plan("github", *ALL_LABELS)
    keys = {frozenset(entry) for entry in jobs["matrix"]["include"]}
    assert keys == {frozenset(used(workflow["jobs"]["validate"], "matrix") | {"shard"})}
    assert used(workflow["jobs"]["merge"], "matrix") == set(jobs["merge"]) == {"label"}
    for name in ("validate", "merge"):
        text = workflow["jobs"][name]["strategy"]["matrix"]
        (key,) = re.findall(r"fromJSON\(needs\.plan\.outputs\.jobs\)\.(\w+)", text)
        assert key in jobs


def test_actions_are_pinned_by_hash_with_their_version() -> None:
    uses = re.findall(r"uses: (.*)", WORKFLOW.read_text())
    assert uses
    for line in uses:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)


def test_a_job_that_runs_again_replaces_its_artifact(workflow: Any) -> None:
    """A name that is taken fails the upload otherwise, and every job of a failed shard has left one."""
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    uploads = [step["with"] for step in steps if "upload-artifact" in step.get("uses", "")]
    assert uploads
    assert all(upload["overwrite"] is True for upload in uploads)


def test_another_repositorys_pull_request_gets_no_label_of_ours(workflow: Any) -> None:
    """Also where that repository is gone, and its `fork` with it."""
    (labels,) = [step["env"]["LABELS"] for step in workflow["jobs"]["plan"]["steps"] if "env" in step]
    assert "github.event.pull_request.head.repo.full_name != github.repository && 'cpu'" in labels


def test_every_job_of_the_workflow_has_a_bound_in_time_and_reads_only(workflow: Any) -> None:
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 takes the key `on` for true.
    assert "pull_request_target" not in workflow[True]


def steps_of(workflow: Any, job: str) -> dict[str, str]:
    """The shell of a job's steps, by name or id."""
    steps = workflow["jobs"][job]["steps"]
    return {step.get("name") or step.get("id", "only"): step["run"] for step in steps if "run" in step}


def shell(script: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """As GitHub runs it: bash -e with pipefail."""
    env = os.environ | {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"} | variables
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A working folder with this tree's tools."""
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    return tmp_path


@pytest.mark.parametrize("labels", ["cpu", "cpu h200 l4"], ids=["default", "three"])
def test_plan_step_leaves_one_line_that_the_next_jobs_read(
    workflow: Any, checkout: Path, labels: str
) -> None:
    ended = shell(steps_of(workflow, "plan")["plan"], checkout, LABELS=labels)
    assert ended.returncode == 0, ended.stderr
    (line,) = (checkout / "output").read_text().splitlines()
    jobs = json.loads(line.removeprefix("jobs="))
    assert jobs["merge"]["label"] == labels.split()


def test_room_and_validate_steps_run_their_commands_with_its_quotes(workflow: Any, checkout: Path) -> None:
    steps = steps_of(workflow, "validate")
    for job in plan("github", *ALL_LABELS)["matrix"]["include"]:
        room = shell(
            steps["Room"], checkout, COMMAND=job["room"].replace(" 4 0", " 0 0").replace("32 16", "0 0")
        )
        assert (room.returncode, room.stderr) == (0, "")
        # A stand-in that prints its arguments, in the place of what is started.
        told = re.sub(r"^(\S+=\S+ )?\S+", r"printf '%s\\n'", job["command"], count=1)
        arguments = shell(steps["Validate"], checkout, COMMAND=told).stdout.splitlines()
        assert arguments[-4:] == ["--loadproof-shard", job["shard"], "--loadproof-out", job["name"]]
        if job["label"] != "cpu":
            assert arguments[arguments.index("-k") + 1] == "not smollm2"
    assert shell(steps["Validate"], checkout, COMMAND="exit 3").returncode == 3


def test_merge_and_summary_steps_join_what_the_shards_left(workflow: Any, checkout: Path) -> None:
    for index in (1, 2, 3):
        write_shard(checkout / "shards" / f"loadproof-cpu-{index}-of-3", index)
    steps = steps_of(workflow, "merge")
    assert shell(steps["Merge"], checkout).returncode == 0
    assert shell(steps["Summary"], checkout).returncode == 0
    assert "VERIFIED 7/7" in (checkout / "summary").read_text()


def test_missing_shard_fails_the_merge_and_the_summary_says_so(workflow: Any, checkout: Path) -> None:
    write_shard(checkout / "shards" / "loadproof-cpu-1-of-3", 1)
    steps = steps_of(workflow, "merge")
    merged = shell(steps["Merge"], checkout)
    assert merged.returncode == 2
    assert "no 2/3, 3/3" in merged.stderr
    assert shell(steps["Summary"], checkout).returncode == 0
    assert "could not be merged" in (checkout / "summary").read_text()


def test_verdict_passes_only_where_every_job_did(workflow: Any, checkout: Path) -> None:
    script = steps_of(workflow, "verdict")["only"]
    assert shell(script, checkout, RESULTS="success success success").returncode == 0
    for results in ("success failure success", "success success skipped", "success success cancelled"):
        assert shell(script, checkout, RESULTS=results).returncode == 1


def test_summary_holds_more_than_a_comment_and_both_stay_below_their_limits(tmp_path: Path) -> None:
    run = run_of(*(case_record(f"a-case-{n:04}-{'x' * 150}") for n in range(4000)))
    for limit in (60_000, 900_000):
        text = render_markdown(run, limit)
        cut = re.search(r"(\d+) more cases in report\.html", text)
        assert cut
        rows = len(re.findall(r"^\| a-case", text, re.MULTILINE))
        assert rows + int(cut[1]) == 4000
        assert 0.7 * limit < len(text.encode()) <= limit
    small = write_run(tmp_path / "run", [case_record("a")])
    assert "VERIFIED 1/1" in run_command("render", small, "--markdown", "--limit", 900_000).stdout
    assert run_command("render", small, "--markdown", "--limit", 59_999).status == 2


@pytest.mark.parametrize(("gib", "status"), [(0, 0), (1_000_000, 1)], ids=["room", "no-room"])
def test_memory_is_asked_for_before_it_is_needed(gib: int, status: int) -> None:
    ended = subprocess.run(
        [ROOT / "tools" / "require_memory.sh", str(gib), "0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == status
    assert ("expected 1024000000 MiB free" in ended.stderr) == bool(status)


def test_command_plans_and_merges_without_torch() -> None:
    code = "import sys, loadproof.reports.cli; print('torch' in sys.modules, 'pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
