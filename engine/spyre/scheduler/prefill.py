"""Plan a prefill step: the choice of a request, its chunk, and its blocks.

Source: spyre, "Priority rules", "Admission constraints", "Chunked Prefill" and "Prefix caching";
reservation, overtaking and the rule `shipped` are those of sendnn-inference 2.6.3.
"""

from collections.abc import Collection, Iterator

from attrs import evolve

from engine.core.blocks import PrefixHit
from engine.spyre.scheduler.plan import PrefillPlan
from engine.spyre.scheduler.requests import RequestState, Shape
from engine.spyre.scheduler.state import SchedulerState
from spec.core.blocks import block_count
from spec.core.requests import BlockKey
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import (
    active_chunk,
    chunk_count,
    chunk_end,
    chunk_start,
    left_padding,
    redirected_blocks,
    reused_blocks,
    right_padding,
)
from spec.spyre.records import Chunk
from spec.spyre.reservation import may_reserve, promised_blocks
from spec.spyre.state import PADDING_BLOCK, must_interleave

_NO_HIT = PrefixHit((), 0)


def plan_prefill(state: SchedulerState) -> tuple[PrefillPlan | None, str | None]:
    """The next prefill step, or None; and the first rule that refused a request."""
    first = state.queue.first_in_line(state.awaited)
    if state.prefilling is None and first is None:
        return None, None
    refusal = _priority_refusal(state)
    if refusal is not None:
        return None, refusal
    if state.prefilling is not None:
        return _plan_next_chunk(state, state.prefilling)
    assert first is not None
    chosen, refusal = _first_admissible(state, first)
    return None if chosen is None else _plan_admission(state, chosen, refusal), refusal


def _plan_next_chunk(
    state: SchedulerState, ongoing: RequestState
) -> tuple[PrefillPlan | None, str | None]:
    """The next chunk of the ongoing prefill, or the rule that refuses it."""
    config, refusal = state.config, None
    chunk = next_chunk(config, ongoing, ongoing.hit_blocks, ongoing.computed)
    needed = _blocks_needed(config, chunk, len(ongoing.blocks))
    if not config.reservation and needed > state.blocks.free.count:
        refusal = "BLK-9"
    elif chunk.is_last and not config.is_judged_first:
        refusal = state.last_chunk.refusal(state.decoding, state.past.last_tkv, ongoing)
    if refusal is not None:
        return None, refusal
    new_blocks = state.blocks.next_free(needed)
    return PrefillPlan(ongoing, chunk, ongoing.blocks, new_blocks, ongoing.hit_blocks), None


def _plan_admission(
    state: SchedulerState, chosen: RequestState, refusal: str | None
) -> PrefillPlan:
    """Admit a request: its first chunk, prefix hit and reservation."""
    config, hits = state.config, prefix_hit(state, chosen).blocks
    chunk = first_chunk(config, chosen, len(hits))
    needed = _blocks_needed(config, chunk, len(hits))
    promised = 0
    if config.reservation:
        promised = promised_blocks(chosen.worst_case_blocks(config.block_size), held=len(hits))
    return PrefillPlan(
        chosen,
        chunk,
        hits,
        state.blocks.next_free(needed, without=set(hits)),
        len(hits),
        is_new=True,
        promised=promised,
        refusal=refusal,
    )


def _blocks_needed(config: SpyreConfig, chunk: Chunk, held: int) -> int:
    """New blocks that the chunk takes."""
    return int(block_count(chunk.end, config.block_size)) - held


# --- choice of the request ------------------------------------------------------------------------


def _priority_refusal(state: SchedulerState) -> str | None:
    """The priority rule that refuses any prefill now, or None."""
    if must_interleave(state.config, state.past, decodes=bool(len(state.decoding))):
        return "SPY-PRI-3"
    if len(state.paused) and (len(state.decoding) or state.prefilling is not None):
        return "SPY-PAU-4"
    return None


