"""Planted faults of the engine: small wrong versions of its parts, to be switched in one at a time.

They are the slips that an engine is prone to: a formula one off, a list in the wrong order, and
what is kept from an earlier step although it no longer holds. Run as a module, it prints by what
each is found, and how soon.
"""

from bisect import insort
from collections.abc import Collection
from typing import Any

import numpy as np
from attrs import evolve

from engine.core.blocks import BlockManager, FreeList
from engine.spyre.scheduler import admission, apply, decode, prefill
from engine.spyre.scheduler.admission import LastChunk, Projection
from engine.spyre.scheduler.requests import Batch, Line, RequestState, WaitingQueue
from engine.spyre.scheduler.state import Awaited, SchedulerState
from tests.checks.faults.patches import Wrong, always
from tests.checks.harness.cases import ENGINE, hunt_table
from tests.checks.policies.engine_faults import EngineFaults, hunt_fault

ENGINE_FAULTS = EngineFaults()
fault = ENGINE_FAULTS.fault


# --- admission ------------------------------------------------------------------------------------

fault("admission", LastChunk, "_exact_volume_holds")(
    always(True), "volume never refuses: the exact volume rule admits every request"
)
fault("admission", admission, "exact_volume_holds")(
    lambda right, *batch: right(*batch[:3], batch[3] + 1, batch[4]),
    "limit one too high: the exact rule admits one token over the limit",
)
fault("admission", admission, "exact_volume_holds")(
    lambda right, *batch: right(*batch[:3], batch[3] - 1, batch[4]),
    "limit one too low: the exact rule refuses what just reaches the limit",
)


@fault("admission", admission, "exact_volume_holds")
def last_token_not_counted(right: Wrong, *given: Any) -> bool:
    """The exact rule takes the candidate to generate one token fewer."""
    lengths, remaining, (length, still), limit, size = given
    return bool(right(lengths, remaining, (length, max(still - 1, 1)), limit, size))


fault("admission", admission, "surely_exceed")(
    lambda right, lengths, remaining, shapes, limit: right(lengths, remaining, shapes, limit - 1),
    "shapes refused too soon: the bound for many shapes at once refuses what reaches the limit",
)
fault("admission", Projection, "is_of")(
    always(True),
    "projection outlives its moment: the batch's projected tkv are kept although it has changed",
)
fault("admission", LastChunk, "_joining")(
    lambda right, *given: evolve(right(*given), max_model_len=2**31),
    "model length not asked: the text's maximum-length condition always holds",
)
fault("admission", prefill, "_has_free_slot")(
    lambda _right, state: len(state.decoding) <= state.config.max_num_seqs,
    "one slot too many: one request more is admitted than there are slots",
)
fault("admission", prefill, "_starts_with_last_chunk")(
    lambda _right, state, request: request.prefill_len <= state.config.chunk_size,
    "judged without the hit: one that needs one chunk only thanks to the cache is not judged",
)
fault("admission", prefill, "may_reserve")(
    lambda right, worst, _shared, free, reserved: right(worst, 0, free, reserved),
    "shared blocks asked for again: blocks that others hold already are set aside all the same",
)
fault("admission", prefill, "may_reserve")(
    lambda right, worst, shared, free, _reserved: right(worst, shared, free, 0),
    "promises forgotten: what is promised to others counts as free",
)
fault("admission", prefill, "promised_blocks")(
    always(0), "nothing promised: no blocks are set aside for a request"
)


# --- padding and jumps ----------------------------------------------------------------------------


@fault("padding", decode, "layout")
def a_column_too_many(right: Wrong, lengths: Any, block_size: int) -> Any:
    """Every row gets one padding block more than it needs."""
    padding, tkv = right(lengths, block_size)
    return padding + block_size, tkv + block_size


fault("padding", decode, "max_tkv")(
    lambda _right, decisive, _block_size: max(decisive),
    "tkv of the longest: the row that reaches further into the last block is not looked at",
)


fault("padding", decode, "row_left_padding")(
    lambda _right, rows, width, size: width * size - rows - (-rows.max() % size),
    "padding by tokens: rows are padded by tokens and not by whole blocks",
)


def with_old_tkv(right: Wrong, batch: Batch, *given: Any) -> Batch:
    """The new batch, whose rows keep their padding until one of them fills its block."""
    changed: Batch = right(batch, *given)
    changed.tkv = batch.tkv
    return changed


fault("jumps", Batch, "of_rows")(
    with_old_tkv, "departure not noticed: when a request leaves, the others keep their padding"
)
fault("jumps", Batch, "with_front")(
    with_old_tkv, "newcomer not noticed: when a request joins, the others keep their padding"
)


# --- blocks ---------------------------------------------------------------------------------------


fault("blocks", BlockManager, "freed_by")(
    lambda right, blocks, tables: right(blocks, [tuple(table)[::-1] for table in tables]),
    "table head first: what a table will free is foretold from its head on",
)
fault("blocks", BlockManager, "release")(
    lambda right, blocks, table: right(blocks, table[::-1]),
    "released head first: a table is given back from its head on",
)


fault("blocks", FreeList, "put_front")(
    lambda _right, free, blocks: free.put_back(blocks),
    "plain blocks last: blocks without content go to the end of the free list",
)


@fault("blocks", BlockManager, "watch")
def free_blocks_count_as_held(right: Wrong, blocks: BlockManager, hit: Any, asked: Any) -> Any:
    """Cached blocks that no request holds count as shared."""
    watched = right(blocks, hit, asked)
    watched.held = len(hit)
    return watched


@fault("blocks", apply, "preempt")
def preempted_keeps_its_blocks(right: Wrong, state: SchedulerState, victim: RequestState) -> None:
    """A preempted request gives no block back."""
    victim.blocks = ()
    right(state, victim)


