"""Admission: each function returns the rule that refuses the prefill, or None.

Source: spyre, "Priority rules" and "Admission constraints"; reservation, pausing and the rule
`shipped` are those of sendnn-inference 2.6.3.
"""

from reference.spyre.chunks import (
    cached_blocks,
    counted_after,
    next_chunk,
    remaining_tokens,
    with_prefix_hit,
)
from spec.core.blocks import block_count
from spec.spyre.admission import Member
from spec.spyre.queue import alike_width, row_width, waits_for_rows
from spec.spyre.records import Context
from spec.spyre.reservation import may_reserve
from spec.spyre.reservation import worst_case_blocks as worst_case_of
from spec.spyre.state import Sequence, State, must_interleave
from spec.spyre.variants import Joining

Refusal = str | None


def worst_case_blocks(ctx: Context, sequence: Sequence) -> int:
    """Blocks of everything that the request may ever hold, one token more than it writes."""
    remaining = remaining_tokens(ctx, sequence)
    return int(worst_case_of(sequence.prefill_len, remaining, ctx.config.block_size))


def prefill_refusal(ctx: Context, state: State, sequence: Sequence) -> Refusal:
    """The rule that keeps `sequence`, prefilling or waiting, from its next chunk, or None."""
    for refusal in (_priority_refusal, _block_refusal, _chunk_refusal):
        rule = refusal(ctx, state, sequence)
        if rule is not None:
            return rule
    return None


def _priority_refusal(ctx: Context, state: State, sequence: Sequence) -> Refusal:
    """Priority rules: interleaving, the ongoing prefill first, paused requests before new.

    By width, also rows that decode before a wide new one, while they are more than those that wait.
    """
    if must_interleave(ctx.config, state, decodes=bool(state.decoding)):
        return "SPY-PRI-3"
    if state.paused and (state.decoding or state.prefilling):
        return "SPY-PAU-4"
    if state.prefilling is not None and state.prefilling.id != sequence.id:
        return "SPY-PRI-2"
    if ctx.config.queue.is_by_width and sequence is not state.prefilling:
        width, alike = width_of(ctx, sequence), _alike_width(ctx)
        if waits_for_rows(width, alike, len(state.decoding), len(state.waiting)):
            return "SPY-PRI-11"
    return None


def width_of(ctx: Context, row: Sequence) -> int:
    """Final width of the request's row in tokens; narrow rows count as equally wide."""
    request = ctx.requests[row.id]
    return int(row_width(request.prompt_len, request.max_tokens, _alike_width(ctx)))


def _alike_width(ctx: Context) -> int:
    config = ctx.config
    share = alike_width(config.max_batch_tkv_limit, config.max_num_seqs, config.chunk_size)
    return int(share)


def _block_refusal(ctx: Context, state: State, sequence: Sequence) -> Refusal:
    """Blocks: the worst case with reservation, else those of the next chunk."""
    first = sequence is not state.prefilling
    if ctx.config.reservation and not first:
        return None  # its blocks were set aside when it was admitted
    if ctx.config.reservation:
        return "SPY-RES-1" if lacks_worst_case(ctx, state, sequence) else None
    hits = cached_blocks(ctx, state, sequence) if first else ()
    needed = sum(block not in state.pool.references for block in hits)
    needed += blocks_of_next_chunk(ctx, state, sequence)
    return None if needed <= len(state.pool.free) else "BLK-9"


def lacks_worst_case(ctx: Context, state: State, sequence: Sequence) -> bool:
    """True if blocks are reserved, and those of the worst case of a waiting request cannot be."""
    hits = cached_blocks(ctx, state, sequence)
    shared = sum(block in state.pool.references for block in hits)
    worst_case, free = worst_case_blocks(ctx, sequence), len(state.pool.free)
    fits = may_reserve(worst_case, shared, free, reserved_blocks(state))
    return ctx.config.reservation and not fits


def reserved_blocks(state: State) -> int:
    """Blocks promised and not yet handed out, those of requests that have left among them."""
    return sum(sequence.reserved for sequence in state.admitted) + state.orphaned


def blocks_of_next_chunk(ctx: Context, state: State, sequence: Sequence) -> int:
    """New blocks that the next chunk of `sequence` takes."""
    prospective = _as_admitted(ctx, state, sequence)
    counted = counted_after(ctx, prospective, next_chunk(ctx, prospective))
    return int(block_count(counted, ctx.config.block_size)) - len(prospective.blocks)


def _as_admitted(ctx: Context, state: State, sequence: Sequence) -> Sequence:
    """The request itself if it is being prefilled, else as it would be once admitted."""
    if sequence is state.prefilling:
        return sequence
    return with_prefix_hit(ctx, sequence, cached_blocks(ctx, state, sequence))


def _chunk_refusal(ctx: Context, state: State, sequence: Sequence) -> Refusal:
    """First-chunk and last-chunk constraints, whichever apply to the next chunk."""
    first = sequence is not state.prefilling
    if first and len(state.running) >= ctx.config.max_num_seqs:
        return "SPY-ADM-1"
    if ctx.config.is_judged_first:
        return last_chunk_refusal(ctx, state, sequence) if first else None
    if next_chunk(ctx, _as_admitted(ctx, state, sequence)).is_last:
        return last_chunk_refusal(ctx, state, sequence)
    return None


def last_chunk_refusal(ctx: Context, state: State, sequence: Sequence) -> Refusal:
    """The last-chunk constraint that keeps `sequence` from the decode batch, or None."""
    if len(state.decoding) >= ctx.config.max_num_seqs:
        return "SPY-ADM-3"
    if ctx.config.pausing:
        return None
    joining = Joining(
        decoding=[Member(row.computed, remaining_tokens(ctx, row)) for row in state.decoding],
        candidate=Member(sequence.prefill_len, remaining_tokens(ctx, sequence)),
        limit=ctx.config.max_batch_tkv_limit,
        max_model_len=ctx.config.max_model_len,
        block_size=ctx.config.block_size,
        last_tkv=state.last_tkv,
    )
    return ctx.config.variant.refusal(joining)
