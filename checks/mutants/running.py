"""Mutants through all means: what one overlooks is tried with the next."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from math import inf
from time import monotonic
from typing import Protocol, TypeAlias

from attrs import define, field

from checks.cores import as_they_come
from checks.ending import keeping_results
from checks.mutants.killing import Evidence, Outcome, outcomes
from checks.mutants.rooms import CORE, Module
from checks.mutants.sites import Mutant
from checks.mutants.testing import tested
from checks.mutants.trials import LAST_STAGE, STAGES, Stage, Trial, Tried, tried_now
from checks.registry import POLICIES

Chosen: TypeAlias = Sequence[tuple[Module, Mutant]]


class Notes(Protocol):
    """What became of mutants in stages: work that was ended goes on from there."""

    def of(self, stage: int, mutant: Mutant) -> Outcome | None:
        """What is noted of the mutant in the stage with this number, if anything is."""

    def note(self, stage: int, outcome: Outcome) -> None:
        """Keep an outcome in a stage as soon as it comes."""


Show: TypeAlias = Callable[[int, str], None]  # mutants done, and a note
_TESTS = 0  # their stage, in notes of their own
TryAll: TypeAlias = Callable[[Sequence[Trial]], Iterable[Tried]]  # of the right program


def judged(
    chosen: Chosen,
    show: Show,
    *,
    thorough: bool = False,
    until: float = inf,
    try_all: TryAll = tried_now,
    notes: Notes | None = None,
) -> Iterator[tuple[Module, Outcome]]:
    """What became of each mutant, in their order: of those killed, and of those no means killed.

    What one stage leaves alive goes into the next, so that whatever ends it leaves the killed ones
    judged, which are the most and the cheap ones. Where all are killed the next stage, whose
    trials are tried on the right program first, is not begun.

    `until`: on the clock of `time.monotonic`; later no mutant is tried with anything. What ends
    work early (`checks.ending`) ends it, too, and leaves what is known. `try_all` tries the
    trials on the right program. What `notes` know of a mutant in a stage is not tried again.
    """
    stages = (*STAGES, LAST_STAGE)[: None if thorough else -1]
    rooms = {module.room for module, _ in chosen}
    evidence = _Evidence(try_all, rooms, policies_of(module for module, _ in chosen))
    found = {mutant.id: Outcome(mutant, None) for _, mutant in chosen}
    left, survivors = [mutant for _, mutant in chosen], set[str]()
    killed = 0
    with keeping_results():
        for number, stage in enumerate(stages):
            tried, survivors = left, set[str]()
            if not tried:
                break
            for one in _in_stage(number, partial(evidence.of, stage), tried, until, notes):
                found[one.mutant.id] = found[one.mutant.id].followed_by(one)
                survivors |= {one.mutant.id} if one.is_alive else set()
                killed += not one.is_alive
                show(killed, one.means)
            left = [one for one in tried if one.id in survivors]
    for module, mutant in chosen:
        one = found[mutant.id]
        if not one.is_alive or mutant.id in survivors:
            yield module, one


def _in_stage(
    number: int,
    evidence: Callable[[], Evidence],
    mutants: Sequence[Mutant],
    until: float,
    notes: Notes | None,
) -> Iterator[Outcome]:
    """What becomes of the mutants in a stage: what is noted, then what is tried now."""
    new: list[Mutant] = []
    for mutant in mutants:
        known = None if notes is None else notes.of(number, mutant)
        if known is None:
            new.append(mutant)
        else:
            yield known
    if new and monotonic() < until:
        for one in outcomes(evidence(), new, until):
            if notes is not None:
                notes.note(number, one)
            yield one


@define
class _Evidence:
    """The trials of each stage, tried with the right program once they are asked for."""

    try_all: TryAll
    rooms: Set[str]
    policies: Sequence[str]
    known: dict[Stage, Evidence] = field(factory=dict)

    def of(self, stage: Stage) -> Evidence:
        """The stage's trials of these policies that run something of these rooms."""
        if stage not in self.known:
            trials = [one for policy in self.policies for one in stage(policy)]
            some = [one for one in trials if one.rooms & self.rooms]
            self.known[stage] = Evidence.of(self.try_all(some))
        return self.known[stage]


def policies_of(modules: Iterable[Module]) -> list[str]:
    """The policies whose checks run these modules: all, where one is shared."""
    named = {module.policy for module in modules}
    return [one for one in POLICIES if one in named or CORE in named]


def noticed_by_tests(
    found: Sequence[tuple[Module, Outcome]],
    listed: Mapping[str, str],
    show: Show,
    *,
    until: float = inf,
    notes: Notes | None = None,
) -> Iterator[tuple[Module, Outcome]]:
    """The outcomes, of those alive that are not `listed` with what the tests say.

    `until`, `notes` and what ends work early: as for `judged`. What is not asked by then is alive.
    """
    asked = [one for _, one in found if one.is_alive and one.mutant.id not in listed]
    said: dict[str, Outcome] = {}
    with keeping_results():
        for one in _asked(asked, until, notes):
            said[one.mutant.id] = one
            show(len(found) - len(asked) + len(said), "tests")
    for module, one in found:
        yield module, said.get(one.mutant.id, one)


def _asked(survivors: Sequence[Outcome], until: float, notes: Notes | None) -> Iterator[Outcome]:
    """What the tests say of each: what is noted, then what they say now, on all cores."""
    new: list[Outcome] = []
    for one in survivors:
        known = None if notes is None else notes.of(_TESTS, one.mutant)
        if known is None:
            new.append(one)
        else:
            yield known
    for _, outcome in as_they_come(partial(tested, until), new):
        if outcome is not None:
            if notes is not None:
                notes.note(_TESTS, outcome)
            yield outcome
