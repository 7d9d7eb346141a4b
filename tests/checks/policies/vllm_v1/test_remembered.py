"""Each field of vLLM V1's states is defined: with any other value the next state breaks a rule."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from random import Random
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

import pytest
from attrs import evolve, fields, has

from checks.explore.instance import Instance
from checks.explore.model import Transition
from checks.explore.policy import machine_of
from checks.explore.returning import Forgotten
from reference.core.frozen_map import FrozenMap, updated, without
from spec.core.blocks import BlockPool
from spec.core.requests import Content
from spec.core.rule import AnyRule
from spec.vllm_v1.records import (
    Context,
    EncoderCache,
    Flight,
    GivenBack,
    Load,
    Sequence,
    State,
    Step,
)
from spec.vllm_v1.rules import REGISTRY, applicable
from tests.checks.faults.planting import recorded_refutations

MACHINE = machine_of("vllm-v1")

Field: TypeAlias = tuple[type, str]
Edge: TypeAlias = tuple[Context, State, Transition[State]]

# The rules that say together what a field is after a step, of a request that the step touches and
# of any other. Between two steps it is V1-LIF-3 for all of them.
AFTER_A_STEP: Mapping[Field, tuple[str, ...]] = MappingProxyType(
    {
        (State, "pool"): (
            *("V1-KV-1", "V1-KV-2", "V1-KV-3", "V1-KV-8", "V1-KV-17", "V1-KV-18"),
            *("V1-GRP-10", "V1-GRP-11"),
        ),
        (State, "waiting"): ("V1-ORD-3", "V1-PRE-3", "V1-ORD-4"),
        (State, "skipped"): ("V1-ORD-5", "V1-ORD-4"),
        (State, "running"): ("V1-ORD-1", "V1-ORD-4"),
        (State, "draining"): ("V1-EXT-11", "V1-LIF-2"),
        (State, "finished"): ("V1-LIF-2", "V1-LIF-4"),
        (State, "aborted"): ("V1-LIF-1", "V1-LIF-2", "V1-LIF-5"),
        (State, "unreported"): ("V1-LIF-5",),
        (State, "unanswered"): ("V1-EXT-13",),
        (State, "compiling"): ("V1-STR-1",),
        (State, "awaited"): ("V1-SES-2",),
        (State, "early"): ("V1-SES-4",),
        (State, "preempted"): ("V1-PRE-7",),
        (State, "lost"): ("V1-EXT-10",),
        (State, "flights"): ("V1-ASY-1", "V1-ASY-2"),
        (State, "unfilled"): ("V1-KV-20",),
        (State, "encoder"): ("V1-ENC-11",),
        (EncoderCache, "held"): ("V1-ENC-11",),
        (EncoderCache, "evictable"): ("V1-ENC-11",),
        (EncoderCache, "taken"): ("V1-ENC-11",),
        (Content, "name"): ("V1-ENC-11",),
        (Content, "tokens"): ("V1-ENC-11",),
        (Flight, "scheduled"): ("V1-ASY-2",),
        (Flight, "samples"): ("V1-ASY-2",),
        (Flight, "drafts"): ("V1-ASY-2",),
        (Flight, "padded"): ("V1-ASY-2",),
        (Flight, "external"): ("V1-ASY-2",),
        (Flight, "frees"): ("V1-ASY-7",),
        (GivenBack, "id"): ("V1-ASY-7",),
        (GivenBack, "blocks"): ("V1-ASY-7",),
        (Sequence, "id"): ("V1-LIF-2", "V1-ORD-4", "V1-EXT-11"),
        (Sequence, "prompt_len"): ("V1-LIF-9", "V1-SES-1"),
        (Sequence, "arrival"): ("V1-LIF-9", "V1-SES-1"),
        (Sequence, "computed"): (
            "V1-PRG-6",
            "V1-SPC-2",
            "V1-EXT-10",
            "V1-LIF-8",
            "V1-EXT-11",
            "V1-SES-1",
        ),
        (Sequence, "generated"): ("V1-PRG-8", "V1-SES-1"),
        (Sequence, "drafts"): ("V1-SPC-6", "V1-SES-1"),
        (Sequence, "placeholders"): ("V1-ASY-3",),
        (Sequence, "blocks"): ("V1-KV-16", "V1-SES-1"),
        (Sequence, "prefilling"): ("V1-PRG-7", "V1-LIF-8", "V1-EXT-12", "V1-SES-1"),
        (Sequence, "load"): ("V1-EXT-9", "V1-SES-1"),
        (Sequence, "sending"): ("V1-EXT-11", "V1-EXT-12"),
        (Sequence, "tables"): ("V1-GRP-4", "V1-SES-1"),
        (Sequence, "junction"): ("V1-GRP-16",),
        (Sequence, "grown_from"): ("V1-GRP-17",),
        (BlockPool, "size"): ("V1-KV-18",),
        (BlockPool, "free"): ("V1-KV-8", "V1-GRP-11"),
        (BlockPool, "references"): ("V1-KV-2",),
        (BlockPool, "keys"): ("V1-KV-17", "V1-GRP-10"),
        (BlockPool, "cached"): ("V1-KV-17", "V1-KV-3", "V1-GRP-10"),
    }
)
BETWEEN = "V1-LIF-3"
OF_PARTS = ((State, "pool"), (State, "encoder"))  # whose fields are tried by themselves
QUEUES = ("waiting", "skipped", "running", "draining")
REFUTED = {rule for instance in MACHINE.instances for rule in recorded_refutations(instance)}
NAMES = (
    *("finished", "aborted", "unreported"),
    *("unanswered", "compiling", "awaited", "early", "preempted", "lost"),
)

each_field = pytest.mark.parametrize(
    "field", AFTER_A_STEP, ids=[f"{kind.__name__}.{name}" for kind, name in AFTER_A_STEP]
)


def remembered(kind: type) -> Iterator[Field]:
    """The fields of a class of records, and of those that its fields hold."""
    for key in fields(kind):
        yield kind, key.name
        for inner in (key.type, *get_args(key.type)):
            if has(inner) and inner is not kind:
                yield from remembered(inner)


def test_every_field_of_a_state_has_rules_that_define_it() -> None:
    assert {*remembered(State)} == AFTER_A_STEP.keys()
    assert {rule for rules in AFTER_A_STEP.values() for rule in rules} <= REGISTRY.keys()


# --- other values of one field --------------------------------------------------------------------


def other_values(field: Field, ctx: Context, state: State) -> Iterator[State]:
    """The state with one field of one of its parts otherwise."""
    kind, name = field
    if kind is Sequence:
        yield from _other_rows(name, state)
    elif kind is BlockPool:
        pools = _other_pools(name, ctx, state)
        yield from (evolve(state, pool=pool) for pool in pools if pool != state.pool)
    elif kind is Flight:
        yield from _other_flights(name, state)
    elif kind is GivenBack:
        yield from _other_frees(name, state)
    elif kind is EncoderCache:
        values = _other_orders(getattr(state.encoder, name))
        encoders = (evolve(state.encoder, **{name: value}) for value in values)
        yield from (evolve(state, encoder=other) for other in encoders if other != state.encoder)
    elif kind is Content:
        yield from _other_contents(name, state)
    elif name == "flights":
        orders = (*_other_orders(state.flights), (*state.flights, Flight({})))
        yield from (evolve(state, flights=other) for other in orders if other != state.flights)
    elif name == "unfilled":
        known = state.unfilled or ()
        held = [(block, 0) for block in (*state.pool.references, *state.pool.keys)]
        others = [known[1:]] * bool(known) + [(*known, entry) for entry in held]
        yield from (evolve(state, unfilled=unfilled) for unfilled in others)
    elif name in QUEUES:
        rows = tuple(getattr(state, name))
        yield from (with_queue(state, name, other) for other in _other_orders(rows))
    elif name in NAMES:
        names = getattr(state, name)
        # Nothing shows whether a request that left in the step had lost its load.
        tried = [id_ for id_ in ctx.requests if name != "lost" or id_ not in state.aborted]
        yield from (evolve(state, **{name: names ^ {id_}}) for id_ in tried)


def with_queue(state: State, name: str, rows: Iterable[Sequence]) -> State:
    """The state with these requests in the queue of this name."""
    known: Any = state
    return evolve(known, **{name: tuple(rows)})  # type: ignore[no-any-return]


def _other_orders(rows: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Without one of the rows, with one of them twice, with two that have changed places."""
    for place in range(len(rows)):
        yield (*rows[:place], *rows[place + 1 :])
        yield (*rows, rows[place])
    for place in range(1, len(rows)):
        yield (*rows[: place - 1], rows[place], rows[place - 1], *rows[place + 1 :])