def _first_admissible(
    state: SchedulerState, first: RequestState
) -> tuple[RequestState | None, str | None]:
    """The first request in the queue that no rule refuses; and the first rule that refused one.

    `first`: the first that may be chosen; those whose grammars or images are not ready are passed
    over.

    First come, first served judges only the head of the queue, the aligned queue only the narrowest
    request. Overtaking ends at the first request that lacks blocks, and if no slot is free.
    """
    if state.queue.yields_to(len(state.decoding), first):
        return None, "SPY-PRI-11"
    refusal = _admission_refusal(state, first)
    if refusal is None:
        return first, None
    if not state.config.queue.steps_over(refusal) or not _has_free_slot(state):
        return None, refusal
    return _first_to_overtake(state), refusal


def _first_to_overtake(state: SchedulerState) -> RequestState | None:
    """The first admissible request before the first one that lacks blocks.

    Where the cache has no influence, requests of one shape get the same verdict: one per shape is
    judged, so the cost depends on the number of shapes, not of requests.
    """
    refused = state.last_chunk.refused_shapes(state.decoding, state.queue.shapes())
    for request in state.queue.without_shapes(lambda head: _is_shape_refused(state, head, refused)):
        if request.id in state.awaited:
            continue
        refusal = _admission_refusal(state, request)
        if refusal is None:
            return request
        if refusal == "SPY-RES-1":
            return None
    return None


def _is_shape_refused(
    state: SchedulerState, request: RequestState, refused: Collection[Shape]
) -> bool:
    """True if every request of this shape is refused now, with any cached prefix.

    `refused`: shapes that are refused once they are judged by the last-chunk constraints.
    """
    if _is_judged_by_shape(state, request):
        if request.shape in refused:
            return True
    elif state.config.prefix_caching:
        return False
    return _admission_refusal(state, request) not in (None, "SPY-RES-1")


def _is_judged_by_shape(state: SchedulerState, request: RequestState) -> bool:
    """True if requests of this shape are judged by the last-chunk constraints and these alone."""
    config, free = state.config, state.blocks.free.count
    if not config.is_judged_first and request.prefill_len > config.chunk_size:
        return False
    if config.reservation:
        worst_case = request.worst_case_blocks(config.block_size)
        return bool(may_reserve(worst_case, 0, free, state.reserved))
    return bool(block_count(request.prefill_len, config.block_size) <= free)


# --- refusals -------------------------------------------------------------------------------------


def _admission_refusal(state: SchedulerState, request: RequestState) -> str | None:
    """The rule that refuses a waiting request its first chunk, or None."""
    refusal = _block_refusal(state, request)
    if refusal is not None:
        return refusal
    if not _has_free_slot(state):
        return "SPY-ADM-1"
    if state.config.is_judged_first or _starts_with_last_chunk(state, request):
        return state.last_chunk.refusal(state.decoding, state.past.last_tkv, request)
    return None


def _block_refusal(state: SchedulerState, request: RequestState) -> str | None:
    """SPY-RES-1 or BLK-9 if blocks are lacking: for the worst case, or for the first chunk."""
    free = state.blocks.free.count
    if state.config.reservation:
        worst_case = request.worst_case_blocks(state.config.block_size)
        if may_reserve(worst_case, 0, free, state.reserved):
            return None  # with any cached prefix
        shared = prefix_hit(state, request).held
        return None if may_reserve(worst_case, shared, free, state.reserved) else "SPY-RES-1"
    hit = prefix_hit(state, request)
    found = len(hit.blocks)
    needed = _blocks_needed(state.config, first_chunk(state.config, request, found), found)
    return None if found - hit.held + needed <= free else "BLK-9"


def _has_free_slot(state: SchedulerState) -> bool:
    """True if the batch takes one more request, when none is being prefilled."""
    return len(state.decoding) < state.config.max_num_seqs


def _starts_with_last_chunk(state: SchedulerState, request: RequestState) -> bool:
    """True if what is left of the prompt after the prefix hit fits one chunk."""
    if request.prefill_len <= state.config.chunk_size:
        return True  # with any cached prefix
    return first_chunk(state.config, request, len(prefix_hit(state, request).blocks)).is_last


