"""`loadproof verify`: holds a run against its digest chain, and names what does not fit."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadproof.harness.checkpoint import strict_json
from loadproof.harness.errors import InvalidInput
from loadproof.harness.plan import PLAN_FILE, TWIN_FILE
from loadproof.harness.record import RunRecord, Verdict

from .embedded import unpack
from .load import UNENDED, line_texts, load_run, parse, parse_case, read_text, unusable
from .tampering import (
    Json,
    Problem,
    Source,
    chain_problems,
    entry_problems,
    evidence_problems,
    sealed_entries,
)
from .verify_page import Page
from .wording import limits

SELF_REPORTED = (
    "The evidence is self-reported, not attested: whoever rewrites every file can rewrite the head too. "
    "Give --head with the head that was published when the run ended."
)
PUBLISHED = "The head is the published one; the evidence is self-reported all the same, not attested."
WITHOUT_RUN = "There is no run.json beside it: whether these are all cases, and unchanged, cannot be said."
WITHOUT_EVIDENCE = "There is no evidence beside it: that the page tells of this run is the page's own word."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the files of a run say of each other."""

    run_id: str
    verdict: Verdict
    """The run's own; INCOMPLETE where it did not end in order."""
    cases: int
    """Records of cases that were read."""
    head: str | None
    """Head of the chain; None where there is no chain to hold the files against."""
    problems: tuple[Problem, ...] = ()
    note: str = SELF_REPORTED
    limits: str = ""
    """What follows the verdict, as in `wording.limits`."""

    @property
    def intact(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"intact": self.intact} | asdict(self)


def verify(path: Path, *, published: str | None = None) -> Verification:
    """Hold a run against its chain, and the chain against a `published` head where one is given.

    Args:
        path: a run's folder, its `evidence.jsonl`, or its `report.html`; `run.json` is looked for beside it.

    Raises:
        InvalidInput: nothing there that could be held against anything.
    """
    verification = _verify(path, published)
    if published is None:
        return verification
    if verification.head == published:
        return verification if verification.note != SELF_REPORTED else replace(verification, note=PUBLISHED)
    found = verification.head or "no chain"
    problem = Problem("head of the chain", f"the published {published}", found)
    return replace(verification, problems=(*verification.problems, problem))


def _verify(path: Path, published: str | None) -> Verification:
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and path.suffix not in (".jsonl", ".html"):
        raise unusable(path, "a run's folder, evidence.jsonl or report.html", "something else")
    if path.suffix == ".html":
        return _verify_page(Page.read(path), folder, published)
    if (folder / "run.json").exists():
        return _verify_run(folder, path)
    if path.suffix == ".jsonl" and not (folder / PLAN_FILE).exists():
        return _verify_lone_lines(path)
    run = load_run(path)
    return Verification(
        run_id=run.record.run_id,
        verdict=run.record.verdict,
        cases=len(run.cases),
        head=None,
        note=UNENDED,
        limits=limits(run.record),
    )


def _verify_page(page: Page, folder: Path, published: str | None) -> Verification:
    """A page by the run beside it, or by the evidence that it carries, or else its word alone."""
    if (folder / "run.json").exists():
        return _with_page(_verify_run(folder, folder), page, folder)
    if page.evidence is not None:
        return _verify_embedded(page, page.evidence)
    if published is None:
        raise unusable(page.where, "evidence in the page, run.json beside it, or --head", "none of them")
    return Verification(
        run_id=page.run_id, verdict=Verdict.INCOMPLETE, cases=0, head=page.head, note=WITHOUT_EVIDENCE
    )


def _verify_embedded(page: Page, evidence: str) -> Verification:
    with TemporaryDirectory(prefix="loadproof-") as name:
        folder = Path(name)
        try:
            unpack(evidence, folder)
        except ValueError as error:
            raise unusable(f"{page.where}, embedded evidence", "xz in base64", str(error)) from error
        try:
            found = _verify_run(folder, folder)
        except InvalidInput as error:
            raise unusable(f"{page.where}, embedded {error.where}", error.expected, error.found) from error
        named = [replace(each, where=f"{page.where}, embedded {each.where}") for each in found.problems]
        return _with_page(replace(found, problems=tuple(named)), page, folder)


