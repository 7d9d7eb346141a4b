"""Transitions of a request: a short pure function each, guard first, then effect.

Every transition takes the context and a state and returns the next state with the events that
say what it did, each with the rule it stands for. Source: spyre, the sections named at each
function; `reserve`, `pause` and `resume` are those of sendnn-inference 2.6.3; `preempt` is
vLLM V1's recomputation, used where blocks are not reserved.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from attrs import evolve

from reference.core import run
from reference.core.block_pool import allocate, register, release, touch
from reference.core.guards import require, require_among, require_new
from reference.spyre.admission import blocks_of_next_chunk, worst_case_blocks
from reference.spyre.chunks import (
    cached_blocks,
    counted_after,
    next_chunk,
    with_block_table,
    with_prefix_hit,
)
from spec.core.blocks import BlockPool, block_count
from spec.core.records import Event
from spec.spyre.padding import batch_width_blocks, row_left_padding
from spec.spyre.records import Chunk, Context
from spec.spyre.reservation import promised_blocks, still_promised
from spec.spyre.state import Sequence, State, cohort_after_admission

Moved = run.Moved[State]
Ends = Callable[[Sequence], bool]  # does the request sample end-of-sequence as its last token?


def arrive(ctx: Context, state: State, request_id: str) -> State:
    """A client hands in a request: it goes to the end of the waiting queue.

    In 2.6.3 it goes before those that came with a grammar since the last step.
    """
    # guard
    require_new(state, request_id, "LIF-1")
    # effect
    request = ctx.requests[request_id]
    newcomer = Sequence(request_id, prefill_len=request.prompt_len)
    if request.has_images:
        state = evolve(state, unencoded=state.unencoded | {request_id})
    if request.grammar:
        return evolve(
            state,
            waiting=(*state.waiting, newcomer),
            compiling=state.compiling | {request_id},
            behind=state.behind + ctx.config.account.holds_for_grammars,
        )
    place = len(state.waiting) - state.behind
    return evolve(state, waiting=(*state.waiting[:place], newcomer, *state.waiting[place:]))


def compiled(_ctx: Context, state: State, request_id: str) -> State:
    """The grammar of a request is ready."""
    # guard
    require(request_id in state.compiling, "compiled", "SPY-STR-1")
    # effect
    return evolve(state, compiling=state.compiling - {request_id})


def encoded(_ctx: Context, state: State, request_id: str) -> State:
    """The encoder is done with the images of a request."""
    # guard
    require(request_id in state.encoding, "encoded", "SPY-ENC-2")
    # effect
    return evolve(state, encoding=state.encoding - {request_id})


def unencodable(ctx: Context, state: State, request_id: str) -> State:
    """The images of a request cannot be encoded: it leaves; in 2.6.3 its client is not told."""
    # guard
    require(request_id in state.encoding, "unencodable", "SPY-ENC-2")
    # effect
    untold = frozenset() if ctx.config.account.tells_failures else frozenset({request_id})
    return evolve(abort(ctx, state, request_id), untold=state.untold | untold)


def abort(ctx: Context, state: State, request_id: str, *, running: bool = False) -> State:
    """A client goes away: the request leaves, in any phase, and releases what it holds.

    In 2.6.3 what is set aside for it stays so, unless the client goes while the model is `running`.
    """
    # guard
    leaver = require_among(state.present, request_id, "abort", "LIF-5")
    # effect
    is_kept = ctx.config.account.keeps_promises and not running
    return evolve(
        _removed(state, request_id),
        pool=release(state.pool, leaver.blocks),
        aborted=state.aborted | {request_id},
        compiling=state.compiling - {request_id},
        unencoded=state.unencoded - {request_id},
        encoding=state.encoding - {request_id},
        behind=state.behind - (leaver in state.waiting[len(state.waiting) - state.behind :]),
        cohort=state.cohort - (leaver in state.waiting[: state.cohort]),
        orphaned=state.orphaned + (leaver.reserved if is_kept else 0),
    )


def _removed(state: State, request_id: str) -> State:
    """The state without the request in any queue."""

    def others(queue: Iterable[Sequence]) -> tuple[Sequence, ...]:
        return tuple(row for row in queue if row.id != request_id)

    prefilling = state.prefilling
    return evolve(
        state,
        waiting=others(state.waiting),
        prefilling=None if prefilling and prefilling.id == request_id else prefilling,
        decoding=others(state.decoding),
        paused=others(state.paused),
    )


# --- prefill --------------------------------------------------------------------------------


def encode(ctx: Context, state: State) -> Moved:
    """The encoder is given the images that it lacks, in queue order, of as many as there are slots.

    Source: sendnn-inference 2.6.3, asynchronous encoding of images.
    """
    # guard
    require(state.unencoded <= {row.id for row in state.waiting}, "encode", "SPY-ENC-3")
    # effect
    lacking = [row.id for row in state.waiting if row.id in state.unencoded]
    given = lacking[: ctx.config.max_num_seqs]
    moved = evolve(
        state, unencoded=state.unencoded.difference(given), encoding=state.encoding.union(given)
    )
    return moved, tuple(Event("encode", request_id, "SPY-ENC-2") for request_id in given)


def hold_up(_ctx: Context, state: State, sequence: Sequence) -> Moved:
    """A request whose grammar is not ready would be next: it goes to the front of the queue.

    Source: sendnn-inference 2.6.3, prefill candidates.
    """
    # guard
    require(sequence.id in state.compiling, "hold_up", "SPY-STR-1")
    # effect
    others = tuple(row for row in state.waiting if row is not sequence)
    return evolve(state, waiting=(sequence, *others)), ()


def admit(ctx: Context, state: State, sequence: Sequence) -> Moved:
    """A waiting request takes the prefill slot (spyre, "First-chunk constraints")."""
    # guard
    require(state.prefilling is None, "admit", "SPY-PRI-1")
    require(sequence in state.waiting, "admit", "LIF-1")
    require(sequence.id not in state.compiling, "admit", "SPY-STR-1")
    require(sequence.id not in state.without_images, "admit", "SPY-ENC-1")
    # effect
    waiting = tuple(row for row in state.waiting if row is not sequence)
    cohort = cohort_after_admission(ctx.config, state.cohort, len(state.waiting))
    moved = evolve(state, waiting=waiting, prefilling=sequence, cohort=cohort)
    return moved, (Event("admit", sequence.id, "SPY-ADM-1"),)


def prefix_hit(ctx: Context, state: State) -> Moved:
    """The admitted request takes the cached blocks of its prompt (spyre, "Prefix caching")."""
    # guard
    sequence = state.prefilling
    require(sequence is not None and not sequence.blocks, "prefix_hit", "SPY-PFX-3")
    assert sequence is not None
    # effect
    hits = cached_blocks(ctx, state, sequence)
    if not hits:
        return state, ()
    moved = evolve(
        state,
        pool=touch(state.pool, hits),
        prefilling=with_prefix_hit(ctx, sequence, hits),
    )
    return moved, (Event("prefix_hit", sequence.id, "SPY-PFX-3", (), hits),)


def reserve(ctx: Context, state: State) -> Moved:
    """Reserve the blocks that the admitted request may need beyond the cached blocks that it holds.

    Source: sendnn-inference 2.6.3, block reservation.
    """
    # guard
    sequence = state.prefilling
    require(sequence is not None and sequence.reserved == 0, "reserve", "SPY-RES-2")
    assert sequence is not None
    needed = promised_blocks(worst_case_blocks(ctx, sequence), held=len(sequence.blocks))
    promised = sum(row.reserved for row in state.admitted) + state.orphaned
    require(needed <= len(state.pool.free) - promised, "reserve", "SPY-RES-1")
    # effect
    return (
        evolve(state, prefilling=evolve(sequence, reserved=needed)),
        (Event("reserve", sequence.id, "SPY-RES-2", 0, needed),),
    )


def chunk(ctx: Context, state: State) -> tuple[State, Chunk, tuple[Event, ...]]:
    """The prefilling request computes its next chunk (spyre, "Chunked Prefill")."""
    # guard
    sequence = state.prefilling
    require(sequence is not None, "chunk", "SPY-PRI-1")
    assert sequence is not None
    # effect
    planned = next_chunk(ctx, sequence)
    pool, grown, events = _grow(
        state.pool, sequence, blocks_of_next_chunk(ctx, state, sequence), "SPY-CHK-1"
    )
    planned = with_block_table(ctx, planned, grown)
    computed = evolve(grown, computed=counted_after(ctx, sequence, planned))
    pool = _cache_full_blocks(ctx, pool, computed)
    chunk_event = Event("chunk", sequence.id, "SPY-CHK-3", sequence.computed, planned.end)
    return evolve(state, pool=pool, prefilling=computed), planned, (*events, chunk_event)


def join(_ctx: Context, state: State) -> Moved:
    """After its last chunk a request has its first token and joins the decode batch, in front.

    Source: spyre, "Chunked Prefill" and "Last-chunk constraints".
    """
    # guard
    sequence = state.prefilling
    require(sequence is not None and sequence.computed == sequence.prefill_len, "join", "SPY-CHK-4")
    assert sequence is not None
    # effect
    joined = evolve(sequence, generated=sequence.generated + 1)
    moved = evolve(state, prefilling=None, decoding=(joined, *state.decoding))
    return moved, (Event("join", sequence.id, "SPY-CHK-4"),)


def _grow(
    pool: BlockPool, sequence: Sequence, count: int, rule: str
) -> tuple[BlockPool, Sequence, tuple[Event, ...]]:
    """Append `count` new blocks to the request's table, out of its reservation."""
    if count == 0:
        return pool, sequence, ()
    pool, blocks = allocate(pool, count)
    grown = evolve(
        sequence,
        blocks=(*sequence.blocks, *blocks),
        reserved=max(still_promised(sequence.reserved, count), 0),
    )
    return pool, grown, (Event("allocate", sequence.id, rule, sequence.blocks, blocks),)


