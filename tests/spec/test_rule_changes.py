"""What a rule need not look at again: judged by the change, as by the whole state."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from checks.harness.case import Case
from checks.harness.serving import served
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Prompt, Request
from spec.core.rule import Kind
from spec.core.sharing import BlockOrder, DerivedMap, FrozenMap
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules import REGISTRY, Rule, applicable
from spec.spyre.rules.changes import Change, Order, changed, differing, without_middle
from spec.spyre.state import Sequence, State

CONFIG = SpyreConfig(block_size=2, chunk_size=4, max_model_len=32, max_num_seqs=3, num_blocks=14)
REQUESTS = [
    Request(id=str(n), prompt=Prompt.of_stream(f"stream {n % 2}", 3 + n), max_tokens=4, arrival=n)
    for n in range(6)
]
MACHINE = SpyreMachine.of(CONFIG, REQUESTS)
CASE = Case(CONFIG, tuple(REQUESTS))


def _engine_steps() -> list[Step]:
    """With so short runs of blocks, and so late new bases, that the states share parts of both."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("engine.spyre.blocks._RUN", 3)
        patched.setattr("spec.core.sharing._FEW", 1)
        return list(served(CASE, using="engine"))


REFERENCE_STEPS: list[Step] = list(served(CASE))
ENGINE_STEPS: list[Step] = _engine_steps()
STEPS = [*REFERENCE_STEPS, *ENGINE_STEPS]
STATE_RULES: list[Rule] = [rule for rule in applicable(CONFIG) if rule.kind is Kind.ALWAYS]
CTX: Context = MACHINE.ctx


# --- tuples and maps -----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_tuples_differ_in_their_middle(before: list[int], after: list[int]) -> None:
    old, new = (list(middle) for middle in differing(tuple(before), tuple(after)))

    assert any(
        (before[:start] + old + rest, after[:start] + new + rest) == (before, after)
        and before[:start] == after[:start]
        for start in range(len(before) - len(old) + 1)
        for rest in [before[start + len(old) :]]
    )
    assert not (old and new) or (old[0] != new[0] and old[-1] != new[-1])


def test_a_queue_that_lost_its_head_and_got_a_newcomer_differs_in_everything_between() -> None:
    assert differing((1, 2, 3), (2, 3)) == ((1,), ())
    assert differing((1, 2), (1, 2, 3)) == ((), (3,))
    assert differing((1, 2, 3), (2, 3, 4)) == ((1, 2, 3), (2, 3, 4))


def test_a_derived_map_knows_what_was_changed_as_long_as_its_origin_is_there() -> None:
    old = DerivedMap.of(FrozenMap(), {n: n for n in range(5)})
    new = DerivedMap.of(old, {1: 7, 2: None, 9: 3})

    assert new == {0: 0, 1: 7, 3: 3, 4: 4, 9: 3}
    assert hash(new) == hash(FrozenMap(new))
    assert new.origin is old
    assert changed(old, new) == {1, 2, 9}
    assert changed(old, FrozenMap(new)) == {1, 2, 9}
    assert changed(new, old) == {1, 2, 9}
    del old
    assert new.origin is None


# --- every rule about a state --------------------------------------------------------------------


def test_the_engine_takes_the_steps_of_the_reference_and_tells_them_with_shared_parts() -> None:
    assert [step.after for step in ENGINE_STEPS] == [step.after for step in REFERENCE_STEPS]
    pools = [step.after.pool for step in ENGINE_STEPS]
    assert all(isinstance(pool.keys, DerivedMap) for pool in pools)
    assert max(len(pool.free.runs) for pool in pools if isinstance(pool.free, BlockOrder)) > 3


def test_the_states_of_a_run_keep_every_rule_judged_by_their_changes() -> None:
    assert len(STATE_RULES) >= 15
    for step in STEPS:
        for rule in STATE_RULES:
            assert rule.found_after(CTX, step.before, step.after) is None
            assert rule.found_in_state(CTX, step.after) is None


Fault = Callable[[State, int], State | None]


def _pool(state: State, **parts: Any) -> State:
    return evolve(state, pool=evolve(state.pool, **parts))


def _lost_block(state: State, n: int) -> State | None:
    free = tuple(state.pool.free)
    return _pool(state, free=free[: n % len(free)] + free[n % len(free) + 1 :]) if free else None


def _block_twice(state: State, n: int) -> State | None:
    free = state.pool.free
    return _pool(state, free=(free[n % len(free)], *free)) if free else None


def _block_for_another(state: State, n: int) -> State | None:
    """One is lost, another is there twice: the number is right."""
    free = state.pool.free
    return _pool(state, free=(free[-1], *free[1:])) if len(free) > 1 else None


def _padding_block(state: State, n: int) -> State | None:
    return _pool(state, free=(*state.pool.free[1:], 0)) if state.pool.free else None


