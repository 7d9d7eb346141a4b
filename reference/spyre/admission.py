"""Why a prefill is not scheduled: each function returns the rule that refuses, or None.

Source: spyre, "Priority rules" and "Admission constraints"; reservation, pausing and the rule
`shipped` are those of sendnn-inference 2.6.3.
"""

from collections.abc import Callable

from reference.spyre.chunks import (
    cached_blocks,
    next_chunk,
    remaining_tokens,
    with_prefix_hit,
)
from spec.core.blocks import block_count
from spec.core.records import PREFILL
from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    exact_volume_holds,
    model_length_holds,
    shipped_volume_holds,
)
from spec.spyre.config import Admission
from spec.spyre.records import Context
from spec.spyre.reservation import may_reserve
from spec.spyre.reservation import worst_case_blocks as worst_case_of
from spec.spyre.state import Sequence, State

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
    """Priority rules: interleaving, the ongoing prefill first, paused requests before new."""
    if ctx.config.interleave and state.last_kind == PREFILL and state.decoding:
        return "SPY-PRI-3"
    if state.paused and (state.decoding or state.prefilling):
        return "SPY-PAU-4"
    if state.prefilling is not None and state.prefilling.id != sequence.id:
        return "SPY-PRI-2"
    return None


def _block_refusal(ctx: Context, state: State, sequence: Sequence) -> Refusal:
    """Blocks: the worst case with reservation, else those of the next chunk."""
    first = sequence is not state.prefilling
    hits = cached_blocks(ctx, state, sequence) if first else ()
    free = len(state.pool.free)
    if ctx.config.reservation and not first:
        return None  # its blocks were set aside when it was admitted
    if ctx.config.reservation:
        shared = sum(block in state.pool.references for block in hits)
        worst_case = worst_case_blocks(ctx, sequence)
        fits = may_reserve(worst_case, shared, free, reserved_blocks(state))
        return None if fits else "SPY-RES-1"
    revived = sum(block not in state.pool.references for block in hits)
    return None if revived + blocks_of_next_chunk(ctx, state, sequence) <= free else "BLK-9"


def reserved_blocks(state: State) -> int:
    """Blocks promised to admitted requests and not yet handed out."""
    return sum(sequence.reserved for sequence in state.admitted)


def blocks_of_next_chunk(ctx: Context, state: State, sequence: Sequence) -> int:
    """New blocks that the next chunk of `sequence` takes."""
    prospective = _as_admitted(ctx, state, sequence)
    end = next_chunk(ctx, prospective).end
    return int(block_count(end, ctx.config.block_size)) - len(prospective.blocks)


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
    if ctx.config.admission is Admission.SHIPPED and not ctx.config.interleave:
        # 2.6.3 judges a prompt once, before its first chunk: its chunks run back to back.
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
    decoding = [Member(row.computed, remaining_tokens(ctx, row)) for row in state.decoding]
    candidate = Member(sequence.prefill_len, remaining_tokens(ctx, sequence))
    return _VARIANTS[ctx.config.admission](ctx, state, decoding, candidate)


def _documented_refusal(
    ctx: Context, _state: State, decoding: list[Member], candidate: Member
) -> Refusal:
    config = ctx.config
    if not model_length_holds(decoding, candidate, config.max_model_len, config.block_size):
        return "SPY-LEN-2"
    limit = config.max_batch_tkv_limit
    holds = documented_volume_holds(decoding, candidate, limit, config.block_size)
    return None if holds else "SPY-VOL-2"


def _shipped_refusal(
    ctx: Context, state: State, decoding: list[Member], candidate: Member
) -> Refusal:
    config = ctx.config
    holds = shipped_volume_holds(
        decoding, candidate, config.max_batch_tkv_limit, config.block_size, state.last_tkv
    )
    return None if holds else "SPY-VOL-3"


def _exact_refusal(
    ctx: Context, _state: State, decoding: list[Member], candidate: Member
) -> Refusal:
    config = ctx.config
    limit = config.max_batch_tkv_limit
    holds = exact_volume_holds(decoding, candidate, limit, config.block_size)
    return None if holds else "SPY-VOL-4"


_VARIANTS: dict[Admission, Callable[[Context, State, list[Member], Member], Refusal]] = {
    Admission.DOCUMENTED: _documented_refusal,
    Admission.SHIPPED: _shipped_refusal,
    Admission.EXACT: _exact_refusal,
}
