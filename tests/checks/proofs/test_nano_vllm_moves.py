"""nano-vLLM's reference makes the moves that proofs speak of; each change to it is noticed."""

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve

from checks.harness.case import Case
from checks.harness.runs.endless import EndlessError
from checks.harness.runs.serving import served
from checks.proofs.links import RUNS
from checks.proofs.nano_vllm.moves import LINK, large_case
from reference.core.guards import GuardError
from reference.nano_vllm import block_manager, step, transitions
from spec.core.records import StepRecord
from spec.nano_vllm.config import FullHit, HitCheck, MemoryGate, NewBlock
from tests.checks.faults.patches import (
    Wrong,
    backwards,
    changed,
    depending,
    first,
    first_to_back,
    last_to_front,
    one_block_less,
    plus,
    result,
    with_config,
)
from tests.checks.faults.planting import Planted

MANY = 20  # rows
LONG = 1_000  # tokens

CHANGES: dict[str, Planted] = {}


def change(place: ModuleType, attribute: str, name: str) -> Callable[[Wrong], Wrong]:
    """Decorator for a wrong version of a function of the reference, or to be called with one."""

    def register(wrong: Wrong) -> Wrong:
        CHANGES[name] = Planted(name, wrong.__doc__ or name, place, attribute, wrong)
        return wrong

    return register


# --- admissions -----------------------------------------------------------------------------------

change(step, "within_budget", "the budget is never added up")(
    lambda right, _batched, counted, budget: right(0, counted, budget)
)
change(step, "within_budget", "the budget is one token more")(
    lambda right, batched, counted, budget: right(batched, counted, budget + 1)
)
change(step, "counted_tokens", "cached tokens are left out twice")(
    lambda _right, length, cached, _gate: length - 2 * cached
)
change(step, "counted_tokens", "the token gate takes a long sequence for shorter")(
    lambda right, length, cached, gate: right(min(length, 400), min(length, cached), gate)
)
change(block_manager, "passes_memory_gate", "the memory gate counts a block too few")(
    lambda right, free, blocks, shared, gate: right(free, blocks - 1, shared, gate)
)
change(block_manager, "passes_memory_gate", "the memory gate always leaves out held hits")(
    lambda right, *given: right(*given[:-1], MemoryGate.NEW_BLOCKS)
)
change(block_manager, "passes_memory_gate", "the memory gate asks a block too many for long ones")(
    lambda right, free, blocks, shared, gate: right(free, blocks + (blocks > 2), shared, gate)
)


@change(step, "admission_refusal", "from many rows on the memory gate counts a block too few")
def memory_gate_open_for_many(right: Wrong, ctx: Any, state: Any, *given: int) -> Any:
    refusal = right(ctx, state, *given)
    is_open = refusal == "NANO-ADM-2" and len(state.running) >= MANY
    return right(ctx, changed(pool=one_block_more)(state), *given) if is_open else refusal


def one_block_more(pool: Any) -> Any:
    """The pool with one of its blocks free a second time."""
    return changed(free=lambda free: (*free, 0))(pool)


@change(step, "admission_refusal", "from many rows on the memory gate keeps a block free")
def memory_gate_narrow_for_many(right: Wrong, ctx: Any, state: Any, *given: int) -> Any:
    is_narrow = len(state.running) >= MANY and state.pool.free
    return right(ctx, changed(pool=one_block_less)(state) if is_narrow else state, *given)


change(step, "admission_refusal", "a sequence more than max_num_seqs is admitted")(
    lambda right, ctx, *given: right(with_config(ctx, max_num_seqs=plus(1)), *given)
)
change(step, "admission_refusal", "a step admits no more than many")(
    lambda right, ctx, state, count, batched: (
        "NANO-ADM-1" if count >= MANY else right(ctx, state, count, batched)
    )
)
change(step, "admission_refusal", "lack of blocks is called lack of budget")(
    lambda right, *given: {"NANO-ADM-2": "NANO-ADM-1"}.get(found := right(*given), found)
)
change(transitions, "admit", "the newcomer goes to the front of many")(
    lambda right, ctx, state: (
        result(running=last_to_front)(right, ctx, state)
        if len(state.running) >= MANY
        else right(ctx, state)
    )
)

change(transitions, "arrive", "a request is lost when it arrives")(
    lambda _right, _ctx, state, _name: state
)

# --- hits -----------------------------------------------------------------------------------------

change(block_manager, "lookup_blocks", "the last block is looked up, too")(
    lambda right, length, size, _reading: right(length, size, FullHit.ALL_CACHED)
)
change(block_manager, "is_hit", "hits are not checked")(
    lambda right, pool, key, _check: right(pool, key, HitCheck.NOTHING)
)
change(block_manager, "cached_blocks", "no more than two hits are taken")(
    lambda right, *given: right(*given)[:2]
)

# --- blocks ---------------------------------------------------------------------------------------

change(transitions, "starts_block", "a new block comes a token too late")(
    lambda right, length, size, reading: right(length - 1, size, reading)
)
change(transitions, "starts_block", "a new block comes a token too early")(
    lambda right, length, size, _reading: right(length, size, NewBlock.AT_BOUNDARY)
)
change(transitions, "fills_block", "a block far behind is not hashed when it is filled")(
    lambda right, length, size: length <= 200 and right(length, size)
)
change(block_manager, "deallocate", "the first block of a table is given back first")(
    lambda right, pool, blocks: right(pool, blocks[::-1])
)


