"""Each rule of vLLM V0 holds in a step that witnesses it, and falls on the same step made wrong."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import pytest
from attrs import evolve, frozen

from checks.explore.policy import machine_of
from checks.policies.vllm_v0.model import vllm_v0_model
from reference.core.frozen_map import FrozenMap
from spec.core.blocks import BlockPool
from spec.core.rule import Kind
from spec.vllm_v0.records import Context, Group, Sequence, State, Step
from spec.vllm_v0.rules import REGISTRY

ENOUGH = 1_500  # edges of an instance that are looked at

Where = Callable[[Step], Any]
Wrong = Callable[[Step], Step]


@frozen
class Case:
    """A rule, the instance and the steps to look at, and what is made wrong of them."""

    rule: str
    instance: str
    wrong: Wrong
    where: Where


CASES: list[Case] = []


def falls(rule: str, on: str, wrong: Wrong, where: Where = lambda _step: True) -> None:
    """The rule falls if a step of the instance `on` is changed so."""
    CASES.append(Case(f"V0-{rule}", on, wrong, where))


# --- what is made wrong ---------------------------------------------------------------------------


def in_state(name: str, **changes: Callable[[Any], Any]) -> Wrong:
    """Other fields in the state of a step that is called `name`."""

    def wrong(step: Step) -> Step:
        state = getattr(step, name)
        fields = {key: change(getattr(state, key)) for key, change in changes.items()}
        return evolve(step, **{name: evolve(state, **fields)})

    return wrong


def after(**changes: Callable[[Any], Any]) -> Wrong:
    """Other fields in the state that the step leaves."""
    return in_state("after", **changes)


def planned(**changes: Callable[[Any], Any]) -> Wrong:
    """Other fields in the state in which all is decided."""
    return in_state("planned", **changes)


def before(**changes: Callable[[Any], Any]) -> Wrong:
    """Other fields in the state that the step found."""
    return in_state("before", **changes)


def said(**values: Any) -> Wrong:
    """Other fields of the step itself; functions are given the step."""
    return lambda step: evolve(
        step, **{key: value(step) if callable(value) else value for key, value in values.items()}
    )


def both(*changes: Wrong) -> Wrong:
    """One change after the other."""

    def wrong(step: Step) -> Step:
        for change in changes:
            step = change(step)
        return step

    return wrong


def each(**values: Any) -> Callable[[tuple[Group, ...]], tuple[Group, ...]]:
    """Every group of a queue with these fields; functions are given the group."""
    return lambda queue: tuple(
        evolve(
            group,
            **{key: value(group) if callable(value) else value for key, value in values.items()},
        )
        for group in queue
    )


def every_sequence(**values: Any) -> Callable[[tuple[Group, ...]], tuple[Group, ...]]:
    """Every sequence of every group of a queue with these fields."""

    def wrong(sequence: Sequence) -> Sequence:
        fields = {
            key: value(sequence) if callable(value) else value for key, value in values.items()
        }
        return evolve(sequence, **fields)

    return each(sequences=lambda group: tuple(map(wrong, group.sequences)))


def blocks(**changes: Callable[[Any], Any]) -> Callable[[BlockPool], BlockPool]:
    """A pool with other fields."""
    return lambda pool: evolve(
        pool, **{key: change(getattr(pool, key)) for key, change in changes.items()}
    )


def backwards(queue: Any) -> Any:
    return tuple(reversed(tuple(queue)))


def one_backwards(group: Group) -> tuple[Sequence, ...]:
    first, *others = group.sequences
    return evolve(first, blocks=first.blocks[::-1]), *others


def none(_value: Any) -> tuple[()]:
    return ()


def roomy(_free: Any) -> tuple[int, ...]:
    return tuple(range(1, 99))


def one_more(counts: Any) -> Any:
    return FrozenMap({key: count + 1 for key, count in counts.items()})


def without_decodes(step: Step) -> dict[str, int]:
    return {id_: count for id_, count in step.scheduled.items() if id_ in step.prefills}


NOTHING = said(
    scheduled={}, prefills=(), admitted=(), swapped_in=(), planned=lambda step: step.before
)
WAITING_FIRST: Where = lambda step: len(step.before.waiting) > 1  # noqa: E731


# --- a group's life -------------------------------------------------------------------------------

falls("LIF-1", "recompute", after(finished=lambda _: frozenset({"0", "1", "2"})))
falls("LIF-2", "recompute", after(waiting=none, running=none, swapped=none))
falls("LIF-4", "recompute", said(finished=()))
falls("LIF-6", "swap", after(waiting=each(computed=1)))
falls("LIF-7", "forks", after(running=every_sequence(blocks=(1,))))
falls("LIF-8", "chunked", said(admitted=()))
falls(
    "LIF-9",
    "recompute",
    after(waiting=each(prompt_len=9)),
    lambda step: step.scheduled and step.after.waiting,
)

falls(
    "ADM-1",
    "recompute",
    planned(running=every_sequence(blocks=())),
    lambda step: step.admitted,
)
falls("ADM-2", "too long", said(ignored=lambda step: step.admitted), lambda step: step.admitted)
falls("ADM-3", "too long", said(ignored=()))
falls("ADM-4", "recompute", said(ignored=lambda step: step.admitted))
falls("ADM-5", "adapters", said(scheduled={"0": 1, "1": 1}))
falls(
    "ADM-6",
    "delay",
    said(admitted=lambda step: (step.before.waiting[0].id,)),
    lambda step: step.scheduled and not step.admitted,
)
falls("ADM-7", "recompute", NOTHING)
falls("ADM-8", "delay", after(waiting=each(waited=0.0)))

# --- the budget -----------------------------------------------------------------------------------

falls("BUD-1", "chunked", said(scheduled=lambda step: dict.fromkeys(step.scheduled, 99)))
falls("BUD-2", "priority", after(running=each(sequences=lambda group: group.sequences * 3)))
falls("BUD-3", "recompute", said(budget=lambda step: evolve(step.budget, batched={"0": 1})))
falls("BUD-4", "shared prefix", said(budget=lambda step: evolve(step.budget, cached={})))
falls("BUD-8", "forks", said(budget=lambda step: evolve(step.budget, token_budget=9)))
falls("BUD-5", "forks", said(budget=lambda step: evolve(step.budget, seqs={"0": 9, "1": 9})))
falls("BUD-6", "forks", said(scheduled={"0": 9}), lambda step: "0" in without_prefills(step))
falls("BUD-7", "recompute", said(scheduled={}), lambda step: not step.finished)


def without_prefills(step: Step) -> set[str]:
    return step.scheduled.keys() - {*step.prefills}


# --- blocks ---------------------------------------------------------------------------------------

falls("BLK-1", "recompute", after(pool=blocks(free=none)), lambda step: step.after.pool.free)
falls("BLK-2", "swap", after(cpu=blocks(free=none)), lambda step: step.after.cpu.free)
falls("BLK-3", "forks", after(pool=blocks(references=one_more)))
falls("BLK-4", "swap", after(cpu=blocks(references=one_more)))
falls("BLK-5", "recompute", after(pool=blocks(references=lambda _: FrozenMap({1: 1}))))
falls("BLK-6", "recompute", after(running=every_sequence(slots=99)))
falls("BLK-7", "forks", after(running=each(sequences=one_backwards)))
falls("BLK-8", "shared prefix", after(pool=blocks(keys=lambda _: FrozenMap({1: b""}))))
falls(
    "BLK-9",
    "shared prefix",
    before(marks=lambda marks: FrozenMap({block: -mark for block, mark in marks.items()})),
)
falls("BLK-10", "recompute", after(pool=blocks(free=backwards)))
falls("BLK-11", "encoder", after(running=each(cross=())))
falls("BLK-12", "shared prefix", after(marks=lambda _: FrozenMap()))
falls("BLK-13", "shared prefix", after(pool=blocks(free=backwards)))

# --- swapping -------------------------------------------------------------------------------------

falls("SWP-1", "swap", said(swaps_out=((1, 1), (2, 1))), lambda step: step.swaps_out)
falls("SWP-2", "swap", said(swaps_out=(), swaps_in=()))
falls("SWP-3", "swap", said(swapped_in=("0",)))
falls("SWP-4", "swap", planned(swapped=each(computed=0)))
falls("SWP-5", "swap", planned(running=each(computed=0)))
falls("SWP-6", "swap", planned(pool=blocks(free=roomy)))
falls("SWP-7", "released, swap", before(swapped=each(prompt_len=1, sequences=(Sequence("0"),))))
falls("SWP-8", "swap", said(ignored=lambda step: step.swapped_out))
falls("SWP-9", "swap", planned(running=each(computed=0, is_prefill=True)))
falls("SWP-11", "swap", planned(swapped=backwards))
falls("SWP-12", "swap, shared prefix", before(swapped=each(computed=0)))
falls("SWP-14", "priority, swap, four", said(swapped_in=("3",)))
falls(
    "SWP-15",
    "priority, swap, four",
    before(swapped=backwards),
)
falls("SWP-16", "swap", after(swapped=each(is_forgotten=True)))
falls(
    "SWP-13",
    "swap, watermark",
    planned(pool=blocks(free=none)),
    lambda step: len(step.planned.running) > 1,
)

# --- preemption -----------------------------------------------------------------------------------

for rule in ("PRE-1", "PRE-2", "PRE-9"):
    falls(rule, "recompute", before(pool=blocks(free=roomy)))
falls("PRE-3", "swap", said(swapped_out=lambda step: step.swapped_out[::-1]))
falls("PRE-4", "priority", said(preempted=lambda step: (urgent(step),), by_priority=()))
falls("PRE-5", "swap", said(preempted=lambda step: step.swapped_out, swapped_out=()))
falls("PRE-6", "forks", said(preempted=lambda step: step.swapped_out))
falls("PRE-7", "recompute", planned(waiting=each(computed=1)))
falls("PRE-8", "multi-step", planned(waiting=backwards))
falls("PRE-10", "documented, two long", said(scheduled={}))


def urgent(step: Step) -> str:
    """The most urgent running request of the instances with priorities: the last of them."""
    return max(group.id for group in step.before.running)


# --- priorities -----------------------------------------------------------------------------------

falls("PRI-1", "priority", planned(waiting=backwards), lambda step: len(step.planned.waiting) > 1)
falls("PRI-2", "priority", before(waiting=none))
falls("PRI-3", "priority, one at a time", said(by_priority=("0", "0")))
falls(
    "PRI-4",
    "priority, one at a time",
    both(
        said(by_priority=(), preempted=(), swapped_out=()), said(planned=lambda step: step.before)
    ),
)
falls(
    "PRI-5",
    "documented, priority, two at a time",
    planned(waiting=lambda queue: tuple(evolve(group, id="2", arrival=-9) for group in queue)),
    lambda step: "2" not in step.scheduled,
)
falls("PRI-6", "priority", planned(waiting=none))
falls("PRI-7", "priority", said(admitted=("0",)))
falls(
    "PRI-8",
    "priority, one at a time",
    lambda step: evolve(
        step,
        admitted=(step.planned.waiting[-1].id,),
        planned=evolve(step.planned, running=step.planned.waiting),
    ),
    lambda step: not step.before.running,
)

# --- order ----------------------------------------------------------------------------------------

falls("ORD-1", "recompute", before(waiting=backwards), lambda step: len(step.admitted) == 1)
falls(
    "ORD-2",
    "recompute",
    said(scheduled={"0": 1, "1": 1, "2": 1}),
    lambda step: len(step.admitted) < 3,
)
falls("ORD-3", "swap", said(admitted=lambda step: (step.before.waiting[0].id,)))
falls("ORD-4", "chunked", said(scheduled=without_decodes))
falls("ORD-5", "partial prefills, two long", planned(running=backwards))
falls("ORD-6", "partial prefills, two long", planned(running=backwards))
falls("ORD-7", "chunked", said(scheduled=lambda step: dict(reversed(step.scheduled.items()))))
falls("ORD-8", "chunked", planned(waiting=backwards))
falls("ORD-11", "forks, several", planned(running=backwards))
falls("ORD-9", "combined, all at once", said(scheduled=without_decodes))
falls(
    "ORD-10",
    "adapters in order",
    said(scheduled=lambda step: dict(reversed(step.scheduled.items()))),
    lambda step: len(step.prefills) == 2,
)

# --- chunks ---------------------------------------------------------------------------------------

falls("CHK-1", "chunked", said(scheduled=lambda step: dict.fromkeys(step.scheduled, 0)))
falls("CHK-2", "chunked, caching", said(scheduled=lambda step: less(step)))
falls("CHK-3", "chunked", said(scheduled=lambda step: less(step)))
falls("CHK-4", "partial prefills", said(scheduled=lambda step: dict.fromkeys(step.scheduled, 0)))
falls("CHK-5", "partial prefills", said(admitted=("0", "1")), lambda step: WAITING_FIRST(step))
falls("CHK-6", "chunked", said(sampling=()))
falls(
    "CHK-8",
    "partial prefills",
    said(scheduled=lambda step: dict.fromkeys(step.scheduled, 99)),
)
falls("CHK-7", "documented, chunked", said(sampling=()))
falls("CHK-9", "chunked", after(running=each(is_prefill=lambda group: not group.is_prefill)))


def less(step: Step) -> dict[str, int]:
    return {id_: count - (id_ in step.prefills) for id_, count in step.scheduled.items()}


# --- prefix caching -------------------------------------------------------------------------------

falls("PFX-1", "recompute", after(pool=blocks(keys=lambda _: FrozenMap({1: b""}))))
falls("PFX-2", "shared prefix", planned(running=each(cached=8)))
falls("PFX-3", "shared prefix", after(computed=lambda _: frozenset({99})))
falls("PFX-4", "shared prefix", after(computed=lambda _: frozenset()))
falls(
    "PFX-5",
    "whole hit",
    said(budget=lambda step: evolve(step.budget, cached=step.scheduled)),
)
falls(
    "PFX-6",
    "shared prefix",
    after(pool=blocks(keys=lambda keys: FrozenMap(dict.fromkeys(keys, b"")))),
)
falls("PFX-7", "shared prefix", before(computed=lambda _: frozenset()))
falls(
    "PFX-8",
    "shared prefix",
    after(pool=blocks(keys=lambda _: FrozenMap())),
)
falls("PFX-9", "chunked, caching", after(running=each(cached=None)))

# --- lookahead ------------------------------------------------------------------------------------

falls("LKA-1", "lookahead", planned(running=every_sequence(blocks=(1,))))
falls("LKA-2", "lookahead", planned(running=every_sequence(blocks=tuple(range(9)))))
falls("LKA-3", "lookahead", said(sampled=lambda step: dict.fromkeys(step.sampled, (1,) * 9)))
falls("LKA-4", "lookahead", said(lookahead_slots=9))
falls("LKA-5", "lookahead", after(running=each(computed=0)))
falls("LKA-6", "swap", after(swapped=every_sequence(slots=0)))

# --- sequences ------------------------------------------------------------------------------------

falls("SEQ-1", "forks", said(forked={}))
falls("SEQ-2", "forks", after(running=every_sequence(blocks=(1,))), lambda step: step.after.running)
falls(
    "SEQ-3",
    "forks",
    planned(
        running=each(
            sequences=lambda group: (group.sequences[0], evolve(group.sequences[0], id="0/1"))
        )
    ),
    lambda step: [group.id for group in step.planned.running] == ["0"],
)
falls("SEQ-4", "forks", said(copies=((1, 99),)))
falls("SEQ-5", "forks", said(sampled=lambda step: dict.fromkeys(step.sampled, (1,))))
falls("SEQ-6", "forks", after(running=each(is_prefill=True)))
falls(
    "SEQ-7",
    "forks",
    planned(running=every_sequence(blocks=lambda sequence: tuple(99 for _ in sequence.blocks))),
    lambda step: step.before.running and step.planned.running,
)

# --- getting on -----------------------------------------------------------------------------------

falls("PRG-1", "recompute", after(failure=lambda _: "an assertion"))
falls("PRG-2", "recompute", both(NOTHING, said(preempted=(), after=lambda step: step.before)))
falls("PRG-4", "chunked", said(scheduled=without_decodes), lambda step: without_prefills(step))
falls("PRG-5", "documented", NOTHING)
falls("PRG-7", "forks, several", said(is_async=lambda step: not step.is_async))


# --- steps ----------------------------------------------------------------------------------------

INSTANCES = {instance.name: instance for instance in machine_of("vllm-v0").instances}


Edge = Step | tuple[State, State]


def walk(model: Any) -> Iterator[Edge]:
    """Steps, and changes between steps, those nearest to the start first."""
    queue = deque(model.initial())
    seen = set(queue)
    while queue:
        state = queue.popleft()
        for edge in model.successors(state):
            yield edge.record if isinstance(edge.record, Step) else (state, edge.state)
            if edge.state not in seen:
                seen.add(edge.state)
                queue.append(edge.state)


@cache
def explored(instance: str) -> tuple[Context, list[Edge], Iterator[Edge]]:
    """The edges of an instance that were looked at so far, and those behind them."""
    model: Any = vllm_v0_model(INSTANCES[instance])
    return model.machine.ctx, [], islice(walk(model), ENOUGH)


def edges(instance: str) -> Iterator[Edge]:
    _, known, more = explored(instance)
    yield from known
    for edge in more:
        known.append(edge)
        yield edge


def candidates(case: Case) -> Iterator[tuple[Context, Step]]:
    """Steps that witness the rule of a case, are as it wants them, and keep the rule."""
    rule, ctx = REGISTRY[case.rule], explored(case.instance)[0]
    assert rule.applies(ctx.config)
    for step in edges(case.instance):
        if not isinstance(step, Step):
            continue
        witnesses = rule.witness(ctx, step) or case.rule in ("V0-SWP-8", "V0-PRI-4")
        if witnesses and case.where(step) and rule.found_of_step(ctx, step) is None:
            yield ctx, step


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_falls_on_a_step_that_is_made_wrong(case: Case) -> None:
    rule = REGISTRY[case.rule]

    assert any(rule.found_of_step(ctx, case.wrong(step)) for ctx, step in candidates(case))


def test_every_rule_about_states_and_steps_has_such_a_case() -> None:
    judged = [rule.id for rule in REGISTRY.values() if rule.kind in (Kind.ALWAYS, Kind.STEP)]

    assert sorted(case.rule for case in CASES) == sorted(judged)


# --- between two steps, and in the end ------------------------------------------------------------


def aborts(instance: str) -> Iterator[tuple[Context, State, State]]:
    """Changes in which a client goes away."""
    for change in [*edges(instance)]:
        if isinstance(change, tuple) and change[0].aborted != change[1].aborted:
            yield explored(instance)[0], *change


@pytest.mark.parametrize("instance", ["swap", "recompute", "chunked, caching"])
def test_what_an_aborted_group_keeps_is_noticed(instance: str) -> None:
    rule = REGISTRY["V0-LIF-5"]
    changes = [(ctx, old, other) for ctx, old, other in aborts(instance) if old.pool != other.pool]

    assert changes
    for ctx, state, changed in changes:
        assert rule.found_between(ctx, state, changed) is None
        assert rule.found_between(ctx, state, evolve(changed, pool=state.pool, cpu=state.cpu))


def test_what_an_abort_does_to_others_is_noticed() -> None:
    rule = REGISTRY["V0-LIF-3"]
    changes = [(ctx, old, other) for ctx, old, other in aborts("swap") if other.running]

    assert changes
    for ctx, state, changed in changes:
        wrong = evolve(changed, running=each(computed=99)(changed.running))
        assert rule.found_between(ctx, state, changed) is None
        assert rule.found_between(ctx, state, wrong)


@pytest.mark.parametrize(
    ("rule", "wants"),
    [
        ("V0-PRG-3", lambda state: state.present),
        ("V0-PRG-6", lambda state: state.waiting),
        ("V0-SWP-10", lambda state: state.swapped),
        ("V0-PRE-11", lambda state: [group for group in state.waiting if group.generated]),
    ],
)
def test_what_must_come_has_not_come_where_a_request_still_waits(
    rule: str, wants: Callable[[State], Iterable[Group]]
) -> None:
    goal: Any = REGISTRY[rule].goal
    steps = [step for name in ("swap", "recompute") for step in edges(name)]
    states = [step.after for step in steps if isinstance(step, Step)]

    for state in states:
        waiting = {group.id for group in wants(state)}
        assert {id_ for id_ in "012" if not goal(state, id_)} == waiting
    assert any(wants(state) for state in states)