def _one_holder_more(state: State, n: int) -> State | None:
    held = state.pool.references
    return _pool(state, references=held.set({[*held][n % len(held)]: 7})) if held else None


def _wrong_key(state: State, n: int) -> State | None:
    keys = state.pool.keys
    return _pool(state, keys=keys.set({[*keys][n % len(keys)]: b"other"})) if keys else None


def _lost_content(state: State, n: int) -> State | None:
    cached = state.pool.cached
    return _pool(state, cached=cached.without([*cached][n % len(cached)])) if cached else None


def _waits_with_blocks(state: State, n: int) -> State | None:
    return _with_waiting(state, n, blocks=(1,), reserved=99)


def _waits_computed(state: State, n: int) -> State | None:
    return _with_waiting(state, n, computed=1)


def _waits_generated(state: State, n: int) -> State | None:
    return _with_waiting(state, n, generated=1)


def _row_with(state: State, n: int, **parts: Any) -> State | None:
    if not state.decoding:
        return None
    place = n % len(state.decoding)
    row = evolve(state.decoding[place], **parts)
    rows = (*state.decoding[:place], row, *state.decoding[place + 1 :])
    return evolve(state, decoding=rows)


def _row_with_blocks_of_another(state: State, n: int) -> State | None:
    tables = [one.blocks for one in state.admitted]
    return _row_with(state, n, blocks=tables[-1]) if tables else None


def _row_that_lost_a_block(state: State, n: int) -> State | None:
    if not state.decoding:
        return None
    return _row_with(state, n, blocks=state.decoding[n % len(state.decoding)].blocks[:-1])


def _row_twice(state: State, n: int) -> State | None:
    """Nothing of the pool has changed, and no table: there is one more."""
    if not state.decoding:
        return None
    return evolve(state, decoding=(*state.decoding, state.decoding[n % len(state.decoding)]))


def _counted_though_nobody_holds_it(state: State, n: int) -> State | None:
    free = state.pool.free
    counted = state.pool.references.set({free[n % len(free)]: 0}) if free else None
    return None if counted is None else _pool(state, references=counted)


def _row_with_fewer_tokens(state: State, n: int) -> State | None:
    return _row_with(state, n, computed=1, hit_blocks=0)


def _key_of_a_held_block(state: State, n: int) -> State | None:
    """Of somebody whose table and tokens are as they were."""
    held = [block for one in state.admitted for block in one.blocks]
    if not held:
        return None
    return _pool(state, keys=state.pool.keys.set({held[n % len(held)]: b"other"}))


def _full_block_not_cached(state: State, n: int) -> State | None:
    keys = [block for one in state.admitted for block in one.blocks if block in state.pool.keys]
    if not keys:
        return None
    return _pool(state, keys=state.pool.keys.without(keys[n % len(keys)]))


def _with_waiting(state: State, n: int, **parts: Any) -> State | None:
    if not state.waiting:
        return None
    place = n % len(state.waiting)
    wrong = evolve(state.waiting[place], **parts)
    return evolve(state, waiting=(*state.waiting[:place], wrong, *state.waiting[place + 1 :]))


def _waits_twice(state: State, n: int) -> State | None:
    if not state.waiting:
        return None
    return evolve(state, waiting=(*state.waiting, state.waiting[n % len(state.waiting)]))


def _decodes_and_waits(state: State, n: int) -> State | None:
    if not state.decoding:
        return None
    row = state.decoding[n % len(state.decoding)]
    return evolve(state, waiting=(*state.waiting, Sequence(row.id, row.prefill_len)))


def _waits_and_has_finished(state: State, n: int) -> State | None:
    if not state.waiting:
        return None
    return evolve(state, finished=state.finished | {state.waiting[n % len(state.waiting)].id})


def _came_back(state: State, n: int) -> State | None:
    if not state.finished:
        return None
    name = sorted(state.finished)[n % len(state.finished)]
    return evolve(state, waiting=(*state.waiting, Sequence(name, CTX.requests[name].prompt_len)))


def _row_with_wrong_promise(state: State, n: int) -> State | None:
    if not state.decoding:
        return None
    first, *others = state.decoding
    return evolve(state, decoding=(evolve(first, reserved=first.reserved + 1), *others))


FAULTS = [
    (_lost_block, "BLK-1"),
    (_block_twice, "BLK-1"),
    (_block_for_another, "BLK-1"),
    (_padding_block, "BLK-3"),
    (_one_holder_more, "BLK-2"),
    (_row_with_blocks_of_another, "BLK-2"),
    (_row_that_lost_a_block, "BLK-2"),
    (_row_twice, "BLK-2"),
    (_counted_though_nobody_holds_it, "BLK-2"),
    (_row_with_fewer_tokens, "SPY-PFX-1"),
    (_key_of_a_held_block, "SPY-PFX-2"),
    (_full_block_not_cached, "SPY-PFX-8"),
    (_wrong_key, "BLK-5"),
    (_lost_content, "BLK-5"),
    (_waits_with_blocks, "LIF-5"),
    (_waits_computed, "BLK-8"),
    (_waits_generated, "LIF-8"),
    (_waits_twice, "LIF-1"),
    (_decodes_and_waits, "LIF-1"),
    (_waits_and_has_finished, "LIF-1"),
    (_came_back, "LIF-1"),
    (_row_with_wrong_promise, "SPY-RES-2"),
]