def _other_rows(name: str, state: State) -> Iterator[State]:
    for queue in QUEUES:
        rows = tuple(getattr(state, queue))
        for place, row in enumerate(rows):
            for value in _others(name, getattr(row, name)):
                changed = evolve(row, **{name: value})
                yield with_queue(state, queue, (*rows[:place], changed, *rows[place + 1 :]))


def _other_flights(name: str, state: State) -> Iterator[State]:
    for place, flight in enumerate(state.flights):
        value: Any = getattr(flight, name)
        if isinstance(value, tuple):
            more = GivenBack("another", (1,)) if name == "frees" else "another"
            others: list[Any] = [*(value[:-1] for _ in value[:1]), (*value, more)]
        else:
            counts = {**value, "another": 0}
            others = [{**value, id_: count + 1} for id_, count in counts.items()]
        for other in others:
            changed: Any = evolve(flight, **{name: other})
            flights = (*state.flights[:place], changed, *state.flights[place + 1 :])
            yield evolve(state, flights=flights)


def _other_frees(name: str, state: State) -> Iterator[State]:
    for place, flight in enumerate(state.flights):
        for number, table in enumerate(flight.frees):
            for value in _others(name, getattr(table, name)):
                known: Any = table
                other = evolve(known, **{name: value})
                frees = (*flight.frees[:number], other, *flight.frees[number + 1 :])
                changed = evolve(flight, frees=frees)
                flights = (*state.flights[:place], changed, *state.flights[place + 1 :])
                yield evolve(state, flights=flights)


