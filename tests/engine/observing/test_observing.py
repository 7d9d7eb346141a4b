"""An observer shares what has not changed; that what it sees is right is shown by comparisons."""

from collections.abc import Callable
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.sharing import SharedOrder
from engine.spyre.observing import Observer, StepObserver, row_of
from engine.spyre.scheduler import DecodePlan, Scheduler
from engine.spyre.scheduler.requests import RequestState
from reference.core.block_pool import empty_pool
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import State
from tests.engine.scenes import config, scheduler_with, sharing, step
from tests.requests import request


def observed(scheduler: Scheduler, steps: int) -> tuple[State, State]:
    """The states before and after the last of so many steps."""
    observer = Observer(scheduler)
    before = after = observer.state()
    for _ in range(steps):
        step(scheduler)
        before, after = after, observer.state()
    return before, after


def step_seen(observer: StepObserver, scheduler: Scheduler, index: int) -> Step:
    observer.begin()
    plan, outcome = step(scheduler)
    return observer.end(plan, outcome, index, float(index))


def test_idle_scheduler() -> None:
    assert Observer(Scheduler(config(num_blocks=3))).state() == State(empty_pool([1, 2, 3]))


def test_same_state_is_the_same_object() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 5), request("b", 3, 5)])
    observer = Observer(scheduler)
    step(scheduler)

    assert observer.state() is observer.state()


def test_decode_step_shares_queue_and_pool_with_the_state_before() -> None:
    scheduler = scheduler_with(
        config(max_num_seqs=1), [request("a", 5, 5), *(request(str(n), 3, 3) for n in range(9))]
    )
    before, after = observed(scheduler, 2)

    assert after.last_kind == "decode"
    assert after.waiting is before.waiting
    assert after.pool is before.pool
    assert after.finished is before.finished


def test_step_that_hands_out_a_block_shares_what_is_cached() -> None:
    scheduler = scheduler_with(config(), [request("a", 4, 5)])
    before, after = observed(scheduler, 2)

    assert after.pool.free == before.pool.free[1:]
    assert after.pool.references == {1: 1, 2: 1}
    assert after.pool.keys is before.pool.keys
    assert after.pool.cached is before.pool.cached


ENDS = ["back", "front"]
PLACES = {"head": 0, "middle": 2, "tail": -1}
changes = st.sampled_from(ENDS) | st.tuples(
    st.sampled_from([*PLACES]), st.none() | st.sampled_from(ENDS)
)


@given(st.lists(st.lists(changes), max_size=8))
def test_queue_is_seen_as_it_is_whatever_came_and_went(
    history: list[list[str | tuple[str, str | None]]],
) -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])
    observer, queue, names = Observer(scheduler), scheduler.state.queue, count()
    put = {"back": queue.put_back, "front": queue.put_front}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("engine.core.observing._RUN", 2)
        for moment in history:
            for change in moment:
                if isinstance(change, str):
                    put[change](RequestState.of(request(str(next(names)), 3, 3)))
                elif len(queue):
                    place, again = change
                    waiting = [*queue][min(PLACES[place], len(queue) - 1)]
                    queue.remove(waiting)
                    if again is not None:
                        waiting.computed += 1
                        put[again](waiting)

            assert observer.state().waiting == tuple(map(row_of, queue))


@pytest.mark.parametrize("removed", [0, 400, 999])
def test_queue_is_shared_but_for_the_requests_near_those_that_came_and_went(removed: int) -> None:
    scheduler = scheduler_with(config(), [request(str(index), 3, 3) for index in range(1_000)])
    observer, queue = Observer(scheduler), scheduler.state.queue
    before = observer.state().waiting
    queue.remove([*queue][removed])
    queue.put_front(RequestState.of(request("first", 3, 3)))
    queue.put_back(RequestState.of(request("last", 3, 3)))
    after = observer.state().waiting

    assert isinstance(before, SharedOrder)
    assert isinstance(after, SharedOrder)
    others = {*map(id, after.runs)} - {*map(id, before.runs)}
    assert len(before.runs) > 3
    assert len(others) <= 3


