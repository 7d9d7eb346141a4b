"""Rules about one request, asked of states that are merged up to the names of equal requests.

Each verdict is compared with that of the graph in which nothing is merged. A search that takes a
merged state's request of a name for the same request everywhere is wrong on some of these machines,
so that the comparison can fail.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement, product
from random import Random
from typing import Any

import pytest
from attrs import evolve, frozen

from checks.explore import symmetry
from checks.explore.environment import MachineModel
from checks.explore.instance import Instance, title_of
from checks.explore.model import Counterexample, Eventually, Transition
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.returning import with_blocks_in_order
from checks.explore.search import explore
from checks.registry import POLICIES

Phases = tuple[int, ...]  # of each request
Moves = Mapping[tuple[int, Phases], Sequence[tuple[int, Mapping[int, int], int]]]


@frozen
class Alike:
    """Equal requests, each in a phase: what one may do depends on the phases of all, not on ids.

    `moves`: by the phase of a request and the phases of all, sorted: the phase that it may take,
    those that the others take by their own, and the class of the action.
    """

    requests: int
    moves: Moves
    is_merged: bool

    def initial(self) -> Iterable[Phases]:
        return [(0,) * self.requests]

    def successors(self, state: Phases) -> Iterator[Transition[Phases]]:
        for number, phase in enumerate(state):
            for own, others, fair in self.moves.get((phase, tuple(sorted(state))), ()):
                after = [others.get(other, other) for other in state]
                after[number] = own
                yield Transition(f"move {number}", tuple(after), fair=fair)

    def canonical(self, state: Phases) -> Hashable:
        return tuple(sorted(state)) if self.is_merged else state

    def unfinished(self, state: Phases) -> bool:
        return False


def places(state: Phases) -> dict[str, int]:
    """How many requests are in an earlier phase: those in the same one share a place."""
    return {str(at): sum(other < phase for other in state) for at, phase in enumerate(state)}


def reaches(goals: frozenset[int], requests: int, *, is_followed: bool) -> list[Eventually[Phases]]:
    """Every request that has left phase 0 reaches one of the goals."""
    return [
        Eventually[Phases](
            "reaches",
            trigger=lambda state, number=number: state[number] > 0,  # type: ignore[misc]
            goal=lambda state, number=number: state[number] in goals,  # type: ignore[misc]
            of=f"request {number}",
            request=str(number),
            places=places if is_followed else None,
        )
        for number in range(requests)
    ]


def refuting_run(
    machine: Alike, goals: frozenset[int], *, is_naive: bool = False
) -> tuple[str, Counterexample[Phases]] | None:
    is_followed = machine.is_merged and not is_naive
    asked = reaches(goals, machine.requests, is_followed=is_followed)
    found = explore(machine, asked).violations
    return (found[0].found, found[0].counterexample) if found else None


# Two requests by turns: the one in phase 1 is served, the other waits in phase 3.
TURNS: Moves = {
    (0, (0, 0)): [(1, {0: 3}, 1)],
    (1, (1, 3)): [(3, {3: 1}, 1)],
}
# One of two is served in phases 1 and 2 by turns, forever, the other stands in phase 3 or 4.
# The states that follow are found first with the other one served: 1 and 3, then 4 and 2.
STARVES: Moves = {
    (0, (0, 0)): [(1, {0: 3}, 1), (4, {0: 2}, 1)],
    (1, (1, 3)): [(2, {3: 4}, 1)],
    (2, (2, 4)): [(1, {4: 3}, 1)],
}


def test_no_request_starves_where_they_take_turns_though_one_of_two_always_waits() -> None:
    apart, merged = (Alike(2, TURNS, is_merged=merge) for merge in (False, True))
    served = frozenset({1})

    assert refuting_run(apart, served) is None
    assert refuting_run(merged, served) is None
    assert refuting_run(merged, served, is_naive=True) is not None  # the naive answer


def test_one_that_starves_is_found_though_the_states_are_kept_under_different_names() -> None:
    apart, merged = (Alike(2, STARVES, is_merged=merge) for merge in (False, True))
    served = frozenset({1, 2})

    assert refuting_run(apart, served) is not None
    assert refuting_run(merged, served, is_naive=True) is None  # the naive answer
    said = refuting_run(merged, served)
    assert said is not None
    found, run = said
    assert found == "request 0: steps 2 to 3 repeat for ever without the goal"
    assert [step.state for step in run.steps] == [(3, 1), (4, 2), (3, 1)]


def drawn(draw: Random) -> tuple[Alike, frozenset[int]]:
    """A machine of two or three requests in four phases, and goals."""
    requests, phases = draw.choice((2, 3)), range(4)
    moves: dict[tuple[int, Phases], list[tuple[int, Mapping[int, int], int]]] = {}
    for all_ in combinations_with_replacement(phases, requests):
        for _ in range(draw.choice((1, 1, 2))):
            others = {phase: draw.choice(phases) for phase in phases if draw.random() < 0.7}
            move = draw.choice(phases), others, draw.choice((0, 1, 1, 1))
            moves.setdefault((draw.choice(all_), all_), []).append(move)
    goals = frozenset({0, *draw.sample(phases, 1)})
    return Alike(requests, moves, is_merged=True), goals


def test_merging_changes_no_verdict_about_a_request_on_drawn_machines() -> None:
    refuted = naive_is_wrong = 0
    for seed in range(400):
        merged, goals = drawn(Random(seed))
        apart = evolve(merged, is_merged=False)

        run = refuting_run(merged, goals)

        assert (run is None) == (refuting_run(apart, goals) is None), seed
        if run is not None:
            refuted += 1
            assert_never_reaches(run, goals)
        naive = refuting_run(merged, goals, is_naive=True)
        naive_is_wrong += (naive is None) != (run is None)

    assert 80 < refuted < 320
    assert naive_is_wrong > 5


def assert_never_reaches(said: tuple[str, Counterexample[Phases]], goals: frozenset[int]) -> None:
    """The run is one of the machine, and in what it repeats the request has none of the goals."""
    found, run = said
    number = int(found.removeprefix("request ").partition(":")[0])
    begin = run.loop_from
    assert begin is not None
    states = [run.initial, *(step.state for step in run.steps)]
    assert not goals & {state[number] for state in states[begin:]}
    first, last = states[begin], states[-1]
    assert (sorted(first), first[number]) == (sorted(last), last[number])


# --- the machines of the policies -----------------------------------------------------------------


def verdicts(model: MachineModel) -> tuple[set[str], set[str], int]:  # type: ignore[type-arg]
    """The rules that are refuted, those whose witness is seen, and the number of states."""
    properties = properties_of(model)
    found = explore(model, properties.all, properties.witnesses, keep_going=True)
    assert found.stopped_by is None
    seen = {rule for rule, sightings in found.witnesses.items() if sightings.edges}
    return {violation.rule for violation in found.violations}, seen, found.states


def with_twins(title: str, twin: int) -> Instance:  # type: ignore[type-arg]
    """A default instance of Spyre with this request twice, and one of the others."""
    instance = next(
        instance for instance in machine_of("spyre").instances if title_of(instance) == title
    )
    other = 1 if twin == 0 else 0
    before = [instance.requests[number] for number in (twin, twin, other)]
    ids = [(request.id, str(number)) for number, request in enumerate(before)]

    def renamed(some: frozenset[str]) -> frozenset[str]:
        return frozenset(new for old, new in ids if old in some)

    return evolve(
        instance,
        requests=tuple(
            evolve(request, id=new) for request, (_, new) in zip(before, ids, strict=True)
        ),
        aborts=renamed(instance.aborts),
        early_ends=renamed(instance.early_ends),
    )


REFUTES_LIF_6 = {"released"}  # in all others every request leaves
TWINS = [
    ("released", 1),
    ("preemption", 1),
    ("documented", 0),
    *(pytest.param(title, 0, marks=pytest.mark.thorough) for title in ("released", "pausing")),
]


@pytest.mark.parametrize(("title", "twin"), TWINS)
def test_no_verdict_of_a_policy_changes_where_equal_requests_are_merged(
    title: str, twin: int
) -> None:
    merged = machine_of("spyre").model(with_twins(title, twin))
    assert merged.places is not None
    apart = evolve(merged, canonical=with_blocks_in_order, places=None)

    refuted, seen, states = verdicts(merged)

    assert ("LIF-6" in refuted) is (title in REFUTES_LIF_6)
    assert (refuted, seen) == verdicts(apart)[:2]
    assert states < verdicts(apart)[2]


@pytest.mark.parametrize(
    ("title", "rules"),
    [
        ("open, pausing, a single token", {"LIF-6", "SPY-PAU-5"}),
        ("vllm-v1, open, priority", {"V1-PRG-5"}),
        ("vllm-v1, open, shared prefix", set[str]()),
        ("vllm-v0, open, priority", {"V0-PRE-11"}),
        ("vllm-v0, open, priority, swap", {"V0-SWP-10"}),
        ("vllm-v0, open, documented", {"V0-PRG-3"}),
    ],
)
def test_no_verdict_of_a_policy_changes_where_blocks_are_renumbered(
    title: str, rules: set[str]
) -> None:
    instance = next(
        instance
        for policy in POLICIES
        for instance in machine_of(policy).instances
        if title_of(instance) == title
    )
    merged = machine_of(instance.config.policy).model(instance)

    refuted, seen, states = verdicts(merged)
    apart = verdicts(evolve(merged, canonical=lambda state: state))

    assert rules <= refuted
    assert (refuted, seen) == apart[:2]
    assert states < apart[2]


def reachable(model: MachineModel) -> list[Any]:  # type: ignore[type-arg]
    """One of each set of merged states."""
    found = {model.canonical(state): state for state in model.initial()}
    waiting = [*found.values()]
    while waiting:
        for edge in model.successors(waiting.pop()):
            key = model.canonical(edge.state)
            if key not in found:
                found[key] = edge.state
                waiting.append(edge.state)
    return [*found.values()]


def test_requests_share_a_place_exactly_if_swapping_them_leaves_the_state_as_it_is() -> None:
    model = machine_of("spyre").model(
        next(instance for instance in machine_of("spyre").instances if instance.name == "alike")
    )
    states, shared = reachable(model), 0
    assert len(states) > 100

    for state, (first, other) in product(states, combinations("0123", 2)):
        assert model.places is not None
        swapped = symmetry._renamed_within(state, {first: other, other: first})
        before, after = model.places(state), model.places(swapped)
        assert {*before.values()} <= {*range(4)}
        assert (after[first], after[other]) == (before[other], before[first])
        assert (before[first] == before[other]) == (swapped == state)
        shared += swapped == state
    assert 0 < shared < 6 * len(states)