# --- caching --------------------------------------------------------------------------------------


fault("caching", prefill, "prefix_hit")(
    lambda right, state, request: request.hit or right(state, request),
    "lookup not repeated: a lookup is not repeated after a change",
)


fault("caching", prefill, "_full_blocks")(
    lambda right, *given: max(right(*given) - 1, 0),
    "last block missed: the last full block of a prompt is not looked up",
)


fault("caching", apply, "_register_filled")(
    always(None), "answers not cached: blocks filled while decoding are not found by lookups"
)


fault("caching", apply, "_register_full_blocks")(
    lambda right, state, request, computed: right(state, request, computed - 1),
    "cached a token late: a full block is found only once a token stands behind it",
)
fault("caching", SchedulerState, "request_tokens")(
    lambda _right, _state, _request, start, end: np.zeros(end - start, np.int64),
    "keys without tokens: no token counts in the key of a block",
)


@fault("caching", BlockManager, "_evict")
def evictions_forgotten(_right: Wrong, blocks: BlockManager, block: int, _key: Any) -> None:
    """A block that is allocated again can still be found by its old content."""
    blocks.keys[block] = None


@fault("caching", SchedulerState, "request_tokens")
def keys_without_answers(
    right: Wrong, state: SchedulerState, request: RequestState, *span: int
) -> Any:
    """What was sampled does not count in the key of a block."""
    tokens = np.array(right(state, request, *span))
    first_sampled = max(request.request.prompt_len - span[0], 0)
    tokens[first_sampled:] = 0
    return tokens


fault("caching", prefill, "redirected_blocks")(
    always(0),
    "redirection not reported: blocks of a boundary chunk whose writes are redirected are left out",
)


# --- order ----------------------------------------------------------------------------------------


@fault("order", Batch, "with_front")
def joins_at_the_back(right: Wrong, batch: Batch, newcomer: RequestState) -> Batch:
    """A newcomer stands behind the batch."""
    joined: Batch = right(batch, newcomer)
    return joined.of_rows([*range(1, len(joined)), 0])


fault("order", WaitingQueue, "put_front")(
    lambda _right, queue, request: queue.put_back(request),
    "preempted waits last: a preempted request goes to the end of the queue",
)


fault("order", decode, "_preempted")(
    lambda right, state, rows: right(state, rows.of_rows(range(len(rows))[::-1])),
    "first admitted preempted: the batch is preempted from its other end",
)


fault("order", prefill, "_first_to_overtake")(
    always(None), "none overtakes: with overtaking, no request is looked at behind the head"
)


fault("order", Line, "in_order")(
    lambda right, line: reversed([*right(line)]), "widest first: by width, from the other end"
)
fault("order", WaitingQueue, "first_in_line")(
    lambda right, queue, _held_back: right(queue),
    "not passed over: a request whose grammar or images are not ready is prefilled",
)
fault("order", Awaited, "next_given")(
    lambda right, awaited, most: right(awaited, most + 1),
    "one image more: the encoder is given those of more requests than there are slots",
)
fault("order", Awaited, "give")(
    lambda _right, awaited, request_ids: [awaited.unencoded.pop(name) for name in request_ids],
    "encoded when given: nothing is awaited of the encoder",
)
fault("order", Line, "close")(always(None), "never closed: newcomers join a cohort that has begun")
fault("order", Line, "came_back")(
    always(None), "not back in line: a preempted request is not of the cohort"
)


fault("order", WaitingQueue, "yields_to")(
    always(False), "wide ones first: by width, rows that decode are not let go on"
)


@fault("order", Line, "arrived")
def line_without_end(_right: Wrong, line: Line, request: RequestState) -> None:
    """The cohort has no bound while it has not begun."""
    insort(line._entries, line._entry(request))


@fault("order", prefill, "_priority_refusal")
def not_interleaved(right: Wrong, state: SchedulerState) -> Any:
    """Prefill steps follow each other although interleaving is on."""
    refusal = right(state)
    return None if refusal == "SPY-PRI-3" else refusal


@fault("order", decode, "choose_rows")
def longest_answer_first(right: Wrong, state: SchedulerState) -> Any:
    """Pausing serves in the opposite order of answers."""
    config = state.config
    state.config = evolve(config, long_output_first=not config.long_output_first)
    try:
        return right(state)
    finally:
        state.config = config


# --- accounting -----------------------------------------------------------------------------------


@fault("accounting", apply, "release")
def promise_not_taken_back(right: Wrong, state: SchedulerState, request: RequestState) -> None:
    """What was promised to a request that leaves stays set aside."""
    state.reserved += request.reserved
    right(state, request)


fault("accounting", apply, "still_promised")(
    lambda _right, promised, _handed_out: promised,
    "promised for ever: blocks that are handed out stay promised",
)


@fault("accounting", Batch, "advance")
def tokens_generated_not_counted(right: Wrong, batch: Batch, tkv: int) -> None:
    """The count-down to the first end stands still."""
    batch.steps_to_end += 1
    right(batch, tkv)


@fault("accounting", apply, "_ending_rows")
def ends_a_token_early(right: Wrong, rows: Batch, ends: Collection[str] | None) -> Any:
    """Requests leave one token before their last."""
    if ends is None:
        return np.flatnonzero(rows.computed + 1 >= rows.ends_at).tolist()
    return right(rows, ends)


fault("accounting", RequestState, "again")(
    lambda right, request, outputs: right(request, outputs[:-1]),
    "answer lost with preemption: a preempted request loses its newest token",
)


if __name__ == "__main__":
    print(hunt_table(hunt_fault(ENGINE, fault, 200) for fault in ENGINE_FAULTS))
