"""Apply a plan that the device has executed, and release the blocks of leaving requests.

Source: spyre, "Chunked Prefill" and "Decode padding"; vllm-v1, "Request lifecycle" and
"Preemption".
"""

import numpy as np

from engine.core.requests import as_prescribed
from engine.core.scheduler import Ends
from engine.core.tensors import Tensor
from engine.spyre.scheduler.plan import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan
from engine.spyre.scheduler.requests import Batch, RequestState
from engine.spyre.scheduler.state import SchedulerState
from spec.spyre.reservation import still_promised
from spec.spyre.state import Past, past_after


def apply_plan(state: SchedulerState, plan: Plan, tokens: Tensor, ends: Ends) -> Outcome:
    """Apply the plan; `tokens` [sampled] are those that the device sampled for it.

    `ends`: the requests that sample the end of sequence; None: each request where it says so.
    """
    if plan.given:
        state.awaited.give(plan.given)
    match plan:
        case PrefillPlan():
            outcome = _apply_prefill(state, plan, tokens, ends)
        case DecodePlan():
            outcome = _apply_decode(state, plan, tokens, ends)
        case IdlePlan():
            state.decoding, state.paused = Batch.empty(), plan.paused
            outcome = Outcome()
    if plan.kind != state.past.last_kind or state.config.variant.uses_last_tkv:
        state.past = past_after(state.config, plan.kind, outcome.tkv)
    return outcome


# --- prefill ------------------------------------------------------------------------------------


def _apply_prefill(state: SchedulerState, plan: PrefillPlan, tokens: Tensor, ends: Ends) -> Outcome:
    request, tkv = plan.request, plan.request.prefill_len
    if plan.is_new:
        _admit(state, plan)
    _allocate(state, request, plan.new_blocks)
    request.computed = plan.chunk.end
    _register_full_blocks(state, request, request.computed)
    if not plan.chunk.is_last:
        return Outcome(tkv=tkv)
    tokens = _join(state, request, tokens)
    finished = _finish(state, [0] if _ends_with_first_token(state, ends) else [])
    return Outcome((request.id,), tokens, finished, tkv)


def _admit(state: SchedulerState, plan: PrefillPlan) -> None:
    """A waiting request takes the prefill slot, its cached blocks and its reservation."""
    request = plan.request
    state.queue.admit(request)
    state.prefilling = request
    state.blocks.acquire(plan.held)
    request.blocks = plan.held
    request.hit_blocks = request.registered = plan.hit_blocks
    request.hit = None
    request.reserved = plan.promised
    state.reserved += plan.promised


def _join(state: SchedulerState, request: RequestState, tokens: Tensor) -> Tensor:
    """The request has its first token and joins the front of the decode batch."""
    state.prefilling = None
    request.slot = state.slots.take(request.blocks, request.outputs, request.request.max_tokens)
    state.decoding = state.decoding.with_front(request)
    return _keep_sampled(state, state.decoding.of_rows([0]), tokens, 0)


def _ends_with_first_token(state: SchedulerState, ends: Ends) -> bool:
    """True if the request in front of the batch leaves at once."""
    rows = state.decoding
    last = rows.full_at if ends is not None else rows.ends_at
    return bool(rows.computed[0] >= last[0]) or rows.members[0].id in (ends or ())


# --- decode -------------------------------------------------------------------------------------


def _apply_decode(state: SchedulerState, plan: DecodePlan, tokens: Tensor, ends: Ends) -> Outcome:
    for victim in plan.preempted:
        preempt(state, victim)
    rows = state.decoding = plan.rows
    state.paused = plan.paused
    if plan.left_padding is not None:
        rows.left_padding[:] = plan.left_padding
    for row, block in zip(plan.growing, plan.new_blocks, strict=True):
        _allocate(state, rows.members[row], (block,))
    rows.advance(plan.tkv)
    if state.config.prefix_caching and plan.tkv % state.config.block_size == 0:
        _register_filled(state, rows)
    tokens = _keep_sampled(state, rows, tokens, 1)
    finished = _finish(state, _ending_rows(rows, ends))
    return Outcome(rows.ids, tokens, finished, plan.tkv)


