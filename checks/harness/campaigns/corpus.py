"""Findings as files, each a self-contained regression test that can be replayed.

The file is a trace (`checks.export.trace`): the header has configuration and requests, the steps
are the reference's up to the step of the finding, and the last line is
`{"violation": {"rule", "says", "found"}}`. `rule` is the rule that the system's own steps break,
else the kind of finding: "divergence", "crash". `found` has

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
from checks.harness.campaigns.recording import file_name
from checks.harness.case import Case, refuse_to_repeat, surroundings_from_json
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms
from checks.harness.finding import Finding, Kind
from spec.core.errors import TraceError, cannot


@frozen
class Recorded:
    """The finding in a file of the corpus, and the system that showed it (`using`)."""

    case: Case
    using: str
    terms: Terms
    kind: Kind
    step: int
    cause: str

    def confirms(self, finding: Finding) -> bool:
        """True if the finding has the recorded kind, cause and step."""
        return (self.kind, self.cause, self.step) == (*finding.signature, finding.step)


@frozen(kw_only=True)
class _Found:
    """The required fields of `found` in the last line."""

    target: str
    strictness: Strictness
    judged: bool
    kind: Kind
    step: int
    cause: str


def write_finding(directory: Path, using: str, case: Case, finding: Finding, terms: Terms) -> Path:
    """Write the finding into the directory, which is created if missing; returns the file.

    Raises:
        TraceError: the directory or the file cannot be written.
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
            "differences": [plain_json(difference) for difference in finding.differences],
        }
        says = f"{finding.headline} ({finding.evidence})"
        trace.violated(Violation(finding.rule_or_kind, says, found))
    return path


def recorded(trace: Trace) -> Recorded | None:
    """The finding that the fuzzer wrote into the trace; None if the fuzzer did not write it.

    Raises:
        TraceError: the last line has a target but is no valid finding.
        WorkloadError: a request can never be served.
    """
    content = None if trace.violation is None else trace.violation.found
    if not isinstance(content, dict) or "target" not in content:
        return None
    try:
        said = structured(converter(), content, _Found, "violation.found")
    except TraceError as error:
        raise error.at(trace.path) from None
    case, terms = case_of_trace(trace), Terms(said.strictness, judged=said.judged)
    refuse_to_repeat(case, trace.path)
    return Recorded(case, said.target, terms, said.kind, said.step, said.cause)


def case_of_trace(trace: Trace) -> Case:
    """The configuration, requests and surroundings of a trace.

    Raises:
        TraceError: the trace has no requests, or its surroundings are malformed.
    """
    ctx = trace.context()
    try:
        surroundings = surroundings_from_json(trace.surroundings, ctx.requests)
    except TraceError as error:
        place = joined("surroundings", error.field)
        raise TraceError(place, error.found, error.allowed).at(trace.path, 1) from None
    return Case(ctx.config, tuple(ctx.requests.values()), surroundings)