def _with_page(found: Verification, page: Page, folder: Path) -> Verification:
    problems = page.problems(folder, found.head, readable=found.intact)
    return replace(found, problems=(*found.problems, *problems))


def _verify_run(folder: Path, path: Path) -> Verification:
    run = _run_json(read_text(folder / "run.json"))
    if run.get("chain") is None:
        raise unusable("run.json", "a digest chain", "none: this run was never sealed")
    sources, problems = _sources(folder, path)
    if not sources:
        raise unusable(folder, "evidence/ or evidence.jsonl beside run.json", "neither")
    sealed = sealed_entries(run, sources)
    problems += [*chain_problems(run), *entry_problems(run, sealed)]
    for source in sources:
        problems += evidence_problems(run, sealed, source)
    problems += _twin_problems(run, folder / TWIN_FILE)
    if not problems:
        problems += _contradictions(folder)
    return Verification(
        run_id=run["run_id"],
        verdict=Verdict(run["verdict"]),
        cases=len({r["case"]["id"] for source in sources for r in source.records.values()}),
        head=str(run["chain"]["head"]),
        problems=tuple(problems),
        limits=limits(RunRecord.model_validate(run)),
    )


def _sources(folder: Path, path: Path) -> tuple[list[Source], list[Problem]]:
    """All places with evidence, or the one that was named; what cannot be read is a problem."""
    texts: dict[str, list[tuple[str, str]]] = {}
    problems: list[Problem] = []
    if path.suffix != ".jsonl" and (folder / "evidence").is_dir():
        files = sorted((folder / "evidence").iterdir())
        texts["evidence"] = [(f"evidence/{f.name}", read_text(f)) for f in files if f.suffix == ".json"]
        strays = [f"evidence/{f.name}" for f in files if f.suffix != ".json"]
        problems += [Problem(stray, "evidence of cases alone", "another file") for stray in strays]
    if (folder / "evidence.jsonl").is_file():
        texts["evidence.jsonl"] = line_texts(folder / "evidence.jsonl")
    sources = []
    for name, found in texts.items():
        records: dict[str, Json] = {}
        unreadable = set()
        for where, text in found:
            try:
                records[where] = _case_json(text, where)
            except InvalidInput as error:
                problems.append(Problem(error.where, error.expected, error.found))
                unreadable.add(where)
        sources.append(Source(name, records, frozenset(unreadable)))
    return sources, problems


def _run_json(text: str) -> Json:
    parse(RunRecord, text, "run.json")
    return _as_spelled(text, "run.json")


def _case_json(text: str, where: str) -> Json:
    parse_case(text, where)
    return _as_spelled(text, where)


def _as_spelled(text: str, where: str) -> Json:
    """A record as the file spells it: defaults that a later version adds are not part of its digest."""
    try:
        data = strict_json.parse(text.encode())
        assert isinstance(data, dict)
    except ValueError as error:
        raise unusable(where, "a record that every reader reads alike", str(error)) from error
    return data


def _twin_problems(run: Json, twins: Path) -> Iterator[Problem]:
    """Without the file nothing is claimed: what twins said against a run is in its verdict and messages."""
    sealed = run.get("twins_sha256")
    if sealed and twins.is_file() and (found := sha256(twins.read_bytes()).hexdigest()) != sealed:
        yield Problem(TWIN_FILE, f"sha256 {sealed}, as in run.json", found)


def _contradictions(folder: Path) -> Iterator[Problem]:
    """What was sealed may still contradict itself."""
    try:
        load_run(folder)
    except InvalidInput as error:
        yield Problem(error.where, error.expected, error.found)


def _verify_lone_lines(lines: Path) -> Verification:
    records = [_case_json(text, where) for where, text in line_texts(lines)]
    runs = sorted({record["run_id"] for record in records})
    ids = [record["case"]["id"] for record in records]
    problems = []
    if len(runs) != 1:
        problems.append(Problem(lines.name, "evidence of one run", ", ".join(runs) or "no record"))
    if twice := sorted({case_id for case_id in ids if ids.count(case_id) > 1}):
        problems.append(Problem(lines.name, "one record a case", f"more of {', '.join(twice)}"))
    return Verification(
        run_id=", ".join(runs),
        verdict=Verdict.INCOMPLETE,
        cases=len(ids),
        head=None,
        problems=tuple(problems),
        note=WITHOUT_RUN,
    )
