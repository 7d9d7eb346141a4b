"""The system's own run of a case in which it differs from the reference."""

from operator import attrgetter

from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparison import Terms, script_of
from checks.harness.driver.protocol import DriverError
from checks.harness.finding import Alone, Finding, Kind
from checks.harness.own_steps import nearest
from checks.harness.policy import evidence_of
from checks.harness.rules_only import judged_by_rules
from checks.harness.system import Step, System


def with_own_steps(
    system: System, case: Case, terms: Terms, finding: Finding, known: Alone | None = None
) -> Finding:
    """The finding; a divergence with the result of the system's own run.

    `known`: the recorded result, used instead of a new run. If the driver fails in that run, in a
    step that the comparison does not reach, the finding is returned unchanged.
    """
    if finding.kind is not Kind.DIVERGENCE or terms.rules_only:
        return finding
    try:
        return evolve(finding, alone=known or alone(system, case, terms))
    except DriverError:
        return finding


def alone(system: System, case: Case, terms: Terms) -> Alone:
    """Serve the case with the system alone; the result has its first unexpected violation.

    Raises:
        DriverError: the driver fails.
    """
    expected = evidence_of(case.config.policy).expected_reason

    def excused(cause: str, step: Step) -> bool:
        return expected(cause, case.config, step) is not None

    episode = judged_by_rules(
        system, script_of(system, case, evolve(terms, rules_only=True)), excused
    )
    findings = [
        finding
        for finding in episode.findings.values()
        if finding.kind is not Kind.ENDLESS or expected(Kind.ENDLESS, case.config) is None
    ]
    first = [finding for finding in findings if finding.step == findings[0].step]
    is_wrong = any(finding.cause == "device: token" for finding in findings)
    return Alone(
        steps=episode.steps,
        wrong=nearest(first, attrgetter("cause")) if first else None,
        tokens=False if is_wrong else episode.tokens,
        computed=0 < episode.steps == episode.on_device,
    )
