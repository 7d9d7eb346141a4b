"""The scheduler's contract with its caller; other tests compare it with the reference."""

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

from checks.policies.spyre.engine import sampled_alone
from engine.core import state
from engine.core.blocks import BlockManager
from engine.spyre.observing import Observer
from engine.spyre.scheduler import (
    DecodePlan,
    PrefillPlan,
    Scheduler,
    prefill,
)
from engine.spyre.scheduler.requests import RequestState, WaitingQueue
from spec.core.errors import ConfigError
from spec.core.requests import BlockKeys
from spec.spyre.state import Past
from spec.spyre.variants import Queue
from tests.engine.scenes import config, scheduler_with, sharing, step, steps
from tests.requests import request

PREEMPTING = {"reservation": False, "num_blocks": 8, "max_num_seqs": 3}
PAUSING = {"pausing": True, "max_batch_tkv_limit": 40}


def test_the_reading_of_the_release_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="reading: found 'released'; allowed: text; the engine has no other"
    ):
        Scheduler(config(reading="released"))


# --- what is refused ----------------------------------------------------------------------------


def test_request_may_come_while_the_device_computes() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])
    plan = scheduler.schedule()
    scheduler.add(request("b", 3, 3))
    scheduler.update(plan, sampled_alone(plan))

    assert [row.id for row in Observer(scheduler).state().waiting] == ["b"]
    assert len(list(steps(scheduler))) == 4


# --- a plan changes nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "happens"),
    [
        ({}, "hit_blocks"),
        (PREEMPTING, "preempted"),
        (PAUSING, "newly_paused"),
        (PAUSING, "resumed"),
    ],
)
def test_plan_made_twice_is_the_same_and_changes_nothing(
    changes: dict[str, Any], happens: str
) -> None:
    requests = [sharing(name, 9, index, 12) for index, name in enumerate("abc")]
    scheduler = scheduler_with(config(**changes), requests)
    happened = False
    while scheduler.has_requests:
        before = Observer(scheduler).state()
        plan, again = scheduler.schedule(), scheduler.schedule()

        assert Observer(scheduler).state() == before
        assert described(plan) == described(again)
        happened |= bool(getattr(plan, happens, 0))
        scheduler.update(again, sampled_alone(again))
    assert happened


def described(plan: object) -> object:
    """A plan without the arrays that it has for itself."""
    match plan:
        case PrefillPlan():
            return plan.chunk, plan.held, plan.new_blocks, plan.promised
        case DecodePlan():
            padding = plan.rows.left_padding if plan.left_padding is None else plan.left_padding
            people = (plan.resumed, plan.newly_paused, plan.preempted)
            rows = (plan.rows.ids, plan.paused.ids, list(plan.growing), plan.new_blocks)
            return people, rows, padding.tolist(), plan.tkv
    return None


# --- cost ---------------------------------------------------------------------------------------


def test_step_looks_at_no_request_behind_the_head_of_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examined = []
    every_one = WaitingQueue.__iter__

    def counted(queue: WaitingQueue) -> Any:
        for waiting in every_one(queue):
            examined.append(waiting.id)
            yield waiting

    monkeypatch.setattr(WaitingQueue, "__iter__", counted)
    scheduler = scheduler_with(
        config(max_num_seqs=2), [request(f"{index}", 5, 6) for index in range(500)]
    )
    for _ in range(40):
        examined.clear()
        step(scheduler)

        assert len({*examined}) <= 1
    assert len(scheduler.state.finished) > 5


def test_long_prompt_that_waits_for_blocks_is_not_looked_up_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up = []
    lookup = BlockManager.lookup

    def counted(blocks: BlockManager, key: bytes) -> int | None:
        looked_up.append(key)
        return lookup(blocks, key)

    monkeypatch.setattr(BlockManager, "lookup", counted)
    tight = config(max_model_len=256, num_blocks=60)
    scheduler = scheduler_with(tight, [sharing("a", 160, 8, 40), sharing("b", 160, 9, 60)])
    times = []
    while not scheduler.state.finished:
        looked_up.clear()
        step(scheduler)
        times.append(len(looked_up))

    assert scheduler.state.queue.find("b")  # it waited, and found 40 blocks of a's prompt
    assert sum(times) < 2 * 40 + 2 * len(times)
    assert max(times[-30:]) <= 2


