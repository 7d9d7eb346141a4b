"""Mutants through all means: what one overlooks is tried with the next."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from time import monotonic
from typing import TypeAlias

from attrs import define, field

from checks.ending import ended, keeping_results
from checks.mutants.killing import Evidence, Outcome, outcomes
from checks.mutants.rooms import CORE, Module
from checks.mutants.sites import Mutant
from checks.mutants.testing import tested
from checks.mutants.trials import LAST_STAGE, STAGES, Stage
from checks.policies import POLICIES

Chosen: TypeAlias = Sequence[tuple[Module, Mutant]]
Show: TypeAlias = Callable[[int, str], None]  # mutants done, and a note

_AT_A_TIME = 60  # mutants that go through the stages together


def judged(
    chosen: Chosen, show: Show, *, thorough: bool = False, until: float | None = None
) -> Iterator[tuple[Module, Outcome]]:
    """What became of each mutant, in their order, as far as all means were tried with it.

    Some at a time go through all stages, so that whatever ends it leaves the earlier ones judged.

    `until`: on the clock of `time.monotonic`; later no mutant is tried with anything. What ends
    work early (`checks.ending`) ends it, too, and leaves what is known.
    """
    stages = (*STAGES, LAST_STAGE)[: None if thorough else -1]
    evidence = _Evidence({module.room for module, _ in chosen}, policies_of(m for m, _ in chosen))
    for done in range(0, len(chosen), _AT_A_TIME):
        some = chosen[done : done + _AT_A_TIME]
        found = {mutant.id: Outcome(mutant, None) for _, mutant in some}
        whole = set(found)
        with keeping_results():
            for stage in stages:
                left = [found[id_].mutant for id_ in found if found[id_].is_alive and id_ in whole]
                whole -= {one.id for one in left}
                if not left or _is_over(until):
                    break
                for one in outcomes(evidence.of(stage), _in_time(left, until)):
                    found[one.mutant.id] = found[one.mutant.id].followed_by(one)
                    whole.add(one.mutant.id)
                    show(done + sum(not one.is_alive for one in found.values()), one.means)
        if ended() is not None:
            whole = {id_ for id_ in whole if not found[id_].is_alive}
            until = 0.0
        yield from ((module, found[one.id]) for module, one in some if one.id in whole)


@define
class _Evidence:
    """The trials of each stage, tried with the right program once they are asked for."""

    rooms: Set[str]
    policies: Sequence[str]
    known: dict[Stage, Evidence] = field(factory=dict)

    def of(self, stage: Stage) -> Evidence:
        """The stage's trials of these policies that run something of these rooms."""
        if stage not in self.known:
            trials = [one for policy in self.policies for one in stage(policy)]
            self.known[stage] = Evidence.of([one for one in trials if one.rooms & self.rooms])
        return self.known[stage]


def policies_of(modules: Iterable[Module]) -> list[str]:
    """The policies whose checks run these modules: all, where one is shared."""
    named = {module.policy for module in modules}
    return [one for one in POLICIES if one in named or CORE in named]


def _in_time(mutants: Iterable[Mutant], until: float | None) -> Iterator[Mutant]:
    for one in mutants:
        if _is_over(until):
            return
        yield one


def _is_over(until: float | None) -> bool:
    return until is not None and monotonic() >= until


def noticed_by_tests(
    found: Iterable[tuple[Module, Outcome]], listed: Mapping[str, str], show: Show
) -> Iterator[tuple[Module, Outcome]]:
    """The outcomes, of those alive that are not `listed` with what the tests say."""
    for done, (module, one) in enumerate(found):
        show(done, "tests")
        yield module, tested(one) if one.is_alive and one.mutant.id not in listed else one
