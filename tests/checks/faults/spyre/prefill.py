"""Faults of the prefill: the prefix hit, the chunk, its blocks, the first token."""

from typing import Any

from attrs import evolve

from reference.spyre import chunks, step, transitions
from reference.spyre.step import SpyreRun
from spec.spyre.records import Chunk, Context
from spec.spyre.state import PADDING_BLOCK, State
from spec.spyre.state import Sequence as Row
from tests.checks.faults.patches import (
    Wrong,
    altered,
    always,
    changed,
    depending,
    first,
    kept,
    plus,
    result,
)
from tests.checks.faults.spyre.table import fault

# --- prefix hit ----------------------------------------------------------------------------------

fault(
    chunks,
    "reused_blocks",
    of="prefix_hit",
    on="shared prefix",
    rules="SPY-PFX-3, SPY-PFX-4, SPY-PFX-5, SPY-CHK-3, SPY-CHK-5, SPY-CHK-7",
)(
    lambda _right, hit_blocks, *_layout: hit_blocks,
    "parts of chunks skipped: cached blocks count as computed in a half-cached chunk too",
)
fault(
    chunks,
    "reused_blocks",
    of="prefix_hit",
    on="shared prefix",
    rules="SPY-PFX-3, SPY-PFX-5, SPY-RES-2, BLK-8",
)(always(0), "cached chunks computed: no chunk is skipped, however much is cached")

fault(transitions, "cached_blocks", of="prefix_hit", on="same prompt", rules="SPY-PFX-7")(
    lambda right, ctx, state, row: right(ctx, state, changed(prefill_len=plus(1))(row)),
    "last block shared: the block of a prompt's last token is taken from the cache too",
)
fault(
    transitions,
    "prefix_hit",
    on="same prompt",
    rules="BLK-2, SPY-PFX-6, SPY-PFX-5, BLK-11, SPY-PFX-11",
)(kept("prefilling"), "hit is computed anew: a prefix hit is noted, and its blocks are not taken")
fault(chunks, "lookup", on="shared prefix", rules="SPY-PFX-7")(
    lambda right, pool, keys: right(pool, keys)[:-1],
    "one cached block missed: the last of the cached blocks is not found",
)
fault(chunks, "lookup", on="shared prefix", rules="SPY-PFX-6, SPY-PFX-2, BLK-5")(
    lambda right, pool, keys: right(pool, keys)[::-1],
    "cached blocks in reverse: the cached blocks are found in the wrong order",
)


# --- layout of the padded prompt -----------------------------------------------------------------

fault(chunks, "right_padding", of="chunk", on="layout", rules="SPY-PAD-2, SPY-PAD-1")(
    lambda right, length, block_size: right(length, block_size) or block_size,
    "right padding of a block: a prompt that ends with its block is right-padded by a further one",
)
fault(chunks, "left_padding", of="chunk", on="layout", rules="SPY-PAD-3, SPY-PAD-1")(
    lambda _right, length, _block_size, chunk_size: -length % chunk_size,
    "left padding by tokens: a prompt is left-padded up to its chunk's end, not by whole blocks",
)
fault(transitions, "with_block_table", of="chunk", on="layout", rules="SPY-PAD-5")(
    result(block_table=lambda table: tuple(sorted(table, key=PADDING_BLOCK.__eq__))),
    "padding behind the blocks: the block table has its padding behind the request's blocks",
)
fault(transitions, "with_block_table", of="chunk", on="layout", rules="SPY-PAD-4, SPY-CHK-1")(
    result(block_table=lambda table: (*table, table[-1])),
    "empty block on the right: the block table ends in a block without a token",
)


# --- which tokens a chunk computes ---------------------------------------------------------------

fault(chunks, "chunk_start", of="chunk", on="layout", rules="SPY-CHK-5, SPY-PFX-9")(
    lambda right, *given: right(*given) + 1, "chunk starts late: a chunk leaves out its first token"
)
fault(chunks, "chunk_end", of="chunk", on="layout", rules="SPY-CHK-5, SPY-CHK-7")(
    lambda right, chunk, _padding, *lengths: right(chunk, 0, *lengths),
    "chunk ends late: a chunk's end forgets the left padding",
)
fault(
    chunks,
    "active_chunk",
    of="chunk",
    on="layout",
    rules="SPY-CHK-3, SPY-CHK-5, SPY-ADM-4, SPY-CHK-7",
)(
    lambda right, computed, _padding, size: right(computed, 0, size),
    "active chunk without padding: the active chunk is found from the computed tokens alone",
)


