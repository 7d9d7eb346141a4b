"""Which request has the next prefill, where the queue is gone through in its order."""

from spec.core.records import PREFILL
from spec.spyre.records import Context
from spec.spyre.rules.admission import may_join
from spec.spyre.rules.observed import (
    Sequences,
    lacks_next_chunk,
    lacks_worst_case,
    may_be_chosen,
    rows_in_slots,
)
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Queue, Reading


def holding_up(ctx: Context, state: State) -> Sequence | None:
    """The request that would be prefilled next, if in 2.6.3 its grammar is not ready."""
    if ctx.config.reading is not Reading.RELEASED or not state.compiling:
        return None
    chosen = first_that_may(ctx, state, may_be_chosen(ctx, state, state.waiting))
    return chosen if chosen is not None and chosen.id in state.compiling else None


def first_that_may(ctx: Context, state: State, rows: Sequences) -> Sequence | None:
    """The request that is prefilled next, if these wait; not where the narrowest goes first."""
    config = ctx.config
    interleaves = config.interleave and state.last_kind == PREFILL
    if state.prefilling or (state.decoding and (interleaves or state.paused)):
        return None
    lacks = lacks_worst_case if config.reservation else lacks_next_chunk
    for row in () if is_full(ctx, state) else rows:
        is_lacking = lacks(ctx, state, row)
        if not is_lacking and may_join(ctx, state, row):
            return row
        if config.queue is not Queue.OVERTAKING or (config.reservation and is_lacking):
            return None
    return None


def is_full(ctx: Context, state: State) -> bool:
    """True if no slot of the running batch is free."""
    return rows_in_slots(state) >= ctx.config.max_num_seqs
