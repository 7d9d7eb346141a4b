"""Every field of a state is defined: rules notice other values after a step and between two."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Any

import pytest
from attrs import evolve, fields

from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.policies.spyre.adapter import inferred_events
from checks.policies.spyre.model import spyre_model
from checks.policies.spyre.remembered import DEFINING_RULES
from spec.core.blocks import BlockPool
from spec.core.records import DECODE, IDLE, PREFILL
from spec.core.rule import Kind
from spec.spyre.records import Context, Step
from spec.spyre.rules import REGISTRY
from spec.spyre.state import Sequence, State
from tests.checks.faults.spyre import FAULTS

Edge = tuple[Context, State, State, Step | None]  # around a scheduler step, or an arrival or abort
BY_NAME = {instance.name: instance for instance in machine_of("spyre").instances}
INSTANCES = (
    *("pausing", "preemption, shared prefix", "dialogue", "released", "exact, aligned"),
    *("grammar", "grammar, released", "images", "images, released"),
)
MOST_STATES = 250  # of an instance

OF_CHANGES = (REGISTRY["LIF-9"], REGISTRY["BLK-10"])  # the latter of the order of free blocks
CASES = [(kind, name) for kind, rows in DEFINING_RULES.items() for name in rows]


def edges_of(instance: Instance[Any], most: int | None = None) -> Iterator[Edge]:
    """The edges of an instance, at most those of its first `most` states."""
    model = spyre_model(instance)
    pending = [*model.initial()]
    seen = {model.canonical(state) for state in pending}
    for state in islice(pending, most):  # grows while it is read
        for edge in model.successors(state):
            step = edge.record if isinstance(edge.record, Step) else None
            yield model.ctx, state, edge.state, step
            if model.canonical(edge.state) not in seen:
                seen.add(model.canonical(edge.state))
                pending.append(edge.state)


@cache
def edges() -> list[Edge]:
    """The first edges of each of the instances."""
    return [*chain.from_iterable(edges_of(BY_NAME[name], MOST_STATES) for name in INSTANCES)]


# --- wrong values ---------------------------------------------------------------------------------


def other(kind: type[Any], name: str, value: Any) -> Iterable[Any]:
    """Other values of a field."""
    match value:
        case int():
            return [value + 1, *([value - 1] if value else [])]
        case str():
            kinds = (PREFILL, DECODE, IDLE) if name == "last_kind" else (f"{value}'",)
            return [name for name in kinds if name != value]
        case frozenset():
            return [value | {"another"}, *([frozenset([*value][1:])] if value else [])]
        case tuple():
            return [
                *([value[::-1]] if len(value) > 1 else []),
                *([value[1:]] if value else []),
            ]
        case None:
            return []
        case Sequence():
            return [None]
        case BlockPool():
            return [evolve(value, size=value.size + 1)]
    return other_maps(name, value)


def other_maps(name: str, value: Any) -> Iterator[Any]:
    """Other reference counts, other contents of a block, another order of equal blocks."""
    kind = type(value)
    if name == "references":
        yield from (kind({**value, block: value[block] + 1}) for block in value)
    if name == "keys" and len({*value.values()}) > 1:
        blocks = [*value]
        contents = [value[block] for block in blocks]
        yield kind(zip(blocks, [*contents[1:], contents[0]], strict=True))
        yield kind({block: value[block] for block in blocks[1:]})
    if name == "cached":
        yield from (
            kind({**value, key: held[::-1]}) for key, held in value.items() if len(held) > 1
        )


def wrong_states(kind: type[Any], name: str, state: State) -> Iterator[tuple[State, str]]:
    """States with another value in this field, each with the id of the changed request."""
    if kind is State:
        yield from ((evolve(state, **{name: value}), "") for value in changed(kind, name, state))
    elif kind is BlockPool:
        for value in changed(kind, name, state.pool):
            yield evolve(state, pool=evolve(state.pool, **{name: value})), ""
    else:
        for row in state.present:
            for value in changed(kind, name, row):
                wrong = evolve(row, **{name: value})
                yield with_row(state, row, wrong), row.id


def changed(kind: type[Any], name: str, value: Any) -> Iterable[Any]:
    return other(kind, name, getattr(value, name))


def with_row(state: State, row: Sequence, wrong: Sequence) -> State:
    """The state with another record of a request, in the same place."""

    def put(rows: Iterable[Sequence]) -> tuple[Sequence, ...]:
        return tuple(wrong if other is row else other for other in rows)

    return evolve(
        state,
        waiting=put(state.waiting),
        prefilling=wrong if state.prefilling is row else state.prefilling,
        decoding=put(state.decoding),
        paused=put(state.paused),
    )


def with_batch(step: Step, after: State, request_id: str) -> Step:
    """The step that left this state, its batch as the state has it of this request."""
    rows = {row.id: row for row in after.decoding if row.id == request_id}
    return evolve(step, after=after, batch=tuple(rows.get(row.id, row) for row in step.batch))


# --- what notices them ----------------------------------------------------------------------------


def breaks(ctx: Context, rules: Iterable[str], step: Step) -> bool:
    """True if a step, or the state that it left, breaks one of the rules."""
    for name in rules:
        rule = REGISTRY[name]
        if not rule.applies(ctx.config):
            continue
        if rule.kind is Kind.ALWAYS and rule.found_in_state(ctx, step.after):
            return True
        if rule.of_step is not None and rule.found_of_step(ctx, step):
            return True
    return False


@pytest.mark.parametrize("kind", DEFINING_RULES)
def test_every_field_has_a_row_with_rules_of_the_registry(kind: type[Any]) -> None:
    assert DEFINING_RULES[kind].keys() == {key.name for key in fields(kind)}
    assert {rule for rules in DEFINING_RULES[kind].values() for rule in rules} <= REGISTRY.keys()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_another_value_after_a_step_breaks_a_rule_of_the_row(kind: type[Any], name: str) -> None:
    tried, missed = 0, []
    for ctx, _, after, step in edges():
        for wrong, request_id in wrong_states(kind, name, after) if step else ():
            tried += 1
            assert step is not None
            if not breaks(ctx, DEFINING_RULES[kind][name], with_batch(step, wrong, request_id)):
                missed.append((step.before, wrong))

    assert tried > 0
    assert missed == []


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_another_value_between_two_steps_breaks_the_rule_on_every_field(
    kind: type[Any], name: str
) -> None:
    tried, missed = 0, []
    for ctx, before, after, step in edges():
        for wrong, _ in wrong_states(kind, name, after) if step is None else ():
            is_ready = wrong.compiling < after.compiling or wrong.encoding < after.encoding
            failed = (wrong.untold ^ after.untold) & before.encoding
            if wrong == before or is_ready or failed:
                continue  # as if no client had come or gone, a grammar or images were ready or not
            tried += 1
            if not any(rule.found_between(ctx, before, wrong) for rule in OF_CHANGES):
                missed.append((before, wrong))

    assert tried > 0
    assert missed == []


# --- a release by itself --------------------------------------------------------------------------

# Faults in orders of 2.6.3, and the rule that each breaks on the steps that a driver reports.
ALONE = {
    "second stepped over": "SPY-PRI-14",
    "released queue turned": "SPY-PRI-13",
    "released ties the other way": "SPY-PAU-7",
    "released paused turned round": "SPY-PAU-7",
    "released resumed out of order": "SPY-PAU-7",
    "released joins behind": "SPY-DEC-7",
    "released abort forgets the kind": "LIF-9",
}
FAULTY = {fault.name: fault for fault in FAULTS if fault.name in ALONE}


def broken_by_own_steps(instance: Instance[Any], rule: str) -> bool:
    """True if a rule is broken by the steps of the machine, with the events that show in them."""
    return any(
        REGISTRY[rule].found_between(ctx, before, after)
        if step is None
        else REGISTRY[rule].found_of_step(
            ctx, evolve(step, events=inferred_events(step, instance.config))
        )
        for ctx, before, after, step in edges_of(instance)
    )


@pytest.mark.parametrize("name", ALONE)
def test_another_order_breaks_a_rule_on_the_steps_of_a_release_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, rule = FAULTS.instances[FAULTY[name].instance], ALONE[name]

    assert not broken_by_own_steps(instance, rule)
    FAULTY[name].plant(monkeypatch)
    assert broken_by_own_steps(instance, rule)
