"""Costs and shared blocks of vLLM V1's scheduler; other tests compare it with the reference."""

from copy import deepcopy
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.vllm_v1 import admission, apply
from engine.vllm_v1.blocks import BlockManager, PoolDraft
from engine.vllm_v1.draft import Draft
from engine.vllm_v1.observing import Observer
from engine.vllm_v1.plan import LoadStart, Plan
from engine.vllm_v1.requests import RankedQueue, RequestState
from engine.vllm_v1.scheduler import Scheduler
from spec.vllm_v1.config import Connector, VllmV1Config
from tests.engine.scenes import sharing
from tests.requests import request


def step(scheduler: Scheduler) -> Plan:
    plan = scheduler.schedule()
    scheduler.update(plan, np.zeros(plan.samples, np.int64))
    return plan


# --- cost -----------------------------------------------------------------------------------------


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


def test_hits_are_not_looked_up_again_while_nothing_of_them_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(VllmV1Config(block_size=4, max_num_seqs=1))
    scheduler.add(request("a", 9, 3))
    (waiting,) = scheduler.state.queue
    hit = admission._hit(Draft.of(scheduler.state), waiting)
    monkeypatch.delattr("engine.core.state.SchedulerState.leading_keys")

    assert admission._hit(Draft.of(scheduler.state), waiting) is hit


def test_draft_hands_out_no_block_that_was_given_back_and_hit_again() -> None:
    blocks = BlockManager(3, empty_first=True)
    blocks.allocate((1, 2))
    blocks.register((1,), (b"one",))
    draft = PoolDraft(blocks)

    draft.release((1, 2))
    draft.acquire((1, 2))

    assert (draft.free, draft.allocate(1)) == (1, (3,))
    assert [*draft._front, *draft._back] == []


Table = tuple[int, ...]


def rotated(draw: Random) -> BlockManager:
    """Blocks of which some are held, some are cached, and none stands where it stood first."""
    blocks = BlockManager(8, draw.choice([True, False]))
    tables: list[Table] = []
    for _ in range(draw.randint(1, 6)):
        table = blocks.next_free(draw.randint(1, 3))
        if not table:
            break
        blocks.allocate(table)
        named = draw.randint(0, len(table))
        blocks.register(table[:named], [bytes([draw.randrange(4)]) for _ in range(named)])
        tables.append(table)
        if draw.random() < 0.5:
            blocks.release(tables.pop())
    return blocks


def moved(draw: Random, draft: PoolDraft, blocks: BlockManager, tables: list[Table]) -> None:
    """The same thing happens to both."""
    match draw.choice(["hit", "allocate", "register", "release"]):
        case "hit":
            found = blocks.lookup(bytes([draw.randrange(4)]))
            if found is not None:
                draft.acquire((found,))
                blocks.acquire((found,))
                tables.append((found,))
        case "allocate":
            count = draw.randint(0, min(2, blocks.free.count))
            table = blocks.next_free(count)
            assert draft.allocate(count) == table
            blocks.allocate(table)
            tables.append(table)
        case "register":
            plain = [block for table in tables for block in table if blocks.keys[block] is None]
            key = bytes([draw.randrange(4)])
            draft.register(plain[:1], [key] * len(plain[:1]))
            blocks.register(plain[:1], [key] * len(plain[:1]))
        case "release":
            if tables:
                table = tables.pop(draw.randrange(len(tables)))
                draft.release(table)
                blocks.release(table)


def test_draft_is_the_manager_to_which_the_same_has_happened() -> None:
    for seed in range(300):
        draw = Random(seed)
        blocks = rotated(draw)
        draft, tables = PoolDraft(deepcopy(blocks)), list[Table]()
        for _ in range(draw.randint(1, 12)):
            moved(draw, draft, blocks, tables)

            assert draft.free == blocks.free.count
            held = [draft.references(number) for number in blocks.numbers]
            assert held == [blocks.references[number] for number in blocks.numbers]
            keys = [bytes([number]) for number in range(4)]
            assert [*map(draft.lookup, keys)] == [*map(blocks.lookup, keys)]
        assert draft.allocate(draft.free) == tuple(blocks.free)


@pytest.mark.parametrize(
    ("what", "given"),
    [("acquire", [(2,)]), ("allocate", [1]), ("register", [(1,), (b"one",)]), ("release", [(1,)])],
)
def test_draft_is_untouched_until_something_happens_to_it(what: str, given: list[Any]) -> None:
    blocks = BlockManager(4, empty_first=True)
    blocks.allocate((1,))
    draft = PoolDraft(blocks)
    assert draft.is_untouched

    getattr(draft, what)(*given)

    assert not draft.is_untouched


