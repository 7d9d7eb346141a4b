"""Findings as files: each stands for itself, replays, and makes a regression test.

A trace file (`checks.export.trace`): the header has configuration and requests, the steps are the
reference's up to the one in question, the last line is
`{"violation": {"rule", "says", "found"}}`. `rule` is one that the system's own steps break, else
what is wrong with them: "divergence", "crash". `found` has

- `target`, `strictness`, `judged`: which system was compared, and how;
- `kind`, `step`, `cause`: what was found, as `checks.harness.finding` names it;
- `differences`: of a divergence, each differing `field` with its `place`, what was `expected` and
  what was `found`.
"""

from pathlib import Path

from attrs import frozen

from checks.export.trace.line import Violation
from checks.export.trace.reading import Trace
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms
from checks.harness.finding import Finding, Kind
from checks.harness.recording import file_name
from spec.core.errors import TraceError


@frozen
class Recorded:
    """What a file of the corpus says was found, and in which system."""

    case: Case
    using: str
    terms: Terms
    kind: Kind
    step: int
    cause: str

    def is_confirmed_by(self, finding: Finding) -> bool:
        """True if this is found again, in the same step."""
        return (self.kind, self.cause, self.step) == (*finding.signature, finding.step)


def write_finding(directory: Path, using: str, case: Case, finding: Finding, terms: Terms) -> Path:
    """Write the finding into the directory, which is made if need be; returns the file.

    Raises:
        TraceError: nothing can be written there.
    """
    path = directory / file_name(using, case, finding)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a directory that can be written to ({error.strerror})"
        raise TraceError("--corpus", str(directory), allowed) from None
    with TraceWriter(path, case.config, case.requests, surroundings=case.surroundings) as trace:
        for step in finding.steps:
            trace.write(step)
        found = {
            "target": using,
            "strictness": terms.strictness.value,
            "judged": terms.judged,
            "kind": finding.kind.value,
            "step": finding.step,
            "cause": finding.cause,
            "differences": [plain_json(one) for one in finding.differences],
        }
        says = f"{finding.headline} ({finding.evidence})"
        trace.violated(Violation(finding.rule_or_kind, says, found))
    return path


def recorded(trace: Trace) -> Recorded | None:
    """What the fuzzer wrote into the trace, or None if something else wrote it.

    Raises:
        TraceError: the last line begins as the fuzzer's do and is none.
    """
    found = None if trace.violation is None else trace.violation.found
    if not isinstance(found, dict) or "target" not in found:
        return None
    try:
        return Recorded(
            case=case_of_trace(trace),
            using=str(found["target"]),
            terms=Terms(Strictness(found["strictness"]), judged=bool(found["judged"])),
            kind=Kind(found["kind"]),
            step=int(found["step"]),
            cause=str(found["cause"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        allowed = "what `lockstep fuzz` wrote: strictness, judged, kind, step, cause"
        raise TraceError("violation.found", str(error), allowed).at(trace.path) from None


def case_of_trace(trace: Trace) -> Case:
    """The configuration and the requests of a trace."""
    ctx = trace.context()
    return Case(ctx.config, tuple(ctx.requests.values()), trace.surroundings)