# --- chunks ---------------------------------------------------------------------------------------


def next_chunk(config: SpyreConfig, request: RequestState, hit_blocks: int, computed: int) -> Chunk:
    """The chunk that a request computes next; its block table is left out.

    `hit_blocks`: cached blocks of its prompt. `computed`: its tokens in the KV cache.
    """
    length = request.prefill_len
    padding = left_padding(length, config.block_size, config.chunk_size)
    index, layout = active_chunk(computed, padding, config.chunk_size), _layout(config, length)
    return Chunk(
        id=request.id,
        chunk=index,
        chunks=chunk_count(length, config.chunk_size),
        start=chunk_start(index, padding, config.chunk_size),
        end=chunk_end(index, padding, config.chunk_size, length),
        left_padding=padding,
        right_padding=right_padding(length, config.block_size),
        cached_tokens=reused_blocks(hit_blocks, *layout) * config.block_size,
        inner_padding=redirected_blocks(hit_blocks, *layout) * config.block_size,
    )


def first_chunk(config: SpyreConfig, request: RequestState, hit_blocks: int) -> Chunk:
    """The first chunk of a waiting request that finds `hit_blocks` cached blocks."""
    reused = reused_blocks(hit_blocks, *_layout(config, request.prefill_len))
    return next_chunk(config, request, hit_blocks, reused * config.block_size)


def _layout(config: SpyreConfig, length: int) -> tuple[int, int, int]:
    """Left padding in blocks, blocks of a chunk, and chunks of a prompt of `length` tokens."""
    padding = left_padding(length, config.block_size, config.chunk_size)
    chunks = chunk_count(length, config.chunk_size)
    return padding // config.block_size, config.blocks_per_chunk, chunks


def with_block_table(
    config: SpyreConfig, chunk: Chunk, table: tuple[int, ...], hit_blocks: int
) -> Chunk:
    """The chunk with the blocks that it reads and writes, out of the request's own `table`.

    Source: spyre, "Boundary chunk": reads use the cached blocks, writes go to the dummy block.
    """
    padding_blocks = chunk.left_padding // config.block_size
    padded = (PADDING_BLOCK,) * padding_blocks + table
    first = chunk.chunk * config.blocks_per_chunk
    end = first + config.blocks_per_chunk
    kept = min(max(padding_blocks + hit_blocks - first, 0), config.blocks_per_chunk)
    return evolve(
        chunk,
        block_table=padded[:end],
        writes=(PADDING_BLOCK,) * kept + padded[first + kept : end],
    )


# --- cached blocks --------------------------------------------------------------------------------


def prefix_hit(state: SchedulerState, request: RequestState) -> PrefixHit:
    """Cached blocks of the tokens to prefill, the last token left out: it is always computed.

    The lookup is repeated only if one of them has changed, or the next block has become cached.
    """
    if not state.config.prefix_caching:
        return _NO_HIT
    hit, blocks = request.hit, state.blocks
    if hit is None or hit is not blocks.watched or hit.is_stale:
        found = tuple(_cached_blocks(state, request))
        hit = request.hit = blocks.watch(found, _next_content(state, request, len(found)))
    return hit


def _next_content(state: SchedulerState, request: RequestState, found: int) -> tuple[BlockKey, ...]:
    """The key of the next block, which lengthens the hit once it is cached; () at the end."""
    return request.hashes[found : found + 1] if found < _full_blocks(state, request) else ()


def _cached_blocks(state: SchedulerState, request: RequestState) -> Iterator[int]:
    """The blocks in order, up to the first that is not cached."""
    for key in state.leading_keys(request, _full_blocks(state, request)):
        block = state.blocks.lookup(key)
        if block is None:
            return
        yield block


def _full_blocks(state: SchedulerState, request: RequestState) -> int:
    """Blocks that the tokens to prefill fill, the last token left out."""
    return (request.prefill_len - 1) // state.config.block_size
