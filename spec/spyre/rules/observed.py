"""Questions about a step or a state that several rules ask."""

from collections import abc
from collections.abc import Iterable
from itertools import chain, takewhile
from typing import TypeAlias

from spec.core.records import DECODE, PREFILL
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Queue, Reading

Sequences: TypeAlias = abc.Sequence[Sequence]
BY_WIDTH = (Queue.SHORTEST, Queue.ALIGNED)  # the request whose row ends narrowest goes first


def entering(step: Step, request_id: str) -> Sequence:
    """The request as the step found it."""
    rows = chain(step.before.admitted, step.before.waiting)
    return next(row for row in rows if row.id == request_id)


def last_chunk(step: Step) -> Chunk | None:
    """The step's chunk if it completes a prompt."""
    return step.chunk if step.chunk is not None and step.chunk.is_last else None


def cached_prompt_tokens(step: Step, chunk: Chunk) -> int:
    """Prompt tokens in the cache before the chunk, in tokens, a prefix hit included."""
    return max(entering(step, chunk.id).computed, chunk.cached_tokens)


def refused(ctx: Context, step: Step) -> Sequence | None:
    """The request that the refusal kept from a prefill: the ongoing one, or the first in line."""
    return None if step.refusal is None else step.before.prefilling or in_line(ctx, step.before)


def in_line(ctx: Context, state: State) -> Sequence | None:
    """The waiting request that is looked at first: the queue's head, or the first of the narrowest.

    Those that may not be chosen are passed over. With `queue = aligned` it is the narrowest of what
    is left of the cohort; and where none is left, of as many at the head as may go before one of
    them, and that one.
    """
    queue, waiting = ctx.config.queue, state.waiting
    if queue in BY_WIDTH:
        most = ctx.config.max_overtakes + 1 if queue is Queue.ALIGNED else len(waiting)
        line = may_be_chosen(ctx, state, waiting[: state.cohort or most])
        return min(line, key=lambda row: final_width(ctx, row), default=None)
    return next(iter(may_be_chosen(ctx, state, waiting)), None)


def may_be_chosen(ctx: Context, state: State, rows: Sequences) -> Sequences:
    """Those of these waiting requests whose grammars are ready and whose images are encoded.

    In 2.6.3 also those whose grammars are not ready, and those that lack blocks.
    """
    return [row for row in rows if _is_looked_at(ctx, state, row)] if unready(state) else rows


def _is_looked_at(ctx: Context, state: State, row: Sequence) -> bool:
    is_released = ctx.config.reading is Reading.RELEASED
    if row.id in state.without_images:
        return is_released and ctx.config.reservation and lacks_worst_case(ctx, state, row)
    return is_released or row.id not in state.compiling


def unready(state: State) -> frozenset[str]:
    """The requests whose grammars are not ready or whose images are not encoded."""
    return state.compiling | state.without_images


def final_width(ctx: Context, row: Sequence) -> int:
    """Tokens of the prompt and all that the request may ever generate, as its row's width counts.

    Rows that are not wide are alike.
    """
    return max(most_tokens(ctx, row), _widest_alike(ctx))


def is_wide(ctx: Context, row: Sequence) -> bool:
    """True if the request's row ends wider than a slot's share of the limit and a chunk."""
    return most_tokens(ctx, row) > _widest_alike(ctx)


def _widest_alike(ctx: Context) -> int:
    config = ctx.config
    return config.max_batch_tkv_limit // config.max_num_seqs + config.chunk_size


def most_tokens(ctx: Context, row: Sequence) -> int:
    """Tokens of the prompt and all that the request may ever generate."""
    return ctx.requests[row.id].most_tokens


def prefix_hits(ctx: Context, state: State, sequence: Sequence) -> tuple[int, ...]:
    """The cached blocks that a waiting request would take: its longest cached run."""
    if not ctx.config.prefix_caching or sequence == state.prefilling:
        return ()
    full = (sequence.prefill_len - 1) // ctx.config.block_size
    run = takewhile(lambda key: key in state.pool.cached, ctx.keys.of(sequence.id, full))
    return tuple(state.pool.cached[key][0] for key in run)


