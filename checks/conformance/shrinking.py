"""Smaller cases in which a driver shows the same finding."""

from collections.abc import Callable

from attrs import evolve

from checks.conformance.alone import judge_alone
from checks.conformance.counterparts import counterpart_of
from checks.conformance.episode import Lab, Terms, run_episode
from checks.conformance.finding import Finding
from checks.fuzz.cases import Case
from checks.fuzz.smallest import Shrunk as ShrunkCase
from checks.fuzz.smallest import smallest
from spec.core.errors import InputError

MOST_STEPS = 20_000

Shrunk = ShrunkCase[Finding]
Run = Callable[[Lab, Case, Terms, Finding], tuple[Finding | None, int]]
"""The finding in question, or another, or none; and the steps of the case."""


def shrink(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The case made smaller until nothing smaller shows the finding, or the steps are used up."""
    return _smallest(_compared, lab, case, terms, finding, most_steps)


def shrink_alone(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The same for a release that is judged alone."""
    return _smallest(_alone, lab, case, terms, finding, most_steps)


def shrink_known(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The same for a known difference, whose id is the finding's cause."""
    return _smallest(_known, lab, case, terms, finding, most_steps)


def _smallest(
    run: Run, lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int
) -> Shrunk:
    def attempt(simpler: Case) -> tuple[Finding | None, int] | None:
        if not lab.hello.can_do(simpler.config):
            return None
        try:
            found, steps = run(lab, simpler, terms, finding)
        except InputError:  # a request that this configuration could never serve
            return None
        return found, steps + 1

    simpler_cases = counterpart_of(case.config).simpler
    return smallest(Shrunk(case, finding), attempt, simpler_cases, most_steps)


def _compared(lab: Lab, case: Case, terms: Terms, _sought: Finding) -> tuple[Finding | None, int]:
    outcome = run_episode(lab, case, terms)
    return outcome.finding, outcome.steps


def _alone(lab: Lab, case: Case, terms: Terms, sought: Finding) -> tuple[Finding | None, int]:
    judged = judge_alone(lab, case, aborts_while_running=terms.aborts_while_running)
    return judged.findings.get(sought.signature), judged.steps


def _known(lab: Lab, case: Case, terms: Terms, sought: Finding) -> tuple[Finding | None, int]:
    outcome = run_episode(lab, case, terms)
    if outcome.known != sought.cause:
        return None, outcome.steps
    return evolve(sought, step=outcome.steps), outcome.steps
