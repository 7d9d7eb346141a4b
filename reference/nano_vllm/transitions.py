"""Transitions of a sequence: a short pure function each, guard first, then effect.

Every transition takes the context and a state and returns the next state with the events that
say what it did, each with the rule it stands for. Source: nano-vllm, the sections named at each
function; `abort` is the environment's, the text knows no client that goes away.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold.
"""

from collections.abc import Callable, Mapping

from attrs import evolve

from reference.core import run
from reference.core.guards import require, require_among, require_new
from reference.nano_vllm.block_manager import (
    allocated,
    block_keys,
    cached_blocks,
    can_allocate,
    can_append,
    deallocate,
    register,
    share,
)
from spec.core.blocks import BlockPool, block_count
from spec.core.records import Event
from spec.nano_vllm.config import Hashing
from spec.nano_vllm.formulas import fills_block, skips_prefill, starts_block
from spec.nano_vllm.records import Context, Sequence, State

Moved = run.Moved[State]
Ends = Callable[[Sequence], bool]  # does the sequence sample end-of-sequence as its last token?
Starts = Mapping[str, int]  # tokens computed before the step, by request


def arrive(ctx: Context, state: State, request_id: str) -> State:
    """A client hands in a request: it goes to the back of the waiting queue."""
    # guard
    require_new(state, request_id, "NANO-LIF-1")
    # effect
    newcomer = Sequence(request_id, prefill_len=ctx.requests[request_id].prompt_len)
    return evolve(state, waiting=(*state.waiting, newcomer))


def abort(_ctx: Context, state: State, request_id: str) -> State:
    """A client goes away: its sequence leaves either queue and gives everything back."""
    # guard
    leaver = require_among(state.present, request_id, "abort", "NANO-LIF-4")
    # effect
    return evolve(
        state,
        pool=deallocate(state.pool, leaver.blocks),
        waiting=tuple(row for row in state.waiting if row is not leaver),
        running=tuple(row for row in state.running if row is not leaver),
        aborted=state.aborted | {request_id},
    )


def is_decoded_first(ctx: Context, row: Sequence) -> bool:
    """True if the row, cached as a whole, is in no prefill step: its last token is decoded."""
    cached = row.hit_blocks * ctx.config.block_size
    return bool(skips_prefill(row.prefill_len, cached, ctx.config.full_hit))


# --- prefill --------------------------------------------------------------------------------------


def admit(ctx: Context, state: State) -> Moved:
    """The front of waiting gets its blocks and goes to the back of running ("The Prefill Path").

    One whose prefill was cut has its blocks already.
    """
    begun, events = begin(ctx, state)
    moved = evolve(begun, waiting=begun.waiting[1:], running=(*begun.running, begun.waiting[0]))
    return moved, events


def begin(ctx: Context, state: State) -> Moved:
    """The front of waiting gets the blocks of its whole prefill, unless it has them, and stays.

    As released, its full blocks are hashed here, before anything of them is computed.
    """
    # guard
    require(bool(state.waiting), "admit", "NANO-ADM-4")
    sequence = state.waiting[0]
    if sequence.blocks:
        return state, ()
    require(can_allocate(ctx, state.pool, sequence), "admit", "NANO-ADM-2")
    # effect
    pool, hits, fresh = _with_blocks(ctx, state.pool, sequence)
    begun = evolve(sequence, blocks=(*hits, *fresh), hit_blocks=len(hits))
    newest = 1 if is_decoded_first(ctx, begun) else 0
    begun = evolve(begun, computed=len(hits) * ctx.config.block_size - newest)
    events = [Event("admit", sequence.id, "NANO-ADM-4")]
    if hits:
        events.append(Event("prefix_hit", sequence.id, "NANO-PFX-5", (), hits))
    if fresh:
        events.append(Event("allocate", sequence.id, "NANO-ADM-2", hits, fresh))
    return evolve(state, pool=pool, waiting=(begun, *state.waiting[1:])), tuple(events)


