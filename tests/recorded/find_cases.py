"""Find random cases in which a mutant of the reference takes other steps.

    python -m tests.recorded.find_cases POLICY [FIRST LAST]

The mutants of the policy that no rule notices, on record, run in cases in which the right reference
runs their changed lines. The printed cases are worth recording with an installed release
(`make_served`): in these the mutants take other steps.
"""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from attrs import evolve, frozen

from checks.cores import on_all_cores
from checks.evidence import MUTATED, recorded
from checks.mutants.conforming import Conforming
from checks.mutants.killing import in_process
from checks.mutants.planting import plant
from checks.mutants.reach import Lines, with_reach
from checks.mutants.record import digest, outcomes_on_record
from checks.mutants.report import UNNOTICED
from checks.mutants.rooms import modules
from checks.mutants.sites import Mutant

MOST = 80  # cases of a mutant, spread over those that run it
ENOUGH = 3  # cases in which its steps differ
SECONDS = 60.0  # of the processor, after which a mutant is left alone


@frozen
class _Tried:
    """A mutant, how many cases run it, and some in which its steps differ."""

    mutant: Mutant
    running: Sequence[int]
    differing: Sequence[int] = ()


def main(policy: str, first: int = 0, last: int = 10_000) -> None:
    """Print for each mutant the number of cases that run it, and the cases with other steps."""
    mutants = overlooked(policy)
    episodes = range(first, last)
    running: list[list[int]] = [[] for _ in mutants]
    for episode, lines in zip(
        episodes, on_all_cores(partial(_lines, policy), episodes), strict=True
    ):
        for cases, mutant in zip(running, mutants, strict=True):
            if not mutant.lines.isdisjoint(lines.get(mutant.path, ())):
                cases.append(episode)
    asked = map(_Tried, mutants, running)
    for tried in on_all_cores(partial(_tried, policy), [*asked]):
        differing = " ".join(map(str, tried.differing)) or "none"
        count = f"{len(tried.running):,}"
        print(f"{count} cases run it, steps differ in {differing}: {tried.mutant.id}", flush=True)


def overlooked(policy: str) -> list[Mutant]:
    """The mutants of the policy's formulas and reference that no rule notices, on record."""
    known = outcomes_on_record(recorded(MUTATED))
    rooms = [
        module
        for module in modules()
        if module.policy == policy and module.room in Conforming.rooms
    ]
    found = (mutant for module in rooms for mutant in module.mutants())
    return [
        tried
        for tried in found
        if digest(tried.id) in known and known[digest(tried.id)].means in UNNOTICED
    ]


def _lines(policy: str, episode: int) -> Lines:
    """The lines that the right reference runs in the case."""
    return with_reach(Conforming(policy, episode).served)[2]


def _tried(policy: str, tried: _Tried) -> _Tried:
    """The mutant with the first cases in which its steps differ."""
    some = tried.running[:: max(1, len(tried.running) // MOST)][:MOST]
    cases = [Conforming(policy, episode) for episode in some]
    for case in cases:
        case.prepare()
    said = in_process(partial(_print_differing, tried.mutant, cases))
    return evolve(tried, differing=[json.loads(line) for line in said])


def _print_differing(
    mutant: Mutant, cases: Sequence[Conforming], say: Callable[[object], None]
) -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    plant(mutant)
    differing = (case.episode for case in cases if _differs(case))
    for episode in islice(differing, ENOUGH):
        say(episode)


def _differs(case: Conforming) -> bool:
    try:
        return case.killer("") is not None
    except Exception:  # a wrong reference may raise anything
        return True


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
