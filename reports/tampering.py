"""What in a run's files is not as it was when the run was sealed; pure functions over JSON values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadproof.harness.chain import cases_link, digest, facts_digests, head_digest
from loadproof.harness.plan import evidence_file

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One place that does not hold."""

    where: str
    """File, and the field in it."""
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class Source:
    """One place that holds a run's evidence."""

    name: str
    """`evidence`, a folder with a file a case, or `evidence.jsonl`."""
    records: Mapping[str, Json]
    """What it holds, by the name to blame."""
    unreadable: frozenset[str] = frozenset()
    """Names that have been blamed already."""

    @property
    def named_by_case(self) -> bool:
        return self.name == "evidence"


def chain_problems(run: Json) -> Iterator[Problem]:
    """Fields of `run.json` that differ from their digests, and figures of the chain that were changed."""
    chain, facts, link = run["chain"], facts_digests(run), cases_link(run["cases"])
    recorded = chain["facts"]
    differing = sorted(name for name in facts | recorded if facts.get(name) != recorded.get(name))
    if head_digest(link, facts) == chain["head"]:
        # What was chained is as it was, so the chain's own record of it was changed.
        for name in differing:
            yield _changed(f"run.json: chain.facts.{name}", facts.get(name), recorded.get(name))
        if link != chain["cases"]:
            yield _changed("run.json: chain.cases", link, chain["cases"])
        return
    for name in differing:
        yield _changed(f"run.json: {name}", recorded.get(name), facts.get(name))
    if (head := head_digest(chain["cases"], recorded)) != chain["head"]:
        yield _changed("run.json: chain.head", head, chain["head"])


def sealed_entries(run: Json, sources: list[Source]) -> list[Json]:
    """The entries of `cases` as they were chained, as far as the evidence can tell."""
    entries: list[Json] = run["cases"]
    if _were_chained(entries, run):
        return entries
    records = {r["case"]["id"]: r for source in sources for r in source.records.values()}
    told = [_told_by(records.get(entry["id"]), entry) for entry in entries]
    return told if _were_chained(told, run) else entries


def entry_problems(run: Json, sealed: list[Json]) -> Iterator[Problem]:
    """Entries of `cases` that were changed, moved, added or taken out."""
    if not _were_chained(sealed, run):
        found = "others, or another order or number of them"
        yield Problem("run.json: cases", "the entries that were chained", found)
    for index, (entry, true) in enumerate(zip(run["cases"], sealed, strict=True)):
        for field in true:
            if field not in entry or entry[field] != true[field]:
                where = f"run.json: cases[{index}].{field} of {entry['id']}"
                yield Problem(where, str(true[field]), str(entry.get(field, "no such field")))


def evidence_problems(run: Json, sealed: list[Json], source: Source) -> Iterator[Problem]:
    """Records that are of another run, changed, in another's place, missing, or too many."""
    files = {entry["id"]: entry["file"] for entry in sealed if entry["file"]}
    digests = {entry["id"]: entry["sha256"] for entry in sealed}
    held: dict[str, str] = {}
    for where, record in source.records.items():
        case_id = record["case"]["id"]
        if record["run_id"] != run["run_id"]:
            yield Problem(where, f"evidence of run {run['run_id']}", f"evidence of run {record['run_id']}")
        elif case_id not in files:
            yield Problem(where, "a case that run.json lists with evidence", f"evidence of {case_id}")
        elif source.named_by_case and files[case_id] != where:
            yield Problem(where, "the case that the file is named for", f"evidence of {case_id}")
        elif case_id in held:
            yield Problem(where, f"one record of {case_id}", f"a second one, beside {held[case_id]}")
        elif (found := digest(record)) != digests[case_id]:
            yield _changed(where, digests[case_id], f"{found} of {case_id}")
        held.setdefault(case_id, where)
    for case_id, file in files.items():
        where = file if source.named_by_case else source.name
        if case_id not in held and where not in source.unreadable:
            yield Problem(where, f"the evidence of {case_id}", "none")


def _were_chained(entries: list[Json], run: Json) -> bool:
    link, chain = cases_link(entries), run["chain"]
    return bool(link == chain["cases"] or head_digest(link, facts_digests(run)) == chain["head"])


def _told_by(record: Json | None, entry: Json) -> Json:
    if record is None:
        return entry | {"file": None, "sha256": None}
    return entry | {
        "verdict": record["verdict"],
        "expected": record["case"]["expected"],
        "file": evidence_file(entry["id"]),
        "sha256": digest(record),
    }


def _changed(where: str, sealed: str | None, found: str | None) -> Problem:
    return Problem(
        where, f"sha256 {sealed}" if sealed else "nothing", f"sha256 {found}" if found else "nothing"
    )