def _with_blocks(
    ctx: Context, pool: BlockPool, sequence: Sequence
) -> tuple[BlockPool, tuple[int, ...], tuple[int, ...]]:
    """The pool without the sequence's blocks, those that were hits, and those that are fresh."""
    size = ctx.config.block_size
    hits = cached_blocks(ctx, pool, sequence)
    keys = block_keys(ctx, sequence, sequence.prefill_len // size)
    pool = share(pool, hits, keys[: len(hits)])
    pool, fresh = allocated(ctx, pool, block_count(sequence.prefill_len, size) - len(hits))
    if ctx.config.hashing is Hashing.ALLOCATED:
        new_keys = keys[len(hits) :]
        pool = register(pool, fresh[: len(new_keys)], new_keys)
    return pool, hits, fresh


def prefill(ctx: Context, state: State, count: int) -> Moved:
    """The last `count` of running compute all tokens that are not cached and get one more.

    Those of them that are decoded first stay as they are.
    """
    # guard
    admitted = state.running[len(state.running) - count :]
    rows = [row for row in admitted if not is_decoded_first(ctx, row)]
    require(
        bool(rows) and all(row.computed <= row.prefill_len for row in rows), "prefill", "NANO-ADM-6"
    )
    # effect
    done = tuple(
        evolve(row, computed=row.prefill_len, generated=row.generated + 1) if row in rows else row
        for row in admitted
    )
    events = tuple(
        Event("prefill", row.id, "NANO-LIF-9", row.computed, row.prefill_len) for row in rows
    )
    return evolve(state, running=(*state.running[: -len(admitted)], *done)), events


def chunk(_ctx: Context, state: State, tokens: int) -> Moved:
    """The front of waiting computes this many tokens of its prefill, and gets none.

    Source: the later commit.
    """
    # guard
    row, *others = state.waiting
    end = row.computed + tokens
    require(bool(row.blocks) and row.computed < end < row.prefill_len, "chunk", "NANO-CHK-3")
    # effect
    event = Event("prefill", row.id, "NANO-LIF-9", row.computed, end)
    return evolve(state, waiting=(evolve(row, computed=end), *others)), (event,)


# --- decode ---------------------------------------------------------------------------------------


def append(ctx: Context, state: State, row: Sequence) -> Moved:
    """Make sure of a slot for the row's newest token; as released, hash the block that it fills.

    This is the text's `may_append` ("BlockManager: Three Core Operations").
    """
    # guard
    require(can_append(ctx, state.pool, row), "append", "NANO-DEC-3")
    # effect
    size, length = ctx.config.block_size, row.computed + 1
    pool, grown = state.pool, row
    events: tuple[Event, ...] = ()
    if fills_block(length, size) and ctx.config.hashing is Hashing.ALLOCATED:
        pool = _hashed(ctx, pool, row, row.computed, length)
    if starts_block(length, size, ctx.config.new_block):
        pool, fresh = allocated(ctx, pool, 1)
        grown = evolve(row, blocks=(*row.blocks, *fresh))
        events = (Event("allocate", row.id, "NANO-DEC-3", row.blocks, fresh),)
    rows = tuple(grown if other is row else other for other in state.running)
    return evolve(state, pool=pool, running=rows), events


def preempt(ctx: Context, state: State, victim: Sequence) -> Moved:
    """Release a sequence's blocks: it waits in front and recomputes its tokens ("Preemption")."""
    # guard
    require(victim in state.running, "preempt", "NANO-PRE-2")
    # effect
    again = Sequence(
        victim.id,
        prefill_len=ctx.requests[victim.id].prompt_len + victim.generated,
        generated=victim.generated,
    )
    moved = evolve(
        state,
        pool=deallocate(state.pool, victim.blocks),
        waiting=(again, *state.waiting),
        running=tuple(row for row in state.running if row is not victim),
    )
    return moved, (Event("preempt", victim.id, "NANO-PRE-2"),)


def decode(ctx: Context, state: State, count: int) -> Moved:
    """The first `count` of running compute their newest token and get one more."""
    # guard
    rows = state.running[:count]
    has_slot = all(row.computed < len(row.blocks) * ctx.config.block_size for row in rows)
    require(has_slot, "decode", "NANO-SLT-1")
    # effect
    done = tuple(
        evolve(row, computed=row.computed + 1, generated=row.generated + 1) for row in rows
    )
    moved = evolve(state, running=(*done, *state.running[count:]))
    return moved, (Event("decode", "", "NANO-LIF-9"),)


# --- the step's end -------------------------------------------------------------------------------


def hash_computed(ctx: Context, state: State, batch: tuple[Sequence, ...], starts: Starts) -> Moved:
    """The blocks that the rows of the batch have filled in this step get their hash.

    `starts`: by request, the tokens that were computed before. Source: the later commit.
    """
    # guard
    require(ctx.config.hashing is Hashing.COMPUTED, "hash_computed", "NANO-PFX-1")
    # effect
    pool = state.pool
    for row in batch:
        pool = _hashed(ctx, pool, row, starts[row.id], row.computed)
    return evolve(state, pool=pool), ()


def _hashed(ctx: Context, pool: BlockPool, row: Sequence, start: int, end: int) -> BlockPool:
    """The pool with the hashes of the blocks that the row's tokens from `start` to `end` fill.

    A block that was a hit as a whole is hashed already.
    """
    first, full = max(start // ctx.config.block_size, row.hit_blocks), end // ctx.config.block_size
    return register(pool, row.blocks[first:full], block_keys(ctx, row, full)[first:])


def finish(ctx: Context, state: State, batch: tuple[Sequence, ...], ends: Ends) -> Moved:
    """Rows of the batch that have all their tokens, or sampled the end of sequence, leave at once.

    Source: "One Decode Step: What Happens", postprocess.
    """
    # guard
    require(all(row in state.running for row in batch), "finish", "NANO-LIF-3")
    # effect
    leaving = [
        row for row in batch if row.generated >= ctx.requests[row.id].max_tokens or ends(row)
    ]
    pool = state.pool
    for row in leaving:
        pool = deallocate(pool, row.blocks)
    left = evolve(
        state,
        pool=pool,
        running=tuple(row for row in state.running if row not in leaving),
        finished=state.finished | {row.id for row in leaving},
    )
    return left, tuple(Event("finish", row.id, "NANO-LIF-3") for row in leaving)