@fault(transitions, "chunk", on="exact", rules="SPY-CHK-1, SPY-CHK-3, SPY-ADM-4")
def two_chunks_at_once(right: Wrong, ctx: Context, state: State) -> Any:
    """A prefill step computes two chunks."""
    state, first, events = right(ctx, state)
    if first.is_last:
        return state, first, events
    state, second, more = right(ctx, state)
    return state, evolve(second, start=first.start), events + more


@fault(transitions, "chunk", on="exact", rules="BLK-8, SPY-CHK-7")
def progress_not_noted(right: Wrong, ctx: Context, state: State) -> Any:
    """A chunk that is not the last leaves the request where it was."""
    moved, planned, events = right(ctx, state)
    if planned.is_last or state.prefilling is None:
        return moved, planned, events
    row = evolve(moved.prefilling, computed=state.prefilling.computed)
    return evolve(moved, prefilling=row), planned, events


@fault(step, "_prefill_step", of="chunk", on="layout", rules="SPY-CHK-2")
def batch_runs_along(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """A prefill step schedules a token of every decoding request as well."""
    others = {row.id: 1 for row in run.state.decoding}
    right(run, *given)
    run.scheduled |= others


@fault(step, "_prefill_step", of="chunk", on="layout", rules="SPY-TKV-2")
def prefill_tkv_with_padding(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """The tkv of a prefill step counts the left padding."""
    right(run, *given)
    assert run.chunk is not None
    run.tkv += run.chunk.left_padding


# --- which blocks it reads and writes ------------------------------------------------------------


fault(transitions, "with_block_table", of="chunk", on="same prompt", rules="SPY-PFX-5, BLK-7")(
    depending(
        lambda ctx, *_: (
            lambda done: evolve(done, writes=done.block_table[-ctx.config.blocks_per_chunk :])
        )
    ),
    "writes not redirected: a chunk that is computed again writes its cached blocks again",
)
fault(transitions, "with_block_table", of="chunk", on="layout", rules="SPY-PAD-5")(
    altered(
        lambda done: evolve(
            done,
            block_table=tuple(0 if block in done.writes else block for block in done.block_table),
        )
    ),
    "new blocks not read: the blocks that a chunk writes are missing from the table that it reads",
)


@fault(transitions, "with_block_table", of="chunk", on="same prompt", rules="SPY-PFX-6")
def cached_blocks_not_read(right: Wrong, ctx: Context, chunk: Chunk, sequence: Row) -> Chunk:
    """A chunk that is computed again reads a block of its own where one is cached."""
    planned: Chunk = right(ctx, chunk, sequence)
    cached, own = sequence.blocks[: sequence.hit_blocks], planned.block_table[-1]
    table = (own if block in cached else block for block in planned.block_table)
    return evolve(planned, block_table=tuple(table))


# --- join ----------------------------------------------------------------------------------------

fault(step, "_outputs", of="join", on="layout", rules="SPY-CHK-4, LIF-4")(
    always({}), "no first token: a last chunk yields no token"
)


@fault(step, "_prefill_step", of="join", on="exact", rules="SPY-CHK-4, LIF-8, LIF-3")
def first_token_too_early(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """A chunk that is not the last yields a token too."""
    right(run, *given)
    slot = run.state.prefilling
    if slot is not None:
        row = evolve(slot, generated=slot.generated + 1)
        run.state, run.outputs = evolve(run.state, prefilling=row), {row.id: (0,)}


fault(transitions, "join", on="layout", rules="LIF-4, LIF-8")(
    result(decoding=first(generated=plus(1))),
    "joins with two tokens: a request joins the batch with two tokens",
)
fault(transitions, "join", on="layout", rules="LIF-1, LIF-4, BLK-2, LIF-3, LIF-11")(
    kept("prefilling"), "joins and stays: a request that joins the batch keeps the prefill slot"
)


@fault(step, "_prefill_step", of="join", on="layout", rules="SPY-DEC-7")
def joins_at_the_back(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """A request joins the batch behind all others."""
    right(run, *given)
    rows = sorted(run.state.decoding, key=lambda row: row.id in run.scheduled)
    run.state = evolve(run.state, decoding=tuple(rows))


@fault(chunks, "evolve", of="prefix_hit", on="same prompt", rules="SPY-PFX-5, BLK-7, SPY-PFX-11")
def hit_not_noted(right: Wrong, request: Any, **changes: Any) -> Any:
    """A request takes cached blocks and treats them like its own."""
    return right(request, **(changes | ({"hit_blocks": 0} if "hit_blocks" in changes else {})))
