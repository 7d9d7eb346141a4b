"""A system that goes on by itself where it differs from the reference: what comes of that."""

from collections.abc import Sequence

from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.driver.protocol import DriverError
from checks.harness.finding import Alone, Finding, Kind
from checks.harness.system import System
from checks.policies import policy_of


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

    Of several rules in one step that counts which the reference `followed` where the two parted, or
    one of its family: the others are often what comes of it.

    Raises:
        DriverError: the driver makes an error.
    """
    episode = compare(system, case, evolve(terms, rules_only=True))
    expected = policy_of(case.config).expected_reason
    findings = episode.findings.values()
    unexpected = [one for one in findings if expected(one.cause, case.config) is None]
    return Alone(
        steps=episode.steps,
        wrong=min(unexpected, key=lambda one: (one.step, _rank(one, followed)), default=None),
        tokens=False if any(_is_of_token(one) for one in unexpected) else episode.tokens,
        computed=0 < episode.steps == episode.on_device,
    )


def _rank(finding: Finding, followed: Sequence[tuple[str, str]]) -> int:
    """The lower, the nearer to what the reference followed; equal ones stay in their order."""
    ids = [rule for rule, _ in followed]
    families = [_family(rule) for rule in ids]
    if finding.cause in ids:
        return 0
    return 1 if _family(finding.cause) in families else 2


def _family(rule: str) -> str:
    return rule.rpartition("-")[0]


def _is_of_token(finding: Finding) -> bool:
    return finding.cause == "device: token"