def _cache_full_blocks(ctx: Context, pool: BlockPool, sequence: Sequence) -> BlockPool:
    """Let lookups find the request's full blocks that are not cached yet."""
    if not ctx.config.prefix_caching:
        return pool
    full = sequence.computed // ctx.config.block_size
    keys = ctx.keys.of(sequence.id, full)
    fresh = [index for index in range(full) if sequence.blocks[index] not in pool.keys]
    return register(
        pool, [sequence.blocks[index] for index in fresh], [keys[index] for index in fresh]
    )


# --- decode ---------------------------------------------------------------------------------


def pad(ctx: Context, state: State) -> Moved:
    """Give every row the least left padding that makes the next step's table rectangular.

    A row whose tkv then moves by anything but +1 jumps. Source: spyre, "Left-padding with full
    blocks" and "tkv jumping".
    """
    # guard
    require(bool(state.decoding), "pad", "SPY-DEC-2")
    # effect
    size = ctx.config.block_size
    width = batch_width_blocks([row.computed + 1 for row in state.decoding], size)
    paddings = [row_left_padding(row.computed + 1, width, size) for row in state.decoding]
    if paddings == [row.left_padding for row in state.decoding]:
        return state, ()
    padded = tuple(
        evolve(row, left_padding=padding)
        for row, padding in zip(state.decoding, paddings, strict=True)
    )
    pairs = tuple(zip(state.decoding, padded, strict=True))
    jumps = tuple(
        Event("jump_tkv", row.id, _jump_rule(pairs, row, moved, size), row.tkv, moved.tkv + 1)
        for row, moved in pairs
        if row.left_padding != moved.left_padding
    )
    return evolve(state, decoding=padded), jumps