# --- loads ----------------------------------------------------------------------------------------


def loading(*names: str, **keys: Any) -> Scheduler:
    """Requests with prompts of 14 tokens of which 12 are being loaded."""
    sizes: Any = {"block_size": 4, "max_num_seqs": 4, "num_blocks": 40, "max_model_len": 64}
    scheduler = Scheduler(VllmV1Config(**(sizes | keys), connector=Connector.ASYNC))
    for name in names:
        scheduler.add(request(name, 14, 3), external=12)
    step(scheduler)
    assert [row.id for row in scheduler.state.skipped] == [*names]
    return scheduler


def test_table_of_a_load_is_what_was_held_what_was_cached_and_what_is_new() -> None:
    row = RequestState.of(request("a", 14, 3))

    assert LoadStart(row, 12, 4, (1,), (2, 3), (4, 5)).table == (1, 2, 3, 4, 5)


def test_blocks_that_were_loaded_can_be_found_as_far_as_they_are_full() -> None:
    scheduler = loading("a")
    scheduler.end_load("a")
    draft = Draft.of(scheduler.state)

    found = admission._Found.of(draft, scheduler.state.skipped[0])

    assert (found.computed, found.registered) == (12, 3)


def test_a_request_of_which_nothing_came_gives_its_blocks_back_in_the_draft() -> None:
    scheduler = loading("a")
    (row,) = scheduler.state.skipped
    scheduler.end_load("a", failed=True)
    draft = Draft.of(scheduler.state)

    draft.promote(row)

    assert (draft.emptied, draft.pool.free) == ({row}, 40)


def test_blocks_that_prompts_in_progress_lack_are_spoken_for_once() -> None:
    scheduler = loading("a")
    (row,) = scheduler.state.skipped
    draft = Draft.of(scheduler.state)
    seen = [admission._blocks_in_demand(draft)]
    draft.load(LoadStart(row, 12, 12, (), (), (1, 2, 3)))
    seen.append(admission._blocks_in_demand(draft))

    scheduler.end_load("a", failed=True)
    draft = Draft.of(scheduler.state)
    draft.promote(row)  # nothing has come: it gives its blocks back
    seen.append(admission._blocks_in_demand(draft))

    assert seen == [1, 1, 4]


def test_requests_that_load_wait_again_in_their_order_after_a_restart() -> None:
    scheduler = loading("a", "b", "c")

    scheduler.restart()

    assert [row.id for row in scheduler.state.queue] == ["a", "b", "c"]
    assert not scheduler.state.skipped


def test_requests_that_are_passed_over_wait_again_in_their_order() -> None:
    scheduler = loading("a", "b")
    passed = [*scheduler.state.skipped]

    apply.decide_all(scheduler.state, Plan(0, passed=passed))

    assert [row.id for row in scheduler.state.queue] == ["a", "b"]
    assert not scheduler.state.skipped


# --- the running queue ----------------------------------------------------------------------------


def test_rows_get_blocks_in_the_order_of_their_admission_whenever_they_began_to_decode() -> None:
    """The first has the longer prompt, in chunks, so that the second decodes before it."""
    config = VllmV1Config(
        block_size=4, max_num_seqs=2, num_blocks=40, long_prefill_token_threshold=4
    )
    scheduler = Scheduler(config)
    scheduler.add(request("long", 12, 40))
    scheduler.add(request("short", 2, 40))
    tables: dict[str, list[int]] = {"long": [], "short": []}
    for _ in range(20):
        step(scheduler)
        tables = {row.id: [*row.blocks] for row in scheduler.state.running.rows}

    both = [tables["long"].index(block) for block in tables["long"] if block + 1 in tables["short"]]
    assert len(both) >= 3  # where both begin a block, that of the first comes first


@pytest.mark.parametrize("leaves", ["a", "c"])
def test_a_batch_is_of_the_rows_that_are_there(leaves: str) -> None:
    scheduler = Scheduler(VllmV1Config(block_size=4, max_num_seqs=3, num_blocks=40))
    for name in "abc":
        scheduler.add(request(name, 3, 40))
    step(scheduler)
    seen = [scheduler.state.running.batch.ids]
    scheduler.abort(leaves)
    seen.append(scheduler.state.running.batch.ids)
    scheduler.add(request("d", 3, 40))
    step(scheduler)
    seen.append(scheduler.state.running.batch.ids)

    left = tuple(name for name in "abc" if name != leaves)
    assert seen == [("a", "b", "c"), left, (*left, "d")]


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
