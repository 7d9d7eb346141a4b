"""Mutants through all means: what one overlooks is tried with the next."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TypeAlias

from checks.mutants.killing import Evidence, Outcome, outcomes
from checks.mutants.rooms import CORE, Module
from checks.mutants.sites import Mutant
from checks.mutants.testing import tested
from checks.mutants.trials import LAST_STAGE, STAGES
from checks.policies import POLICIES

Chosen: TypeAlias = Sequence[tuple[Module, Mutant]]
Show: TypeAlias = Callable[[int, str], None]  # mutants done, and a note


def judged(
    chosen: Chosen, show: Show, *, thorough: bool = False, until: float | None = None
) -> Iterator[tuple[Module, Outcome]]:
    """What became of each mutant, in their order, as far as all means were tried with it.

    `until`: on the clock of `time.monotonic`; later no mutant is tried with anything. An interrupt
    ends it, too, and leaves what is known.
    """
    found = {mutant.id: Outcome(mutant, None) for _, mutant in chosen}
    whole = {mutant.id for _, mutant in chosen}
    policies = policies_of(module for module, _ in chosen)
    try:
        for stage in (*STAGES, LAST_STAGE)[: None if thorough else -1]:
            left = [found[id_].mutant for id_ in found if found[id_].is_alive and id_ in whole]
            if not left:
                break
            whole -= {one.id for one in left}
            if until is not None and monotonic() >= until:
                break
            begun = len(found) - len(left)
            show(begun, "the right program first")
            rooms = {one.room for one in left}
            trials = [it for one in policies for it in stage(one) if it.rooms & rooms]
            evidence = Evidence.of(trials)
            for done, one in enumerate(outcomes(evidence, _in_time(left, until)), begun + 1):
                found[one.mutant.id] = found[one.mutant.id].followed_by(one)
                whole.add(one.mutant.id)
                show(done, one.means)
    except KeyboardInterrupt:
        whole = {id_ for id_ in whole if not found[id_].is_alive}
    yield from ((module, found[one.id]) for module, one in chosen if one.id in whole)


def policies_of(modules: Iterable[Module]) -> list[str]:
    """The policies whose checks run these modules: all, where one is shared."""
    named = {module.policy for module in modules}
    return [one for one in POLICIES if one in named or CORE in named]


def _in_time(mutants: Iterable[Mutant], until: float | None) -> Iterator[Mutant]:
    for one in mutants:
        if until is not None and monotonic() >= until:
            return
        yield one


def noticed_by_tests(
    found: Iterable[tuple[Module, Outcome]], listed: Mapping[str, str], show: Show
) -> Iterator[tuple[Module, Outcome]]:
    """The outcomes, of those alive that are not `listed` with what the tests say."""
    for done, (module, one) in enumerate(found):
        show(done, "tests")
        yield module, tested(one) if one.is_alive and one.mutant.id not in listed else one