def _jump_rule(
    pairs: Seq[tuple[Sequence, Sequence]], row: Sequence, moved: Sequence, block_size: int
) -> str:
    """The id of the rule by which the row's tkv jumps.

    Either the row itself begins a block, or another row begins one, leaves or joins. `pairs`: all
    rows before and after the step. Only an unpadded row that begins a block pushes the others.
    """
    if moved.left_padding < row.left_padding:
        return "SPY-TKV-3" if row.computed % block_size == 0 else "SPY-TKV-5"
    grew = any(
        old.computed % block_size == 0
        and old.computed > old.prefill_len
        and old.left_padding == new.left_padding == 0
        for old, new in pairs
    )
    return "SPY-TKV-4" if grew else "SPY-TKV-7"


def extend(ctx: Context, state: State) -> Moved:
    """Hand a new block to each row whose next token starts one, in batch order."""
    # guard
    require(all(row.blocks for row in state.decoding), "extend", "BLK-8")
    # effect
    pool = state.pool
    rows: list[Sequence] = []
    events: list[Event] = []
    for row in state.decoding:
        missing = block_count(row.computed + 1, ctx.config.block_size) - len(row.blocks)
        pool, grown, grew = _grow(pool, row, missing, "SPY-DEC-5")
        rows.append(grown)
        events.extend(grew)
    return evolve(state, pool=pool, decoding=tuple(rows)) if events else state, tuple(events)


