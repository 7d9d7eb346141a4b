"""What vLLM V1's scheduler costs and shares; that it is the reference is shown elsewhere."""

from time import thread_time_ns
from typing import Any

import numpy as np
import pytest

from engine.core.tensors import Tensor
from engine.vllm_v1 import admission
from engine.vllm_v1.blocks import BlockManager, PoolDraft
from engine.vllm_v1.observing import Observer
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.requests import RankedQueue, RequestState
from engine.vllm_v1.running import Running
from engine.vllm_v1.scheduler import Scheduler
from spec.vllm_v1.config import Release, VllmV1Config
from tests.engine.scenes import sharing
from tests.requests import request


def scheduler_with(rows: int, waiting: int) -> Scheduler:
    """So many decode and so many wait."""
    scheduler = Scheduler(VllmV1Config(block_size=16, max_num_seqs=rows))
    for index in range(rows + waiting):
        scheduler.add(request(str(index), 20 + index % 16, 3_000))
    step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> Plan:
    plan = scheduler.schedule()
    scheduler.update(plan, np.zeros(plan.samples, np.int64))
    return plan


# --- cost -----------------------------------------------------------------------------------------


def test_rows_are_looked_at_only_where_their_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = scheduler_with(32, 5)
    looked_at: list[str] = []
    tokens = Running.tokens

    def noted(running: Running, row: RequestState) -> int:
        looked_at.append(row.id)
        return tokens(running, row)

    monkeypatch.setattr(Running, "tokens", noted)
    plans = [step(scheduler) for _ in range(16)]

    assert all(plan.batch is not None and plan.samples == 32 for plan in plans)
    assert sorted(looked_at) == sorted(map(str, range(32)))  # to hash what they have filled


def test_step_takes_as_long_whatever_waits() -> None:
    def fastest(scheduler: Scheduler) -> int:
        times = []
        for _ in range(200):
            began = thread_time_ns()
            step(scheduler)
            times.append(thread_time_ns() - began)
        return sorted(times)[20]

    none, many = (fastest(scheduler_with(8, waiting)) for waiting in (0, 5_000))

    assert many < 3 * none


def test_decode_step_shares_queue_and_pool_with_the_state_before() -> None:
    scheduler = scheduler_with(2, 9)
    observer = Observer(scheduler)
    before = observer.state()
    assert observer.state() is before
    step(scheduler)
    after = observer.state()

    assert after.waiting is before.waiting
    assert after.pool is before.pool
    assert after.finished is before.finished


def test_tokens_of_many_steps_are_written_down_when_they_are_asked_for() -> None:
    scheduler = scheduler_with(3, 0)
    sampled: list[Tensor] = []
    for index in range(300):
        plan = scheduler.schedule()
        sampled.append(np.arange(3) + 10 * index)
        scheduler.update(plan, sampled[-1].copy())

    outputs = scheduler.state.slots.outputs[:3, 1:301]
    order = [row.slot for row in scheduler.state.running.rows]

    assert (outputs[order] == np.stack(sampled, axis=1)).all()


def test_plan_changes_nothing() -> None:
    scheduler = Scheduler(VllmV1Config(block_size=4, max_num_seqs=4, num_blocks=6))
    for name in "abc":
        scheduler.add(request(name, 5, 9))
    for _ in range(4):
        step(scheduler)
    before = Observer(scheduler).state()

    plan = scheduler.schedule()

    assert plan.preempted
    assert Observer(scheduler).state() == before


# --- hits -----------------------------------------------------------------------------------------


def test_refused_request_is_looked_up_again_once_more_of_it_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It shares its beginning with a prompt that is computed token by token."""
    sizes: Any = {"block_size": 4, "max_num_seqs": 4, "num_blocks": 7}
    config = VllmV1Config(**sizes, long_prefill_token_threshold=1)
    scheduler, found = Scheduler(config), []
    scheduler.add(request("runs", 1, 9))
    scheduler.add(sharing("in chunks", 16, 0, 1))
    scheduler.add(sharing("waits", 16, 12, 1))
    look_up: Any = admission._hit

    def noted(draft: Any, row: RequestState) -> Any:
        hit = look_up(draft, row)
        if row.id == "waits":
            found.append(len(hit.blocks))
        return hit

    monkeypatch.setattr(admission, "_hit", noted)
    for _ in range(8):
        step(scheduler)

    assert found == [0, 0, 0, 1, 1, 1, 1, 2]


# --- the pool as a step that is planned will find it ----------------------------------------------


@pytest.mark.parametrize(
    ("release", "order"), [(Release.V0_28_0, [5, 3, 6, 4]), (Release.V0_11_2, [3, 6, 5, 4])]
)
def test_draft_gives_back_and_hands_out_as_the_manager_would(
    release: Release, order: list[int]
) -> None:
    """The table's tail first; plain blocks in front, or all behind."""
    blocks = BlockManager(6, release)
    blocks.allocate((1, 2, 4, 5))
    blocks.register((4,), (b"four",))
    draft = PoolDraft(blocks)

    draft.release((4, 5))

    assert (draft.free, draft.lookup(b"four")) == (4, 4)
    assert [*draft.allocate(4)] == order
    assert (draft.free, draft.lookup(b"four"), blocks.lookup(b"four")) == (0, None, 4)
    blocks.release((4, 5))
    assert [*blocks.free] == order


def test_draft_takes_hits_from_wherever_they_stand() -> None:
    blocks = BlockManager(4, Release.V0_28_0)
    blocks.allocate((1, 2))
    blocks.register((1, 2), (b"one", b"two"))
    blocks.release((1, 2))
    draft = PoolDraft(blocks)

    draft.acquire((1,))

    assert (draft.free, draft.references(1), draft.is_untouched) == (3, 1, False)
    assert draft.allocate(3) == (3, 4, 2)
    assert draft.lookup(b"two") is None


# --- the queue ------------------------------------------------------------------------------------


def test_requests_wait_by_priority_and_then_by_arrival() -> None:
    queue = RankedQueue()
    for arrival, (name, priority) in enumerate({"a": 1, "b": 0, "c": 1, "d": 0}.items()):
        row = RequestState.of(request(name, 3, priority=priority))
        row.arrival = arrival
        queue.put_back(row)
    first = next(iter(queue))
    queue.remove(first)

    assert [row.id for row in queue] == ["d", "a", "c"]
    queue.put_front(first)
    assert [row.id for row in queue] == ["b", "d", "a", "c"]
    assert [row.id for row in reversed(queue)] == ["c", "a", "d", "b"]
