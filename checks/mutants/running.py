"""Mutants tried in stages: the survivors of one stage go into the next."""

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
    """Saved outcomes of mutants by stage, so that interrupted work can resume."""

    def of(self, stage: int, mutant: Mutant) -> Outcome | None:
        """The saved outcome of the mutant in this stage; None if there is none."""

    def note(self, stage: int, outcome: Outcome) -> None:
        """Save an outcome in this stage."""


Show: TypeAlias = Callable[[int, str], None]  # number of mutants done, and the means of the last
_TESTS = 0  # the stage of the tests, which have separate notes
TryAll: TypeAlias = Callable[[Sequence[Trial]], Iterable[Tried]]  # with the right program


def judged(
    chosen: Chosen,
    show: Show,
    *,
    thorough: bool = False,
    until: float = inf,
    try_all: TryAll = tried_now,
    notes: Notes | None = None,
) -> Iterator[tuple[Module, Outcome]]:
    """The outcome of each mutant that was killed or survived all stages, in their order.

    The survivors of a stage go into the next. An early end therefore leaves the outcomes of the
    killed mutants, which are most of them and the cheapest. If no mutant survives, the next stage
    does not begin; its trials would first be tried with the right program.

    `until`: on the clock of `time.monotonic`; later no mutant is tried. An early end
    (`checks.ending`) keeps the outcomes so far. `try_all` tries the trials with the right program.
    A mutant with an outcome in the `notes` of a stage is not tried again in that stage.
    """
    stages = (*STAGES, LAST_STAGE)[: None if thorough else -1]
    rooms = {module.room for module, _ in chosen}
    evidence = _Evidence(try_all, rooms, affected_policies(module for module, _ in chosen))
    results = {mutant.id: Outcome(mutant, None) for _, mutant in chosen}
    left, survivors = [mutant for _, mutant in chosen], set[str]()
    killed = 0
    with keeping_results():
        for number, stage in enumerate(stages):
            tried, survivors = left, set[str]()
            if not tried:
                break
            for outcome in _in_stage(number, partial(evidence.of, stage), tried, until, notes):
                results[outcome.mutant.id] = results[outcome.mutant.id].then(outcome)
                survivors |= {outcome.mutant.id} if outcome.is_alive else set()
                killed += not outcome.is_alive
                show(killed, outcome.means)
            left = [mutant for mutant in tried if mutant.id in survivors]
    for module, mutant in chosen:
        outcome = results[mutant.id]
        if not outcome.is_alive or mutant.id in survivors:
            yield module, outcome


def _in_stage(
    number: int,
    evidence: Callable[[], Evidence],
    mutants: Sequence[Mutant],
    until: float,
    notes: Notes | None,
) -> Iterator[Outcome]:
    """The outcomes of the mutants in a stage: first the saved ones, then the new ones."""
    new: list[Mutant] = []
    for mutant in mutants:
        saved = None if notes is None else notes.of(number, mutant)
        if saved is None:
            new.append(mutant)
        else:
            yield saved
    if new and monotonic() < until:
        for outcome in outcomes(evidence(), new, until):
            if notes is not None:
                notes.note(number, outcome)
            yield outcome


@define
class _Evidence:
    """The trials of each stage, tried with the right program at first use."""

    try_all: TryAll
    rooms: Set[str]
    policies: Sequence[str]
    by_stage: dict[Stage, Evidence] = field(factory=dict)

    def of(self, stage: Stage) -> Evidence:
        """The stage's trials of these policies that run code of these rooms."""
        if stage not in self.by_stage:
            trials = [trial for policy in self.policies for trial in stage(policy)]
            fitting = [trial for trial in trials if trial.rooms & self.rooms]
            self.by_stage[stage] = Evidence.of(self.try_all(fitting))
        return self.by_stage[stage]


def affected_policies(modules: Iterable[Module]) -> list[str]:
    """The policies whose checks run these modules; all policies if a module is shared."""
    named = {module.policy for module in modules}
    return [policy for policy in POLICIES if policy in named or CORE in named]


def noticed_by_tests(
    found: Sequence[tuple[Module, Outcome]],
    listed: Mapping[str, str],
    show: Show,
    *,
    until: float = inf,
    notes: Notes | None = None,
) -> Iterator[tuple[Module, Outcome]]:
    """The outcomes; the tests are run on survivors that are not `listed` as equivalent.

    `until`, `notes` and early ends: as for `judged`. A survivor that was not tested stays alive.
    """
    asked = [
        outcome for _, outcome in found if outcome.is_alive and outcome.mutant.id not in listed
    ]
    said: dict[str, Outcome] = {}
    with keeping_results():
        for outcome in _asked(asked, until, notes):
            said[outcome.mutant.id] = outcome
            show(len(found) - len(asked) + len(said), "tests")
    for module, outcome in found:
        yield module, said.get(outcome.mutant.id, outcome)


def _asked(survivors: Sequence[Outcome], until: float, notes: Notes | None) -> Iterator[Outcome]:
    """The survivors' outcomes in the tests: first the saved ones, then new ones, on all cores."""
    new: list[Outcome] = []
    for survivor in survivors:
        saved = None if notes is None else notes.of(_TESTS, survivor.mutant)
        if saved is None:
            new.append(survivor)
        else:
            yield saved
    for _, outcome in as_they_come(partial(tested, until), new):
        if outcome is not None:
            if notes is not None:
                notes.note(_TESTS, outcome)
            yield outcome