def decode(ctx: Context, state: State) -> Moved:
    """Every row computes one token and samples the next (spyre, "Decode padding")."""
    # guard
    size = ctx.config.block_size
    fits = all(row.computed < len(row.blocks) * size for row in state.decoding)
    require(fits, "decode", "BLK-8")
    # effect
    rows = tuple(
        evolve(row, computed=row.computed + 1, generated=row.generated + 1)
        for row in state.decoding
    )
    pool = state.pool
    for row in rows:
        if row.computed % size == 0:
            pool = _cache_full_blocks(ctx, pool, row)
    return evolve(state, pool=pool, decoding=rows), (Event("decode", "", "SPY-DEC-1"),)


def finish(ctx: Context, state: State, ends: Ends) -> Moved:
    """Rows that have all their tokens, or sampled the end of sequence, leave at once."""
    # guard
    require(bool(state.decoding), "finish", "LIF-3")
    # effect
    leaving = [
        row
        for row in state.decoding
        if row.generated >= ctx.requests[row.id].max_tokens or ends(row)
    ]
    if not leaving:
        return state, ()
    pool = state.pool
    for row in leaving:
        pool = release(pool, row.blocks)
    left = evolve(
        state,
        pool=pool,
        decoding=tuple(row for row in state.decoding if row not in leaving),
        finished=state.finished | {row.id for row in leaving},
    )
    return left, tuple(Event("finish", row.id, "LIF-3") for row in leaving)


# --- blocks run out, or the limit is reached ---------------------------------------------------


def preempt(ctx: Context, state: State, victim: Sequence) -> Moved:
    """Release a request's blocks: it waits first in the queue and recomputes all its tokens.

    Its prefill then covers what it had generated too. The text is silent about a pool that
    runs dry; this is vLLM V1's recomputation. It joins the cohort, if there is one.
    """
    # guard
    require(victim in state.admitted and not ctx.config.reservation, "preempt", "SPY-PRE-1")
    # effect
    again = Sequence(
        victim.id,
        prefill_len=ctx.requests[victim.id].prompt_len + victim.generated,
        generated=victim.generated,
    )
    moved = evolve(
        _removed(state, victim.id),
        pool=release(state.pool, victim.blocks),
        waiting=(again, *state.waiting),
        cohort=state.cohort + (state.cohort > 0),
    )
    return moved, (Event("preempt", victim.id, "SPY-PRE-1"),)


def pause(_ctx: Context, state: State, row: Sequence) -> Moved:
    """A row sits out until the volume limit lets it decode again; it keeps its blocks."""
    # guard
    require(row in state.decoding, "pause", "SPY-PAU-1")
    # effect
    moved = evolve(
        state,
        decoding=tuple(other for other in state.decoding if other is not row),
        paused=(*state.paused, row),
    )
    return moved, (Event("pause", row.id, "SPY-PAU-2"),)


def resume(_ctx: Context, state: State, row: Sequence) -> Moved:
    """A paused row decodes again, at the end of the batch."""
    # guard
    require(row in state.paused, "resume", "SPY-PAU-3")
    # effect
    moved = evolve(
        state,
        decoding=(*state.decoding, evolve(row, waited_steps=0)),
        paused=tuple(other for other in state.paused if other is not row),
    )
    return moved, (Event("resume", row.id, "SPY-PAU-3"),)


def sit_out(_ctx: Context, state: State, order: Seq[str]) -> State:
    """The paused rows wait one step longer; `order` is the order in which they were judged."""
    # guard
    waiting = {row.id: row for row in state.paused}
    require(sorted(waiting) == sorted(order), "sit_out", "SPY-PAU-1")
    # effect
    if not waiting:
        return state
    paused = tuple(
        evolve(waiting[row_id], waited_steps=waiting[row_id].waited_steps + 1) for row_id in order
    )
    return evolve(state, paused=paused)