def test_every_token_is_hashed_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    key_behind = BlockKeys.key_behind

    def noted(parent: bytes, content: bytes) -> bytes:
        hashed.append(parent + content)
        return key_behind(parent, content)

    monkeypatch.setattr(BlockKeys, "key_behind", staticmethod(noted))
    scheduler = scheduler_with(config(**PREEMPTING), [request(name, 17, 8) for name in "abc"])
    preempted = sum(len(getattr(plan, "preempted", ())) for plan, _ in steps(scheduler))

    assert preempted
    assert len(hashed) == len(set(hashed))
    assert len(hashed) == 3 * (17 + 8 - 1) // 4


# --- long service ---------------------------------------------------------------------------------


def test_an_observed_state_has_all_that_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "NAMES_KEPT", 2)
    scheduler = scheduler_with(config(), [request(name, 2, 1) for name in "abcde"])
    observer = Observer(scheduler)
    for _ in steps(scheduler):
        seen = observer.state()

    assert seen.finished == set("abcde")
    assert len(scheduler.state.finished) == 2


def test_memory_of_the_scheduler_stays_flat_however_many_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "NAMES_KEPT", 100)
    scheduler, held_bytes = Scheduler(config()), []
    tracemalloc.start()
    for served in range(600):
        scheduler.add(request(f"{served:05}", 2, 1))
        plan = scheduler.schedule()
        scheduler.update(plan, np.zeros(plan.samples, np.int64))
        if served % 200 == 199:
            gc.collect()
            held_bytes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    # Other threads of the test process allocate, too; an id that is kept takes 54 bytes.
    assert held_bytes[-1] - held_bytes[0] < 400 * 32


def test_a_restart_forgets_the_previous_steps() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 9)])
    step(scheduler)
    step(scheduler)
    assert scheduler.state.past != Past()

    scheduler.restart()

    assert scheduler.state.past == Past()


def is_judged_by_shape(prompt_len: int, free: int, reserved: int = 0, **keys: Any) -> bool:
    """With so many free blocks, of which so many are set aside."""
    state = Scheduler(config(**keys)).state
    state.blocks.allocate(state.blocks.next_free(40 - free))
    state.reserved = reserved
    return prefill._is_judged_by_shape(state, RequestState.of(request("a", prompt_len, 9)))


def test_a_request_is_judged_by_its_shape_where_nothing_else_can_refuse_it() -> None:
    worst_case = RequestState.of(request("a", 8, 9)).worst_case_blocks(4)

    assert is_judged_by_shape(8, worst_case)
    assert not is_judged_by_shape(8, worst_case - 1)
    assert is_judged_by_shape(8, worst_case + 2, reserved=2)
    assert not is_judged_by_shape(8, worst_case + 1, reserved=2)
    assert is_judged_by_shape(8, 2, reservation=False)
    assert not is_judged_by_shape(8, 1, reservation=False)
    assert is_judged_by_shape(5, 2, reservation=False)
    assert [is_judged_by_shape(length, 40, reservation=False) for length in (8, 9)] == [True, False]


@pytest.mark.parametrize(("most", "overtakes"), [(24, False), (20, True)])
def test_nothing_overtakes_a_request_that_lacks_blocks(most: int, overtakes: bool) -> None:
    """The volume refuses b; c, of `most` tokens, is refused for its blocks or for the volume."""
    room = {"queue": Queue.OVERTAKING, "max_batch_tkv_limit": 32, "num_blocks": 15}
    requests = [request("a", 8, 24), request("b", 8, 20), request("c", 8, most), request("d", 4, 1)]
    scheduler = scheduler_with(config(**room), requests)

    plans = [step(scheduler)[0] for _ in range(4)]

    begun = [plan.request.id for plan in plans if isinstance(plan, PrefillPlan)]
    assert begun == (["a", "d"] if overtakes else ["a"])
