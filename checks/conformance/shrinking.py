"""Smaller cases in which a driver shows the same finding."""

from collections.abc import Callable
from functools import partial
from itertools import islice

from attrs import evolve, frozen

from checks.conformance.alone import judge_alone
from checks.conformance.counterparts import counterpart_of
from checks.conformance.episode import Lab, Terms, run_episode
from checks.conformance.finding import Finding
from checks.fuzz.cases import Case
from spec.errors import InputError

MOST_STEPS = 20_000


@frozen
class Shrunk:
    """The smallest case that was found, its finding, the runs and steps that it took."""

    case: Case
    finding: Finding
    runs: int = 0
    steps: int = 0


Attempt = Callable[[Case], tuple[Finding | None, int]]
"""Runs a case: the finding in question, or another, or None; and the steps that it took."""


def shrink(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The case made smaller until nothing smaller shows the finding, or the steps are used up."""
    return _smallest(lab, Shrunk(case, finding), partial(_compared, lab, terms), most_steps)


def shrink_alone(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The same for a release that is judged alone."""
    attempt = partial(_alone, lab, terms, finding)
    return _smallest(lab, Shrunk(case, finding), attempt, most_steps)


def shrink_known(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The same for a known difference, whose id is the finding's cause."""
    attempt = partial(_known, lab, terms, finding)
    return _smallest(lab, Shrunk(case, finding), attempt, most_steps)


def _compared(lab: Lab, terms: Terms, case: Case) -> tuple[Finding | None, int]:
    outcome = run_episode(lab, case, terms)
    return outcome.finding, outcome.steps


def _alone(lab: Lab, terms: Terms, sought: Finding, case: Case) -> tuple[Finding | None, int]:
    judged = judge_alone(lab, case, aborts_while_running=terms.aborts_while_running)
    return judged.findings.get(sought.signature), judged.steps


def _known(lab: Lab, terms: Terms, sought: Finding, case: Case) -> tuple[Finding | None, int]:
    outcome = run_episode(lab, case, terms)
    if outcome.known != sought.cause:
        return None, outcome.steps
    return evolve(sought, step=outcome.steps), outcome.steps


def _smallest(lab: Lab, shrunk: Shrunk, attempt: Attempt, most_steps: int) -> Shrunk:
    position, fruitless = 0, False
    while not fruitless:
        fruitless = position == 0  # a whole pass over the choices that finds nothing is the last
        simpler_cases = counterpart_of(shrunk.case.config).simpler(shrunk.case)
        for choice, simpler in islice(enumerate(simpler_cases), position, None):
            if shrunk.steps >= most_steps:
                return shrunk
            shrunk, better = _tried(lab, shrunk, simpler, attempt)
            if better:
                fruitless, position = False, choice
                break
        else:
            position = 0
    return shrunk


def _tried(lab: Lab, shrunk: Shrunk, simpler: Case, attempt: Attempt) -> tuple[Shrunk, bool]:
    """What is known after one more run, and whether the simpler case shows the finding."""
    if not lab.hello.can_do(simpler.config):
        return shrunk, False
    try:
        found, steps = attempt(simpler)
    except InputError:  # a request that this configuration could never serve
        return shrunk, False
    spent = evolve(shrunk, runs=shrunk.runs + 1, steps=shrunk.steps + steps + 1)
    if found is None or found.signature != shrunk.finding.signature:
        return spent, False
    return evolve(spent, case=simpler, finding=found), True
