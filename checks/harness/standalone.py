"""A system that goes on by itself where it differs from the reference: what comes of that."""

from collections.abc import Sequence

from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.driver.protocol import DriverError
from checks.harness.finding import Alone, Finding, Kind
from checks.harness.policy import evidence_of
from checks.harness.system import System
from checks.registry import RULES
from spec.core.rule import Kind as RuleKind


def with_own_steps(
    system: System, case: Case, terms: Terms, finding: Finding, known: Alone | None = None
) -> Finding:
    """The finding; of a difference with what is wrong where the system serves the case by itself.

    `known`: as it was recorded. A driver's error on the way, in steps that the comparison does not
    come to, leaves that unknown.
    """
    if finding.kind is not Kind.DIVERGENCE or terms.rules_only:
        return finding
    try:
        return evolve(finding, alone=known or alone(system, case, terms, finding.followed))
    except DriverError:
        return finding


def alone(
    system: System, case: Case, terms: Terms, followed: Sequence[tuple[str, str]] = ()
) -> Alone:
    """What the system's own steps break first, but for what is known not to hold.

    Of several rules that one step breaks first come those about what happens between steps, then
    those about states, then those about steps: of these, one that the reference `followed` where
    the two parted or one of its family, for the others are often what comes of it.

    Raises:
        DriverError: the driver makes an error.
    """
    episode = compare(system, case, evolve(terms, rules_only=True))
    expected = evidence_of(case.config.policy).expected_reason
    findings = episode.findings.values()
    unexpected = [one for one in findings if expected(one.cause, case.config) is None]
    return Alone(
        steps=episode.steps,
        wrong=min(unexpected, key=lambda one: (one.step, *_rank(one, followed)), default=None),
        tokens=False if any(_is_of_token(one) for one in unexpected) else episode.tokens,
        computed=0 < episode.steps == episode.on_device,
    )


_KINDS = (RuleKind.BETWEEN, RuleKind.ALWAYS)


def _rank(finding: Finding, followed: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """The lower, the nearer to the cause; equal ones stay in their order."""
    cause = finding.cause
    if cause not in RULES:
        return len(_KINDS) + 1, 0
    kind, ids = RULES[cause].kind, [rule for rule, _ in followed]
    if kind in _KINDS:
        return _KINDS.index(kind), 0
    is_near = cause in ids, _family(cause) in map(_family, ids)
    return len(_KINDS), 2 - sum(is_near)


def _family(rule: str) -> str:
    return rule.rpartition("-")[0]


def _is_of_token(finding: Finding) -> bool:
    return finding.cause == "device: token"