@change(block_manager, "take", "blocks are handed out from the tail of a long free list")
def from_the_tail(right: Wrong, pool: Any, count: int) -> Any:
    if len(pool.free) < 100:
        return right(pool, count)
    return result(free=backwards)(right, changed(free=backwards)(pool), count)


@change(transitions, "finish", "a block of a long sequence is not given back")
def block_lost(right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    after, events = right(ctx, state, batch, ends)
    leavers = {event.id for event in events}
    is_long = any(row.computed > LONG and row.id in leavers for row in batch)
    freed = len(after.pool.free) > len(state.pool.free)
    return (changed(pool=one_lost)(after) if is_long and freed else after), events


def one_lost(pool: Any) -> Any:
    """The pool without the block that was given back last."""
    return changed(free=lambda free: free[:-1])(pool)


@change(transitions, "abort", "who goes away gives its blocks back to the front")
def given_back_in_front(right: Wrong, ctx: Any, state: Any, name: str) -> Any:
    after, count = right(ctx, state, name), len(state.pool.free)
    return changed(pool=changed(free=lambda free: (*free[count:], *free[:count])))(after)


# --- decode steps ---------------------------------------------------------------------------------


@change(step, "_make_room", "the victim is the front of running")
def front_goes(_right: Wrong, run: Any, row: Any) -> None:
    while not block_manager.can_append(run.ctx, run.state.pool, row):
        victim = run.state.running[0]
        run.take(transitions.preempt, victim)
        if victim is row:
            break


@change(transitions, "preempt", "of many rows the last but one is the victim")
def last_but_one_goes(right: Wrong, ctx: Any, state: Any, victim: Any) -> Any:
    is_many = len(state.running) >= MANY // 2 and victim is state.running[-1]
    return right(ctx, state, state.running[-2] if is_many else victim)


change(transitions, "preempt", "the victim goes to the back of waiting")(
    result(waiting=first_to_back)
)
change(transitions, "preempt", "a victim loses a long answer")(
    depending(
        lambda ctx, _state, row: (
            changed(waiting=first(generated=0, prefill_len=ctx.requests[row.id].prompt_len))
            if row.generated > 5
            else lambda after: after
        )
    )
)
change(step, "can_append", "the last free block is not seen")(
    lambda right, ctx, pool, row: right(ctx, one_block_less(pool), row)
)
change(step, "_decode_batch", "of many rows the last does not decode")(
    result(count=lambda count: count - (count >= MANY))
)
change(step, "_decode_batch", "a row more than max_num_seqs decodes")(
    lambda right, ctx, admitted: right(with_config(ctx, max_num_seqs=plus(1)), admitted)
)


@change(transitions, "finish", "many rows change their order after a decode step")
def reordered(right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    after, events = right(ctx, state, batch, ends)
    return (
        evolve(after, running=last_to_front(after.running)) if _is_many(after) else after
    ), events


def _is_many(state: Any) -> bool:
    return len(state.running) >= MANY


@change(transitions, "finish", "a long answer ends a step late")
def late(right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    new = tuple(row for row in batch if row.generated != 40)
    return right(ctx, state, new, ends)


@change(transitions, "finish", "the end of sequence is overlooked in a large batch")
def overlooked(right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    return right(ctx, state, batch, ends if len(batch) < MANY else lambda _row: False)


# --- the changes are changes, and are noticed -----------------------------------------------------

QUICK = (
    "the budget is never added up",
    "the victim goes to the back of waiting",
    "hits are not checked",
)


@cache
def large_runs() -> list[tuple[Case, list[StepRecord]]]:
    """The random large runs of the link, with the steps of the unchanged reference."""
    cases = [large_case(Random(f"{LINK.policy} {number}")) for number in range(RUNS)]
    return [(case, [*served(case)]) for case in cases]


def changes_some_run() -> bool:
    """True if the reference, as it is now, takes another step in one of the large runs."""
    return any([*_until_it_stops(case)] != steps for case, steps in large_runs())


def _until_it_stops(case: Case) -> Iterator[StepRecord]:
    try:
        yield from served(case)
    except (GuardError, EndlessError):
        return


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough, id=name)
        for name in CHANGES
    ],
)
def test_a_change_to_the_reference_makes_the_evidence_stale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_runs()  # before anything is changed
    CHANGES[name].plant(monkeypatch)

    assert changes_some_run()
    assert LINK.stale() is not None


def test_the_random_runs_have_many_rows_preemptions_and_every_refusal() -> None:
    runs = [steps for _, steps in large_runs()]
    crowded = [steps for steps in runs if max(len(step.after.present) for step in steps) >= MANY]
    widest = [max(len(step.scheduled) for step in steps) for steps in runs]
    preempting = [steps for steps in runs if any(step.happened("preempt") for step in steps)]
    refused = {step.refusal for steps in runs for step in steps if step.refusal}

    assert len(crowded) == RUNS
    assert sum(width >= MANY for width in widest) >= RUNS // 3
    assert len(preempting) >= RUNS // 3
    assert refused == {"NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"}