def _other_contents(name: str, state: State) -> Iterator[State]:
    contents = state.encoder.evictable
    for place, content in enumerate(contents):
        for value in _others(name, getattr(content, name)):
            known: Any = content
            other = evolve(known, **{name: value})
            evictable = (*contents[:place], other, *contents[place + 1 :])
            yield evolve(state, encoder=evolve(state.encoder, evictable=evictable))


def _others(name: str, value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int():
            yield from (value - 1, value + 1)
        case Load():
            yield from (load for load in Load if load is not value)
        case tuple():
            others = (value[:-1], value[::-1], (*value, 1))
            yield from (blocks for blocks in others if blocks != value)
        case str():
            yield from (f"not {value}", f"{value} and another")


def _other_pools(name: str, ctx: Context, state: State) -> Iterator[BlockPool]:
    pool = state.pool
    if name == "size":
        yield from (evolve(pool, size=pool.size + more) for more in (-1, 1))
    elif name == "free":
        yield from (evolve(pool, free=free) for free in _other_orders(tuple(pool.free)))
    elif name == "references":
        for block, count in pool.references.items():
            yield evolve(pool, references=updated(pool.references, {block: count + 1}))
            yield evolve(pool, references=without(pool.references, block))
    elif name == "keys":  # both maps agree all the same
        for block, key in pool.keys.items():
            yield _with_blocks(pool, key, [other for other in pool.cached[key] if other != block])
        for row in state.running if ctx.config.prefix_caching else ():
            full = ctx.keys.of(row.id, row.tokens // ctx.config.block_size)
            for block, key in zip(row.blocks, full, strict=False):
                if block not in pool.keys:
                    yield _with_blocks(pool, key, [*pool.cached.get(key, ()), block])
    else:
        for key, blocks in pool.cached.items():
            yield evolve(pool, cached=updated(pool.cached, {key: blocks[::-1]}))
            yield evolve(pool, cached=without(pool.cached, key))


def _with_blocks(pool: BlockPool, key: bytes, blocks: Iterable[int]) -> BlockPool:
    """The pool in which these blocks, and no others, have the content."""
    cached = {**pool.cached, key: tuple(blocks)}
    cached = {content: held for content, held in cached.items() if held}
    keys = {block: content for content, held in cached.items() for block in held}
    return evolve(pool, keys=FrozenMap(keys), cached=FrozenMap(cached))


# --- judged ---------------------------------------------------------------------------------------


def broken(ctx: Context, rules: Iterable[AnyRule], before: State, step: Any, after: State) -> bool:
    """True if one of the rules finds something in a step, or between two, that ends so."""
    for rule in rules:
        if isinstance(step, Step):
            ended = evolve(step, after=after)
            found = rule.found_in_state(ctx, after) or (
                rule.of_step and rule.found_of_step(ctx, ended)
            )
        else:
            found = rule.found_between(ctx, before, after)
        if found:
            return True
    return False


@cache
def edges() -> tuple[Edge, ...]:
    """Some edges of each default instance, drawn by chance from its first states."""
    drawn: list[Edge] = []
    for number, instance in enumerate(MACHINE.instances):
        first = [*islice(_edges_of(instance), 400)]
        drawn += Random(number).sample(first, min(20, len(first)))
    return tuple(drawn)


@cache
def sound_edges() -> tuple[Edge, ...]:
    """Those of these edges that break no rule."""
    return tuple(edge for edge in edges() if not _breaks_a_rule(*edge))


def _breaks_a_rule(ctx: Context, before: State, edge: Transition[State]) -> bool:
    """True if the edge breaks a rule; only those can that some instance refutes."""
    refuted = (rule for rule in applicable(ctx.config) if rule.id in REFUTED)
    return broken(ctx, refuted, before, edge.record, edge.state)


def _edges_of(instance: Instance[Any]) -> Iterator[Edge]:
    model: Any = MACHINE.model(instance)
    states = [*model.initial()]
    known = set(states)
    for state in states:
        for edge in model.successors(state):
            before = edge.record.state if isinstance(edge.record, Forgotten) else state
            yield model.ctx, before, edge
            if edge.state not in known:
                known.add(edge.state)
                states.append(edge.state)


@each_field
def test_another_value_after_a_step_breaks_a_rule_that_defines_the_field(field: Field) -> None:
    tried = 0
    for ctx, before, edge in edges():
        rules = [rule for rule in applicable(ctx.config) if rule.id in AFTER_A_STEP[field]]
        step = edge.record if isinstance(edge.record, Step) else None
        for after in other_values(field, ctx, edge.state) if step else ():
            tried += 1
            assert broken(ctx, rules, before, step, after), f"{edge.action}: {after}"

    assert tried > 5 or field in OF_PARTS


@pytest.mark.parametrize("queue", QUEUES)
def test_an_order_that_is_decided_otherwise_and_kept_breaks_a_rule(queue: str) -> None:
    tried = 0
    for ctx, before, edge in sound_edges():
        step = edge.record
        if not isinstance(step, Step):
            continue
        rows = tuple(getattr(step.planned, queue))
        after = {row.id: row for row in getattr(edge.state, queue)}
        for order in _other_orders(rows):
            if len(order) == len(rows):
                tried += 1
                planned = with_queue(step.planned, queue, order)
                kept = with_queue(
                    edge.state, queue, (after[row.id] for row in order if row.id in after)
                )
                assert broken(
                    ctx, applicable(ctx.config), before, evolve(step, planned=planned), kept
                )

    assert tried > 5 or queue == "draining"


ENCODER = ("held", "evictable", "taken")


@pytest.mark.parametrize("name", ENCODER)
def test_encodings_that_are_decided_otherwise_and_kept_break_a_rule(name: str) -> None:
    tried = 0
    for ctx, before, edge in sound_edges():
        step = edge.record
        if not isinstance(step, Step) or step.planned.encoder != edge.state.encoder:
            continue
        for other in other_values((EncoderCache, name), ctx, step.planned):
            tried += 1
            after = evolve(edge.state, encoder=other.encoder)
            assert broken(
                ctx, applicable(ctx.config), before, evolve(step, planned=other), after
            ), f"{other}"

    assert tried > 5


NUMBERS = ("prompt_len", "arrival", "computed", "generated", "drafts", "placeholders")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_decided_otherwise_and_kept_breaks_a_rule(name: str) -> None:
    for ctx, before, edge in sound_edges():
        step = edge.record
        for queue in QUEUES if isinstance(step, Step) else ():
            for row in getattr(step.planned, queue):
                for more in (-1, 1):
                    planned, after = (
                        _with_more(state, row.id, name, more)
                        for state in (step.planned, edge.state)
                    )
                    wrong = evolve(step, planned=planned)
                    assert broken(ctx, applicable(ctx.config), before, wrong, after), f"{after}"


def _with_more(state: State, request_id: str, name: str, more: int) -> State:
    """The state in which a number of a request is larger by so much, wherever it stands."""
    for queue in QUEUES:
        rows = getattr(state, queue)
        changed = (
            evolve(row, **{name: getattr(row, name) + more}) if row.id == request_id else row
            for row in rows
        )
        state = with_queue(state, queue, changed)
    return state


def _another_transfer_ends(state: State, other: State) -> bool:
    """True if the states differ in what a connector may do: end a load or a send, or answer."""
    if other.unanswered < state.unanswered or other.compiling < state.compiling:
        return True
    pairs = zip((*state.skipped, *state.draining), (*other.skipped, *other.draining), strict=False)
    differing = [(row, ended) for row, ended in pairs if row != ended]
    return len(differing) == 1 and all(ended in _ended(row) for row, ended in differing)


def _ended(row: Sequence) -> Iterator[Sequence]:
    """The request after the end of a load or a send, if it stays where it is."""
    if row.load is Load.LOADING and not row.sending:
        yield evolve(row, load=Load.LOADED)
    if row.load is Load.LOADING and row.sending:
        yield from (evolve(row, load=Load.NONE), evolve(row, sending=False))


def _another_turn_comes(ctx: Context, state: State, other: State) -> bool:
    """True if in the other state one more turn was sent early, of a session that is under way."""
    under_way = {row.id for row in state.present} - state.awaited | state.early
    more = other.early - state.early
    return bool(more) and all(ctx.earlier_turns.get(id_) in under_way for id_ in more)


@each_field
def test_another_value_between_two_steps_breaks_the_rule_of_what_may_change(field: Field) -> None:
    rules, tried = [REGISTRY["V1-KV-21" if field == (State, "unfilled") else BETWEEN]], 0
    for ctx, before, edge in sound_edges():
        is_step = isinstance(edge.record, Step)
        for after in () if is_step else other_values(field, ctx, edge.state):
            is_other = _another_turn_comes(ctx, edge.state, after)
            if after != before and not (is_other or _another_transfer_ends(edge.state, after)):
                tried += 1
                assert broken(ctx, rules, before, None, after), f"{edge.action}: {after}"

    assert tried > 5 or field in OF_PARTS