def computed_when_admitted(ctx: Context, state: State, sequence: Sequence) -> int:
    """Tokens that need no computing: those computed, or those of whole cached chunks."""
    # From chunk to chunk of the padded prompt, as long as a further one comes and all is cached.
    size, chunk = ctx.config.block_size, ctx.config.chunk_size
    padding, length = _left_padding(ctx, sequence), sequence.prefill_len
    cached = padding + len(prefix_hits(ctx, state, sequence)) * size
    skipped = 0
    while skipped + chunk <= cached and skipped + chunk < padding + length:
        skipped += chunk
    return max(sequence.computed, skipped - padding)


def counted_after_chunk(ctx: Context, sequence: Sequence, computed: int) -> int:
    """Tokens that count as computed after the chunk that follows those, all that it has room for.

    That is its end, where no more count than stand before the chunk.
    """
    first = ctx.config.chunk_size - _left_padding(ctx, sequence)
    room = first if computed < first else ctx.config.chunk_size
    return min(computed + room, sequence.prefill_len)


def _left_padding(ctx: Context, sequence: Sequence) -> int:
    """Tokens of the blocks that are lacking before the prompt's to make up whole chunks."""
    blocks = -(-sequence.prefill_len // ctx.config.block_size)
    lacking = -blocks % (ctx.config.chunk_size // ctx.config.block_size)
    return lacking * ctx.config.block_size


def worst_case_blocks(ctx: Context, row: Sequence) -> int:
    """Blocks of the prompt and all that the request may ever generate."""
    return -(-most_tokens(ctx, row) // ctx.config.block_size)


def promised_blocks(ctx: Context, state: State) -> int:
    """Blocks that the admitted requests may need in their worst case and do not hold yet."""
    return sum(worst_case_blocks(ctx, row) - len(row.blocks) for row in state.admitted)


def lacks_worst_case(ctx: Context, state: State, row: Sequence) -> bool:
    """True if the worst case of a waiting request needs more free blocks than are unpromised.

    Cached blocks that others hold need none.
    """
    shared = sum(block in state.pool.references for block in prefix_hits(ctx, state, row))
    needed = promised_blocks(ctx, state) + worst_case_blocks(ctx, row) - shared
    return needed > len(state.pool.free)


def lacks_next_chunk(ctx: Context, state: State, row: Sequence) -> bool:
    """True if the next chunk of a request needs more blocks than are free.

    In 2.6.3 cached tokens inside the chunk count as computed, and all that it has room for besides.
    """
    size, hits = ctx.config.block_size, prefix_hits(ctx, state, row)
    held, computed = row.blocks or hits, computed_when_admitted(ctx, state, row)
    if ctx.config.reading is Reading.RELEASED:
        computed = max(computed, len(hits) * size)
    needed = -(-counted_after_chunk(ctx, row, computed) // size) - len(held)
    revived = sum(block not in state.pool.references for block in held)
    return needed + revived > len(state.pool.free)


Continued: TypeAlias = list[tuple[Sequence, Sequence]]


def continued(_ctx: Context, step: Step) -> Continued:
    """The requests that the step left admitted, each as the step found it and as it left it."""
    found = by_id(step.before.present)
    return [(found[row.id], row) for row in step.after.admitted if row.id in found]


def by_id(rows: Iterable[Sequence]) -> dict[str, Sequence]:
    """The requests by their ids."""
    return {row.id: row for row in rows}


def rows_in_slots(state: State) -> int:
    """Requests that take a slot of the running batch: those decoding, and the one prefilling."""
    return len(state.decoding) + (state.prefilling is not None)


def pending(state: State) -> int:
    """Requests that have arrived and have not left, counted in every place.

    Without those that wait for their grammars or images.
    """
    waiting = sum(row.id not in unready(state) for row in state.waiting)
    return waiting + rows_in_slots(state) + len(state.paused)


def is_decode(step: Step) -> bool:
    """True for a decode step."""
    return step.kind == DECODE


def judges_rows(step: Step) -> bool:
    """True if the step asks which rows decode: also one that is idle since none fits the limit."""
    return step.kind != PREFILL and bool(step.before.decoding or step.before.paused)
