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
from checks.export.trace.records import converter, joined, structured
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case, refuse_unservable, surroundings_from_json
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms
from checks.harness.finding import Finding, Kind
from checks.harness.recording import file_name
from spec.core.errors import TraceError, cannot


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


@frozen(kw_only=True)
class _Found:
    """What the last line of such a file is checked to have."""

    target: str
    strictness: Strictness
    judged: bool
    kind: Kind
    step: int
    cause: str


def write_finding(directory: Path, using: str, case: Case, finding: Finding, terms: Terms) -> Path:
    """Write the finding into the directory, which is made if need be; returns the file.

    Raises:
        TraceError: nothing can be written there.
    """
    path = directory / file_name(using, case, finding)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot("write", directory, error, TraceError) from None
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
        WorkloadError: a request that could never be served.
    """
    found = None if trace.violation is None else trace.violation.found
    if not isinstance(found, dict) or "target" not in found:
        return None
    try:
        said = structured(converter(), found, _Found, "violation.found")
    except TraceError as error:
        raise error.at(trace.path) from None
    case, terms = case_of_trace(trace), Terms(said.strictness, judged=said.judged)
    refuse_unservable(case.config, case.requests, trace.path)
    return Recorded(case, said.target, terms, said.kind, said.step, said.cause)


def case_of_trace(trace: Trace) -> Case:
    """The configuration and the requests of a trace, and what surrounds them.

    Raises:
        TraceError: the trace does not say which requests it served, or has wrong surroundings.
    """
    ctx = trace.context()
    try:
        surroundings = surroundings_from_json(trace.surroundings, ctx.requests)
    except TraceError as error:
        place = joined("surroundings", error.field)
        raise TraceError(place, error.found, error.allowed).at(trace.path, 1) from None
    return Case(ctx.config, tuple(ctx.requests.values()), surroundings)
