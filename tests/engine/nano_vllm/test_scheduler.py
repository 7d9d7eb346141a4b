"""Costs and shared blocks of nano-vLLM's scheduler; other tests compare it with the reference."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from engine.nano_vllm.blocks import BlockManager, PoolDraft
from engine.nano_vllm.prefill import _hit
from engine.nano_vllm.scheduler import Scheduler
from spec.core.requests import Prompt, Request
from spec.nano_vllm.block_hashes import content
from spec.nano_vllm.config import MemoryGate, NanoVllmConfig, NewBlock
from tests.requests import request


def step(scheduler: Scheduler) -> Any:
    plan = scheduler.schedule()
    scheduler.update(plan, np.zeros(plan.samples, np.int64))
    return plan


# --- the pool as a step that is planned will find it ----------------------------------------------


def test_draft_hands_out_what_the_manager_would() -> None:
    blocks = BlockManager(6)
    blocks.allocate((0, 1))
    blocks.register((0, 1), (b"one", b"two"))
    blocks.release((0, 1))
    draft = PoolDraft(blocks)
    assert draft.lookup(b"two") == 1

    first = draft.admit((1,), 2, (b"two", b"three"))

    assert (first, draft.free) == ((2, 3), 3)
    assert (draft.lookup(b"three"), draft.content_key(2), draft.content_key(3)) == (
        2,
        b"three",
        None,
    )
    assert draft.is_held(1)
    assert draft.admit((2,), 2, ()) == (4, 5)
    assert [*islice(blocks.free, 3)] == [2, 3, 4]


# --- hits ----------------------------------------------------------------------------------------


def test_block_that_is_named_becomes_a_hit_once_it_holds_equal_tokens_behind_others() -> None:
    """As released, a hit is checked by its own tokens alone."""
    config = NanoVllmConfig(block_size=4, num_blocks=9, memory_gate=MemoryGate.NEW_BLOCKS)
    scheduler = Scheduler(config)
    scheduler.add(request("a", 9, 3))
    state, (waiting,) = scheduler.state, scheduler.state.queue
    state.hash_blocks(waiting, 1)
    (key,) = waiting.hashes
    state.blocks.allocate((3,))
    state.blocks.register((3,), [key])
    state.blocks.register((3,), [bytes(24)])  # the table still names it for `key`
    assert _hit(state, PoolDraft(state.blocks), waiting).blocks == ()

    state.blocks.register((3,), [bytes(16) + content(key)])

    assert _hit(state, PoolDraft(state.blocks), waiting).blocks == (3,)


# --- what gives way, and what leaves --------------------------------------------------------------


def test_row_whose_blocks_are_all_shared_gives_way_alone() -> None:
    """That frees no block for it; the row in front, which has its block, decodes on."""
    scheduler = Scheduler(NanoVllmConfig(block_size=4, num_blocks=2))
    for name in "ab":
        scheduler.add(Request(id=name, prompt=Prompt.of_stream("both", 4), max_tokens=3))
        step(scheduler)

    plan = step(scheduler)

    assert [(row.id, block) for row, block in plan.moves] == [("a", 1), ("b", None)]
    assert plan.batch.ids == ("a",)


def test_block_handed_out_at_the_boundary_is_not_the_one_that_is_hashed() -> None:
    config = NanoVllmConfig(block_size=4, num_blocks=9, new_block=NewBlock.AT_BOUNDARY)
    scheduler = Scheduler(config)
    scheduler.add(request("a", 3, 5))
    step(scheduler)
    step(scheduler)

    (row,) = scheduler.state.running.rows
    assert row.blocks == (0, 1)
    assert [scheduler.state.blocks.keys[block] for block in row.blocks] == [row.hashes[0], None]


def test_hit_that_is_watched_no_longer_is_looked_up_again() -> None:
    scheduler = Scheduler(NanoVllmConfig(block_size=4, num_blocks=9))
    for name in "ab":
        scheduler.add(request(name, 9, 3))
    state, (first, second) = scheduler.state, scheduler.state.queue
    state.hash_blocks(first, 1)
    state.blocks.allocate((3,))
    state.blocks.register((3,), first.hashes)
    assert _hit(state, PoolDraft(state.blocks), first).blocks == (3,)
    assert _hit(state, PoolDraft(state.blocks), second).blocks == ()

    state.blocks.register((3,), [bytes(24)])

    assert _hit(state, PoolDraft(state.blocks), first).blocks == ()


def test_hits_are_not_looked_up_again_while_nothing_of_them_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(NanoVllmConfig(block_size=4, num_blocks=4))
    scheduler.add(request("a", 9, 3))
    state, (waiting,) = scheduler.state, scheduler.state.queue
    hit = _hit(state, PoolDraft(state.blocks), waiting)
    monkeypatch.delattr("engine.core.state.SchedulerState.leading_keys")

    assert _hit(state, PoolDraft(state.blocks), waiting) is hit