def _register_filled(state: SchedulerState, rows: Batch) -> None:
    """Register the blocks filled in this step: at least one row's, where tkv ends a block."""
    size = state.config.block_size
    for row in np.flatnonzero(rows.computed % size == 0).tolist():
        _register_full_blocks(state, rows.members[row], int(rows.computed[row]))


def _keep_sampled(state: SchedulerState, rows: Batch, tokens: Tensor, step: int) -> Tensor:
    """Store and return the rows' new tokens: the device's, unless a request prescribes its own.

    `step`: 0 for the token of a prefill, else 1, that of the batch's first decode step.
    """
    if rows.prescribed:
        places = rows.computed - rows.prompt_len
        tokens = as_prescribed(tokens, rows.members, rows.prescribed, places)
    state.slots.note(rows.slot, rows.outputs, step, tokens)
    return tokens


def _ending_rows(rows: Batch, ends: Ends) -> list[int]:
    """Rows that have all their tokens, or sampled the end of sequence, in batch order."""
    if ends is None:
        if rows.steps_to_end > 0:
            return []
        return np.flatnonzero(rows.computed >= rows.ends_at).tolist()
    is_full = (rows.computed >= rows.full_at).tolist()
    return [row for row, name in enumerate(rows.ids) if is_full[row] or name in ends]


# --- blocks -------------------------------------------------------------------------------------


def _allocate(state: SchedulerState, request: RequestState, blocks: tuple[int, ...]) -> None:
    """Append new blocks to the request's table, out of its reservation."""
    state.blocks.allocate(blocks)
    if request.slot >= 0:
        state.slots.write_blocks(request.slot, len(request.blocks), blocks)
    request.blocks += blocks
    left = max(still_promised(request.reserved, len(blocks)), 0)
    state.reserved += left - request.reserved
    request.reserved = left


def _register_full_blocks(state: SchedulerState, request: RequestState, computed: int) -> None:
    """Register the request's full blocks that are not cached yet."""
    full = computed // state.config.block_size
    if not state.config.prefix_caching or full <= request.registered:
        return
    state.hash_blocks(request, full)
    fresh = slice(request.registered, full)
    state.blocks.register(request.blocks[fresh], request.hashes[fresh])
    request.registered = full


# --- release ------------------------------------------------------------------------------------


def _finish(state: SchedulerState, rows: list[int]) -> tuple[str, ...]:
    """Remove these finished rows, in batch order; return their ids."""
    if not rows:
        return ()
    leaving = [state.decoding.members[row] for row in rows]
    state.decoding = state.decoding.without(rows)
    for request in leaving:
        release(state, request)
        state.finished.add(request.id)
    return tuple(request.id for request in leaving)


def preempt(state: SchedulerState, victim: RequestState) -> None:
    """Release a request's blocks: it waits first in the queue and recomputes all its tokens."""
    outputs = _outputs(state, victim)
    remove(state, victim)
    state.queue.put_front(victim.again(outputs))


def restart(state: SchedulerState) -> None:
    """Drop the cache: all admitted requests wait at the head of the queue, first admitted first.

    Paused requests were admitted before those of the batch.
    """
    ongoing = () if state.prefilling is None else (state.prefilling,)
    for request in (*ongoing, *state.decoding.members, *reversed(state.paused.members)):
        preempt(state, request)
    state.blocks.forget_contents()
    state.past = Past()


def release(state: SchedulerState, request: RequestState) -> None:
    """Release the blocks, the reservation and the slot of the request."""
    state.blocks.release(request.blocks)
    state.reserved -= request.reserved
    if request.slot >= 0:
        state.slots.give_back(request.slot)


def _outputs(state: SchedulerState, request: RequestState) -> Tensor:
    """All tokens that an admitted request has sampled, kept beyond its slot."""
    for rows in (state.decoding, state.paused):
        if request in rows.members:
            count = int(rows.generated()[rows.members.index(request)])
            return state.slots.outputs[request.slot, :count].copy()
    return request.outputs


def remove(state: SchedulerState, request: RequestState) -> None:
    """Remove the request from its queue or batch, and release what it holds."""
    if request is state.prefilling:
        state.prefilling = None
    elif request in state.decoding.members:
        state.decoding = state.decoding.without([state.decoding.members.index(request)])
    elif request in state.paused.members:
        state.paused = state.paused.without([state.paused.members.index(request)])
    else:
        state.queue.remove(request)
        state.awaited.remove(request.id)
    release(state, request)