def states() -> Iterator[tuple[State, State]]:
    """The states before and after each step of the run."""
    return ((step.before, step.after) for step in STEPS)


def broken_in(state: State) -> dict[str, str]:
    found = {rule.id: rule.found_in_state(CTX, state) for rule in STATE_RULES}
    return {name: told for name, told in found.items() if told is not None}


def broken_after(before: State, after: State) -> dict[str, str]:
    found = {rule.id: rule.found_after(CTX, before, after) for rule in STATE_RULES}
    return {name: told for name, told in found.items() if told is not None}


@pytest.mark.parametrize(
    ("fault", "rule"), [pytest.param(*one, id=one[0].__name__.strip("_")) for one in FAULTS]
)
def test_a_wrong_state_breaks_the_same_rules_judged_by_the_change_and_as_a_whole(
    fault: Fault, rule: str
) -> None:
    met = 0
    for before, after in states():
        for n in range(5):
            wrong = fault(after, n)
            if wrong is None:
                continue
            whole = broken_in(wrong)
            assert broken_after(before, wrong) == whole
            met += rule in whole
    assert met > 10


def _first_two_swapped(free: tuple[int, ...]) -> tuple[int, ...]:
    return (*free[1::-1], *free[2:])


def _last_two_swapped(free: tuple[int, ...]) -> tuple[int, ...]:
    return (*free[:-2], *free[:-3:-1])


def _middle_reversed(free: tuple[int, ...]) -> tuple[int, ...]:
    third = len(free) // 3
    return (*free[:third], *reversed(free[third : 2 * third]), *free[2 * third :])


def _cut(free: tuple[int, ...], like: Order) -> BlockOrder:
    """The blocks in runs, those of `like` wherever the same blocks stand there."""
    known = {run: run for run in like.runs} if isinstance(like, BlockOrder) else {}
    runs = (free[start : start + 3] for start in range(0, len(free), 3))
    return BlockOrder(tuple(known.get(run, run) for run in runs))


@pytest.mark.parametrize("fault", [tuple, _first_two_swapped, _last_two_swapped, _middle_reversed])
def test_a_wrong_order_of_the_free_blocks_is_found_in_runs_and_as_a_whole(
    fault: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> None:
    met = 0
    for step in ENGINE_STEPS:
        free = fault(tuple(step.after.pool.free))
        found, whole = (
            REGISTRY["BLK-4"].found_of_step(CTX, evolve(step, after=_pool(step.after, free=told)))
            for told in (_cut(free, step.before.pool.free), free)
        )
        assert found == whole
        met += found is not None
    assert met > 10 if fault is not tuple else met == 0


orders = st.lists(st.sampled_from([(1, 2), (3,), (4, 5, 6), (7,)]), unique=True)


@given(orders, orders, st.sets(st.integers(1, 7), max_size=2))
def test_what_two_orders_share_in_the_middle_is_left_out_of_both_unless_it_is_needed(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]], needed: set[int]
) -> None:
    one, other = without_middle(BlockOrder(tuple(before)), BlockOrder(tuple(after)), needed)
    gaps = [block for block in one if not isinstance(block, int)]

    assert len(gaps) <= 1
    assert [block for block in other if not isinstance(block, int)] == gaps
    left_out = {*sum(before, ())} - {*one}
    assert left_out.isdisjoint(needed)
    if gaps:
        (gap,) = gaps
        middle = [block for block in sum(before, ()) if block in left_out]
        for reduced, runs in ((one, before), (other, after)):
            place = reduced.index(gap)
            assert (*reduced[:place], *middle, *reduced[place + 1 :]) == sum(runs, ())


def test_a_change_of_the_pool_is_reduced_to_the_blocks_that_moved() -> None:
    step = next(step for step in STEPS if step.happened("allocate") and step.index > 3)
    pool = Change(step.before, step.after).pool.pool

    assert 0 < pool.size < CONFIG.pool_blocks
    assert pool.size == len(pool.free) + len(pool.references)


def test_who_waits_untouched_is_left_out_of_a_change() -> None:
    step = next(step for step in STEPS if step.happened("admit") and len(step.after.waiting) > 1)
    change = Change(step.before, step.after)

    assert change.requests.waiting == ()
    assert {one.id for one in change.left} >= {step.happened("admit")[0].id}
    assert {one.id for one in change.left} < {one.id for one in step.before.present}
