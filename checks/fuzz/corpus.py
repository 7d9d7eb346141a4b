"""Findings as files: each stands for itself, replays, and makes a regression test.

A trace file (`checks.export.trace`): the header has configuration and requests, the steps are the
reference's up to the one in question, the last line is
`{"violation": {"rule", "says", "found"}}`. `rule` is one that the target's step breaks, else the
one that the reference followed there, else the kind of the finding. `found` has

- `target`, `strictness`, `judged`: who was compared, and how;
- `kind`, `step`, `cause`: what was found, as `checks.fuzz.finding` names it;
- `differences`: of a divergence, each differing `field` with its `place`, what was `expected` and
  what was `found`.
"""

import json
from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

from attrs import fields, frozen, has

from checks.export.trace.reading import Trace
from checks.export.trace.violation import Violation
from checks.export.trace.writing import TraceWriter
from checks.fuzz.cases import Case
from checks.fuzz.compare import Strictness
from checks.fuzz.finding import Finding, Kind
from checks.fuzz.lockstep import Terms
from spec.core.errors import TraceError

_DIGITS = 8  # of the digest in a file's name


@frozen
class Recorded:
    """What a file of the corpus says was found, and in whom."""

    case: Case
    target: str
    terms: Terms
    kind: Kind
    step: int
    cause: str

    def is_confirmed_by(self, finding: Finding) -> bool:
        """True if this is found again, in the same step."""
        return (self.kind, self.cause, self.step) == (*finding.signature, finding.step)


def write_finding(directory: Path, target: str, case: Case, finding: Finding, terms: Terms) -> Path:
    """Write the finding into the directory, which is made if need be; returns the file.

    Raises:
        TraceError: nothing can be written there.
    """
    path = directory / file_name(target, case, finding)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a directory that can be written to ({error.strerror})"
        raise TraceError("--corpus", str(directory), allowed) from None
    with TraceWriter(path, case.config, case.requests) as trace:
        for step in finding.steps:
            trace.write(step)
        found = _found_as_json(target, finding, terms)
        says = f"{finding.kind} in step {finding.step}: {finding.says}"
        trace.violated(Violation(finding.rule, says, found))
    return path


def file_name(target: str, case: Case, finding: Finding) -> str:
    """Named after the target, the finding, and a digest of the case: the same for the same."""
    text = json.dumps(case.as_mapping(), sort_keys=True)
    digest = blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()
    words = f"{target} {finding.kind} {finding.cause}"
    told = "".join(one if one.isalnum() else " " for one in words).split()
    return f"{'-'.join(told).lower()}-{digest}.jsonl"


def _found_as_json(target: str, finding: Finding, terms: Terms) -> dict[str, Any]:
    return {
        "target": target,
        "strictness": terms.strictness.value,
        "judged": terms.judged,
        "kind": finding.kind.value,
        "step": finding.step,
        "cause": finding.cause,
        "differences": [as_json(one) for one in finding.differences],
    }


def as_json(value: Any) -> Any:
    """Any value of a step or state as JSON; what a target made up as Python writes it."""
    if has(type(value)):
        return {key.name: as_json(getattr(value, key.name)) for key in fields(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(as_json(key)): as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(as_json, value), key=str)
    if isinstance(value, float) and not isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def recorded(trace: Trace) -> Recorded | None:
    """What the fuzzer wrote into the trace, or None if somebody else wrote it.

    Raises:
        TraceError: the last line begins as the fuzzer's do and is none.
    """
    found = None if trace.violation is None else trace.violation.found
    if not isinstance(found, dict) or "target" not in found:
        return None
    try:
        return Recorded(
            case=case_of_trace(trace),
            target=str(found["target"]),
            terms=Terms(Strictness(found["strictness"]), bool(found["judged"])),
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
    return Case(ctx.config, tuple(ctx.requests.values()))