def test_decode_step_shares_its_rows_with_those_of_the_state() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 20), request("b", 3, 20)])
    observer = StepObserver(scheduler)
    shared = 0
    for index in count():
        if not scheduler.has_requests:
            break
        seen = step_seen(observer, scheduler, index)
        if not seen.finished:
            assert seen.batch == (seen.after.decoding if seen.kind == "decode" else ())
            shared += bool(seen.batch) and seen.batch is seen.after.decoding

    assert shared > 10


def test_state_is_kept_while_the_scheduler_goes_on() -> None:
    scheduler = scheduler_with(config(), [sharing(name, 9, 2, 5) for name in "abc"])
    states, printed = [], []
    observer = Observer(scheduler)
    while scheduler.has_requests:
        step(scheduler)
        states.append(observer.state())
        printed.append(repr(states[-1]))

    assert [repr(state) for state in states] == printed
    assert len(set(states)) == len(states)


def test_a_step_before_which_nothing_happened_begins_without_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 20), request("b", 3, 20)])
    observer, looks, state = StepObserver(scheduler), list[State](), Observer.state

    def noted(watching: Observer) -> State:
        looks.append(state(watching))
        return looks[-1]

    monkeypatch.setattr(Observer, "state", noted)

    steps = [step_seen(observer, scheduler, index) for index in range(9)]

    assert len(looks) == 9
    assert all(seen.before is last.after for last, seen in pairwise(steps))


def _forget_all(scheduler: Scheduler) -> None:
    for name in "abcd":
        scheduler.abort(name)
    scheduler.restart()


@pytest.mark.parametrize(
    "happening",
    [
        lambda scheduler: scheduler.add(request("e", 3, 3)),
        lambda scheduler: scheduler.abort("a"),  # decodes
        lambda scheduler: scheduler.abort("d"),  # waits
        lambda scheduler: scheduler.restart(),
        _forget_all,
    ],
)
def test_a_step_begins_with_whatever_happened_before_it(
    happening: Callable[[Scheduler], object],
) -> None:
    scheduler = scheduler_with(config(max_num_seqs=2), [sharing(name, 9, 2, 20) for name in "abcd"])
    observer = StepObserver(scheduler)
    seen = [step_seen(observer, scheduler, index) for index in range(9)][-1]
    happening(scheduler)

    began = observer.begin()

    assert began == Observer(scheduler).state() != seen.after


@pytest.mark.parametrize("caching", [True, False])
def test_a_device_that_is_replaced_while_no_request_is_there_is_seen_to_be_new(
    caching: bool,
) -> None:
    scheduler = scheduler_with(config(prefix_caching=caching), [sharing("a", 9, 2, 2)])
    observer = StepObserver(scheduler)
    while scheduler.has_requests:
        seen = step_seen(observer, scheduler, 0)
    scheduler.restart()
    began = observer.begin()

    assert (bool(seen.after.pool.keys), seen.after.last_kind) == (caching, "decode")
    assert (bool(began.pool.keys), began.last_kind) == (False, "idle")


@pytest.mark.parametrize("rows", [1, 32])
def test_pool_is_looked_at_only_where_it_changed(rows: int) -> None:
    scheduler = scheduler_with(
        SpyreConfig(block_size=16, chunk_size=64),
        [request(str(n), 40 + n, 50) for n in range(rows)],
    )
    observer = Observer(scheduler)
    observer.state()
    changes = scheduler.state.blocks.changes
    assert changes is not None
    most = 0
    while scheduler.has_requests:
        plan, outcome = step(scheduler)
        if isinstance(plan, DecodePlan) and not outcome.finished:
            filled = sum(row % 16 == 0 for row in plan.rows.computed.tolist())
            assert len(changes.blocks) <= len(plan.growing) + filled
            most = max(most, len(changes.blocks))
        observer.state()
        assert not changes.blocks | changes.contents
    assert most
