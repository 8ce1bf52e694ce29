"""What every report says, word for word: claims, non-claims, symbols and tones."""

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import RunRecord, Verdict

CPU_ONLY = "CPU DEFAULT ONLY"

CLAIM = (
    "In this run, on this host, for the cases that PASS: outputs of the four load paths are byte-identical; "
    "the two attach paths map the daemon's allocations; the bytes of shared weights are unchanged at the end."
)
EXPECTED_REFUSALS = (
    "Routes that were expected to be REFUSED were declined by name, before anything was loaded on them."
)

NON_CLAIMS = (
    "not accuracy against full precision",
    "not equality across GPU models, drivers, library builds or CPU",
    "not other shapes, batch sizes, TP/EP/PP or CUDA-graph modes than those listed",
    "not MoE, TP > 1, CUDA graphs, torch.compile, LoRA or weight reload",
    "not performance",
    "not security of the socket protocol",
    "not absence of races beyond those exercised",
    "a CPU-default run says nothing about CUDA IPC or CUTLASS",
    "the file is self-reported, not attested",
)

_SYMBOLS = {
    Outcome.PASS: "✓",
    Outcome.REFUSED: "⊘",
    Outcome.INCOMPLETE: "…",
    Outcome.INFRA: "!",
    Outcome.TIMEOUT: "!",
}
_UNDECIDED = (Outcome.INCOMPLETE, Outcome.INFRA, Outcome.TIMEOUT)


def headline(record: RunRecord) -> str:
    """The verdict with its scope: a CPU run cannot be taken for a GPU run, nor a part for the whole."""
    return record.verdict.words + limits(record)


def limits(record: RunRecord) -> str:
    """What follows a verdict wherever it is told: ` · CPU DEFAULT ONLY`, ` · SHARD 1/4 ONLY`, both, none."""
    shard = record.shard
    part = f" · SHARD {shard.index}/{shard.count} ONLY" if shard and shard.count > 1 else ""
    return (f" · {CPU_ONLY}" if record.scope == "cpu-default" else "") + part


def claims(record: RunRecord) -> tuple[str, ...]:
    """What the run shows; nothing unless it is EQUIVALENT."""
    if record.verdict is not Verdict.EQUIVALENT:
        return (f"None: the run is {record.verdict.words}.",)
    counts = record.counts
    made = ((CLAIM, counts.verified), (EXPECTED_REFUSALS, counts.refused_as_expected))
    return tuple(claim for claim, cases in made if cases)


def symbol(outcome: Outcome) -> str:
    """A mark beside the word, so that colour is never alone."""
    return _SYMBOLS.get(outcome, "✗")


def tone(outcome: Outcome, expected: Outcome = Outcome.PASS) -> str:
    """CSS class: `ok`, `neutral` (not PASS, as expected), `warn` or `bad`."""
    if outcome is Outcome.PASS:
        return "ok"
    if outcome is expected:
        return "neutral"
    return "warn" if outcome in _UNDECIDED else "bad"
