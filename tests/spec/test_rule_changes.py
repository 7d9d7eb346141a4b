"""What a rule need not look at again: judged by the change, as by the whole state."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from checks.harness.case import Case
from checks.harness.serving import served
from reference.spyre.machine import SpyreMachine
from spec.core.changes import (
    Blocks,
    Change,
    changed,
    common_ends,
    differing,
    of_each,
    without_middle,
)
from spec.core.requests import Prompt, Request
from spec.core.rule import Kind
from spec.core.sharing import DerivedMap, FrozenMap, Order, SharedOrder
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules import REGISTRY, Rule, applicable
from spec.spyre.state import Sequence, State
from tests.spec.state_faults import (
    Fault,
    fresh,
    held,
    lost_block,
    nth,
    one_more,
    one_with,
    pool,
    times_met,
)

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
        patched.setattr("engine.core.blocks._RUN", 3)
        patched.setattr("spec.core.sharing._CHANGES", 100)
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


shared_runs = st.lists(st.sampled_from([(1,), (2, 3), (4, 4, 4), (5,)]), max_size=4)


@given(shared_runs, shared_runs)
def test_orders_have_their_ends_in_common_however_they_are_cut_into_runs(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]]
) -> None:
    one, other = sum(before, ()), sum(after, ())
    start, end = common_ends(SharedOrder(tuple(before)), SharedOrder(tuple(after)))

    assert start + end <= min(len(one), len(other))
    assert one[:start] == other[:start]
    assert one[len(one) - end :] == other[len(other) - end :]
    left, entered = differing(SharedOrder(tuple(before)), SharedOrder(tuple(after)))
    assert one == one[:start] + left + one[len(one) - end :]
    assert other == other[:start] + entered + other[len(other) - end :]


RUN_CHANGES: dict[str, tuple[Callable[[tuple[Any, ...]], tuple[Any, ...]], Blocks, Blocks]] = {
    "head taken": (lambda runs: (runs[0][1:], *runs[1:]), (0,), ()),
    "put behind": (lambda runs: (*runs[:4], (*runs[4], 25)), (), (25,)),
    "put behind, a run": (lambda runs: (*runs, (25,)), (), (25,)),
    "put in front, a run": (lambda runs: ((25,), *runs), (), (25,)),
    "taken from the middle": (lambda runs: (*runs[:2], runs[2][1:], *runs[3:]), (10,), ()),
    "first run taken": (lambda runs: runs[1:], (0, 1, 2, 3, 4), ()),
    "a run taken": (lambda runs: (*runs[:2], *runs[3:]), (10, 11, 12, 13, 14), ()),
}


@pytest.mark.parametrize(("change", "left", "entered"), RUN_CHANGES.values(), ids=RUN_CHANGES)
def test_no_run_that_two_orders_share_is_looked_into(
    change: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    left: Blocks,
    entered: Blocks,
) -> None:
    class Closed(tuple[int, ...]):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise AssertionError("looked into")

        __hash__ = tuple.__hash__

    open_runs = [tuple(range(start, start + 5)) for start in range(0, 25, 5)]
    after = change(tuple(open_runs))
    closed = {run: Closed(run) for run in open_runs if run in after}
    old, new = (
        SharedOrder(tuple(closed.get(run, run) for run in runs)) for runs in (open_runs, after)
    )

    assert differing(old, new) == (left, entered)


@given(st.lists(st.lists(st.integers(0, 9), unique=True), max_size=6))
def test_function_of_each_is_computed_for_new_items_only(queues: list[list[int]]) -> None:
    computed: list[int] = []

    def squared(_: object, item: int) -> int:
        computed.append(item)
        return item * item

    squares, last = of_each(squared), tuple[int, ...]()
    for queue in map(tuple, queues):
        computed.clear()
        assert squares("context", queue) == [item * item for item in queue]
        assert computed == [*differing(last, queue)[1]]
        last = queue
    assert squares("another", (3,)) == [9]


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


def test_the_engine_takes_the_steps_of_the_reference_with_shared_parts() -> None:
    assert [step.after for step in ENGINE_STEPS] == [step.after for step in REFERENCE_STEPS]
    pools = [step.after.pool for step in ENGINE_STEPS]
    assert all(isinstance(pool.keys, DerivedMap) for pool in pools)
    assert max(len(pool.free.runs) for pool in pools if isinstance(pool.free, SharedOrder)) > 3


def test_the_states_of_a_run_keep_every_rule_judged_by_their_changes() -> None:
    assert len(STATE_RULES) >= 15
    for step in STEPS:
        for rule in STATE_RULES:
            assert rule.found_after(CTX, step.before, step.after) is None
            assert rule.found_in_state(CTX, step.after) is None


def _came_back(state: State, n: int) -> Any:
    name = nth(sorted(state.finished), n)
    return one_more(state, "waiting", Sequence(name, CTX.requests[name].prompt_len))


FAULTS: dict[str, dict[str, Fault]] = {  # by the rule that each breaks
    "BLK-1": {
        "a lost block": lost_block,
        "a free block twice": lambda state, n: pool(
            state, free=(nth(state.pool.free, n), *state.pool.free)
        ),
        "one lost, another twice: the number is right": lambda state, _n: pool(
            state, free=(nth(state.pool.free, -1), *state.pool.free[1:])
        ),
    },
    "BLK-2": {
        "another number of holders": lambda state, n: pool(
            state, references=state.pool.references.set({nth(state.pool.references, n): 7})
        ),
        "a free block counted as held": lambda state, n: pool(
            state, references=state.pool.references.set({nth(state.pool.free, n): 0})
        ),
        "a row with the blocks of another": lambda state, n: one_with(
            state, "decoding", n, blocks=nth(state.admitted, -1).blocks
        ),
        "a row that lost a block": lambda state, n: one_with(
            state, "decoding", n, blocks=nth(state.decoding, n).blocks[:-1]
        ),
        "a row twice: pool and tables are as they were, there is one more": lambda state, n: (
            one_more(state, "decoding", nth(state.decoding, n))
        ),
    },
    "BLK-3": {
        "a free padding block": lambda state, _n: pool(state, free=(*state.pool.free[1:], 0)),
    },
    "BLK-5": {
        "another key": lambda state, n: pool(
            state, keys=state.pool.keys.set({nth(state.pool.keys, n): b"other"})
        ),
        "content not in the cache": lambda state, n: pool(
            state, cached=state.pool.cached.without(nth(state.pool.cached, n))
        ),
    },
    "BLK-8": {
        "computed tokens in the queue": lambda state, n: one_with(state, "waiting", n, computed=1),
    },
    "LIF-1": {
        "waiting twice": lambda state, n: one_more(state, "waiting", nth(state.waiting, n)),
        "decoding and waiting": lambda state, n: one_more(
            state, "waiting", fresh(nth(state.decoding, n))
        ),
        "finished and waiting": lambda state, n: evolve(
            state, finished=state.finished | {nth(state.waiting, n).id}
        ),
        "back from the finished": _came_back,
    },
    "LIF-5": {
        "blocks in the queue": lambda state, n: one_with(
            state, "waiting", n, blocks=(1,), reserved=99
        ),
    },
    "LIF-8": {
        "generated in the queue": lambda state, n: one_with(state, "waiting", n, generated=1),
    },
    "SPY-PFX-1": {
        "a row with fewer tokens": lambda state, n: one_with(
            state, "decoding", n, computed=1, hit_blocks=0
        ),
    },
    "SPY-PFX-2": {
        "another key of a held block, tables and tokens as they were": lambda state, n: pool(
            state, keys=state.pool.keys.set({nth(held(state), n): b"other"})
        ),
    },
    "SPY-PFX-8": {
        "a full block not in the cache": lambda state, n: pool(
            state,
            keys=state.pool.keys.without(
                nth((one for one in held(state) if one in state.pool.keys), n)
            ),
        ),
    },
    "SPY-RES-2": {
        "another promise": lambda state, _n: one_with(
            state, "decoding", 0, reserved=nth(state.decoding, 0).reserved + 1
        ),
    },
}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param(fault, rule, id=name)
        for rule, faults in FAULTS.items()
        for name, fault in faults.items()
    ],
)
def test_a_wrong_state_breaks_the_same_rules_judged_by_the_change_and_as_a_whole(
    fault: Fault, rule: str
) -> None:
    assert times_met(STATE_RULES, CTX, STEPS, fault, rule) > 10


ORDERS: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "as it is": lambda free: free,
    "first two swapped": lambda free: (*free[1::-1], *free[2:]),
    "last two swapped": lambda free: (*free[:-2], *free[:-3:-1]),
    "middle reversed": lambda free: (
        *free[: len(free) // 3],
        *reversed(free[len(free) // 3 : 2 * (len(free) // 3)]),
        *free[2 * (len(free) // 3) :],
    ),
}


def _cut(free: tuple[int, ...], like: Order[int]) -> SharedOrder[int]:
    """The blocks in runs, those of `like` wherever the same blocks stand there."""
    known = {run: run for run in like.runs} if isinstance(like, SharedOrder) else {}
    runs = (free[start : start + 3] for start in range(0, len(free), 3))
    return SharedOrder(tuple(known.get(run, run) for run in runs))


@pytest.mark.parametrize("order", ORDERS)
def test_a_wrong_order_of_the_free_blocks_is_found_in_runs_and_as_a_whole(order: str) -> None:
    met = 0
    for step in ENGINE_STEPS:
        free = ORDERS[order](tuple(step.after.pool.free))
        found, whole = (
            REGISTRY["BLK-4"].found_of_step(CTX, evolve(step, after=pool(step.after, free=blocks)))
            for blocks in (_cut(free, step.before.pool.free), free)
        )
        assert found == whole
        met += found is not None
    assert met > 10 if order != "as it is" else met == 0


orders = st.lists(st.sampled_from([(1, 2), (3,), (4, 5, 6), (7,)]), unique=True)


@given(orders, orders, st.sets(st.integers(1, 7), max_size=2))
def test_what_two_orders_share_in_the_middle_is_left_out_of_both_unless_it_is_needed(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]], needed: set[int]
) -> None:
    one, other = without_middle(SharedOrder(tuple(before)), SharedOrder(tuple(after)), needed)
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


def test_untouched_request_in_the_queue_is_left_out_of_a_change() -> None:
    step = next(step for step in STEPS if step.happened("admit") and len(step.after.waiting) > 1)
    change = Change(step.before, step.after)

    assert change.requests.waiting == ()
    assert {one.id for one in change.left} >= {step.happened("admit")[0].id}
    assert {one.id for one in change.left} < {one.id for one in step.before.present}
