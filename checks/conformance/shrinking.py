"""Smaller cases in which a driver shows the same finding."""

from itertools import islice

from attrs import evolve, frozen

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


def shrink(
    lab: Lab, case: Case, terms: Terms, finding: Finding, most_steps: int = MOST_STEPS
) -> Shrunk:
    """The case made smaller until nothing smaller shows the finding, or the steps are used up."""
    shrunk, position, fruitless = Shrunk(case, finding), 0, False
    while not fruitless:
        fruitless = position == 0  # a whole pass over the choices that finds nothing is the last
        simpler_cases = counterpart_of(case.config).simpler(shrunk.case)
        for choice, simpler in islice(enumerate(simpler_cases), position, None):
            if shrunk.steps >= most_steps:
                return shrunk
            shrunk, better = _tried(lab, shrunk, simpler, terms)
            if better:
                fruitless, position = False, choice
                break
        else:
            position = 0
    return shrunk


def _tried(lab: Lab, shrunk: Shrunk, simpler: Case, terms: Terms) -> tuple[Shrunk, bool]:
    """What is known after one more run, and whether the simpler case shows the finding."""
    if not lab.hello.can_do(simpler.config):
        return shrunk, False
    try:
        outcome = run_episode(lab, simpler, terms)
    except InputError:  # a request that this configuration could never serve
        return shrunk, False
    spent = evolve(shrunk, runs=shrunk.runs + 1, steps=shrunk.steps + outcome.steps + 1)
    found = outcome.finding
    if found is None or found.signature != shrunk.finding.signature:
        return spent, False
    return evolve(spent, case=simpler, finding=found), True
