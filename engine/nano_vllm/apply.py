"""Apply a plan that the device has executed, and release the blocks of leaving requests.

Source: nano-vllm, "The Prefill Path", "BlockManager: Three Core Operations", "Preemption" and
"One Decode Step: What Happens".
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from engine.core.decoding import RequestState
from engine.core.requests import as_prescribed, prescribed
from engine.core.scheduler import Ends, Outcome
from engine.core.tensors import Tensor
from engine.nano_vllm.plan import Admission, DecodePlan, PrefillPlan
from engine.nano_vllm.state import SchedulerState


def apply_prefill(state: SchedulerState, plan: PrefillPlan, tokens: Tensor, ends: Ends) -> Outcome:
    """Admit requests, complete their prefills, and give each its first token."""
    rows = [_admitted(state, admission) for admission in plan.admissions]
    places = np.array([len(row.outputs) for row in rows], np.int64)
    if which := prescribed(rows):
        tokens = as_prescribed(tokens, rows, which, places)
    state.slots.note(np.array([row.slot for row in rows], np.int64), places, 0, tokens)
    for row in rows:
        row.computed = row.prefill_len
        state.running.append(row)
    finished = _finish(state, [row for row in rows if _is_over(row, ends)])
    return Outcome(tuple(row.id for row in rows), tokens, finished)


def _admitted(state: SchedulerState, admission: Admission) -> RequestState:
    """Move a request out of the queue, with its cached and new blocks; hash its full blocks."""
    request, hits, fresh = admission.request, admission.hits, admission.fresh
    keys = request.hashes
    state.queue.remove(request)
    state.blocks.register(hits, keys[: len(hits)])
    state.blocks.acquire(hits)
    state.blocks.allocate(fresh)
    own = keys[len(hits) :]
    state.blocks.register(fresh[: len(own)], own)
    request.blocks, request.hit_blocks, request.hit = (*hits, *fresh), len(hits), None
    output = request.request.max_tokens
    request.slot = state.slots.take(request.blocks, request.outputs, output)
    return request


def _is_over(row: RequestState, ends: Ends) -> bool:
    """True if the row finishes with the token of its prefill."""
    generated = len(row.outputs) + 1
    if ends is None:
        return generated >= row.request.end
    return row.id in ends or generated >= row.request.max_tokens


def apply_decode(state: SchedulerState, plan: DecodePlan, tokens: Tensor, ends: Ends) -> Outcome:
    """Preempt rows, allocate blocks, hash full blocks, and give every row of the batch a token."""
    for row, block in plan.moves:
        if block is None:
            preempt(state, row)
        else:
            _allocate(state, row, block)
    batch, running = plan.batch, state.running
    for row in running.of_length(state.filling_remainder):
        _hash_filled(state, row)
    running.steps += 1
    if batch.prescribed:
        places = batch.outputs + running.steps
        tokens = as_prescribed(tokens, batch.rows, batch.prescribed, places)
    state.slots.note(batch.slots, batch.outputs, running.steps, tokens)
    leaving = running.ending() if ends is None else _named(batch.rows, running.full(), ends)
    return Outcome(batch.ids, tokens, _finish(state, leaving) if leaving else ())


def _allocate(state: SchedulerState, row: RequestState, block: int) -> None:
    state.blocks.allocate((block,))
    state.slots.write_blocks(row.slot, len(row.blocks), (block,))
    row.blocks += (block,)


def _hash_filled(state: SchedulerState, row: RequestState) -> None:
    """Register the block that the row's newest token fills for prefix lookups."""
    full = (state.running.computed(row) + 1) // state.config.block_size
    state.hash_blocks(row, full)
    state.blocks.register(row.blocks[full - 1 : full], row.hashes[-1:])


def _named(
    rows: Sequence[RequestState], full: Sequence[RequestState], ends: Collection[str]
) -> list[RequestState]:
    """The rows that sampled end-of-sequence or have reached `max_tokens`."""
    return [row for row in rows if row in full or row.id in ends] if full or ends else []


# --- release ------------------------------------------------------------------------------------


def _finish(state: SchedulerState, leaving: Iterable[RequestState]) -> tuple[str, ...]:
    """Finish these rows in this order; returns their ids."""
    names = []
    for row in leaving:
        remove(state, row)
        state.finished.add(row.id)
        names.append(row.id)
    return tuple(names)


def preempt(state: SchedulerState, victim: RequestState) -> None:
    """Preempt a request: release its blocks and put it in front of the queue, to be recomputed."""
    generated = state.running.computed(victim) - victim.request.prompt_len + 1
    outputs = state.slots.outputs[victim.slot, :generated].copy()
    remove(state, victim)
    state.queue.put_front(victim.again(outputs))


def restart(state: SchedulerState) -> None:
    """Preempt all running requests, keep their order, and empty the prefix cache."""
    for row in reversed([*state.running.rows]):
        preempt(state, row)
    state.blocks.forget_contents()


def remove(state: SchedulerState, request: RequestState) -> None:
    """Remove the request from its queue, and release its blocks and its slot."""
    if request.slot < 0:
        state.queue.remove(request)
        return
    state.running.remove(request)
    state.blocks.release(request.blocks)
    state.slots.give_back(request.slot)
