"""What several rules look at in a step, said once."""

from collections.abc import Callable
from functools import cache
from itertools import chain, takewhile

from attrs import frozen

from spec.core.changes import change_between, of_each
from spec.core.judging import once
from spec.core.records import DECODE
from spec.core.sharing import Order
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Queue, Reading

BY_WIDTH = (Queue.SHORTEST, Queue.ALIGNED)  # the request whose row ends narrowest goes first


def entering(step: Step, request_id: str) -> Sequence:
    """The request as the step found it."""
    before = step.before
    admitted = change_between(before, step.after).queue[0]  # most often it is one of these
    rows = chain(before.admitted, admitted, before.waiting)
    found: Sequence = next(one for one in rows if one.id == request_id)
    return found


def last_chunk(step: Step) -> Chunk | None:
    """The step's chunk if it completes a prompt."""
    return step.chunk if step.chunk is not None and step.chunk.is_last else None


def computed_before(step: Step, chunk: Chunk) -> int:
    """Prompt tokens in the cache before the chunk, in tokens, a prefix hit included."""
    return max(entering(step, chunk.id).computed, chunk.cached_tokens)


def refused(ctx: Context, step: Step) -> Sequence | None:
    """The request that the refusal kept from a prefill: the ongoing one, or the first in line."""
    return None if step.refusal is None else step.before.prefilling or in_line(ctx, step.before)


def in_line(ctx: Context, state: State) -> Sequence | None:
    """The waiting request that is looked at first: the queue's head, or the first of the narrowest.

    With `queue = aligned` it is the narrowest of those that are left of the cohort; and where none
    is left, of as many at the head as may go before one of them, and that one.
    """
    queue, first = ctx.config.queue, next(iter(state.waiting), None)
    if first is None or queue not in BY_WIDTH:
        return first
    most = ctx.config.max_overtakes + 1 if queue is Queue.ALIGNED else len(state.waiting)
    return _narrowest(ctx, state.waiting)(state.cohort or most)


@once  # the queue stays the same object while nothing comes or goes
def _narrowest(ctx: Context, waiting: Order[Sequence]) -> Callable[[int], Sequence]:
    """Of so many at the head of the queue the one whose row ends narrowest."""
    widths = _final_widths(ctx, waiting)

    @cache
    def of_first(count: int) -> Sequence:
        line = widths[:count]
        return waiting[line.index(min(line))]

    return of_first


def final_width(ctx: Context, one: Sequence) -> int:
    """Tokens of the prompt and all that the request may ever generate, as its row's width counts.

    Rows that are not wide are alike.
    """
    return max(whole_tokens(ctx, one), _widest_alike(ctx))


def is_wide(ctx: Context, one: Sequence) -> bool:
    """True if the request's row ends wider than a slot's share of the limit and a chunk."""
    return whole_tokens(ctx, one) > _widest_alike(ctx)


def _widest_alike(ctx: Context) -> int:
    config = ctx.config
    return config.max_batch_tkv_limit // config.max_num_seqs + config.chunk_size


_final_widths = of_each(final_width)


def whole_tokens(ctx: Context, one: Sequence) -> int:
    """Tokens of the prompt and all that the request may ever generate."""
    return ctx.requests[one.id].most_tokens


def prefix_hits(ctx: Context, state: State, sequence: Sequence) -> tuple[int, ...]:
    """The cached blocks that a waiting request would take: its longest cached run."""
    if not ctx.config.prefix_caching or sequence is state.prefilling:
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


def worst_case_blocks(ctx: Context, one: Sequence) -> int:
    """Blocks of the prompt and all that the request may ever generate."""
    return -(-ctx.requests[one.id].most_tokens // ctx.config.block_size)


@once
def worst_cases(ctx: Context, state: State) -> list[tuple[Sequence, int]]:
    """The admitted requests, each with the blocks of all that it may ever generate."""
    return [(one, worst_case_blocks(ctx, one)) for one in state.admitted]


def promised_blocks(ctx: Context, state: State) -> int:
    """Blocks that the admitted requests may need in their worst case and do not hold yet."""
    return sum([needed - len(one.blocks) for one, needed in worst_cases(ctx, state)])


def lacks_worst_case(ctx: Context, state: State, one: Sequence) -> bool:
    """True if the worst case of a waiting request needs more free blocks than are unpromised.

    Cached blocks that others hold need none.
    """
    shared = sum(block in state.pool.references for block in prefix_hits(ctx, state, one))
    needed = promised_blocks(ctx, state) + worst_case_blocks(ctx, one) - shared
    return needed > len(state.pool.free)


def lacks_next_chunk(ctx: Context, state: State, one: Sequence) -> bool:
    """True if the next chunk of a request needs more blocks than are free.

    In 2.6.3 cached tokens inside the chunk count as computed, and all that it has room for besides.
    """
    size, hits = ctx.config.block_size, prefix_hits(ctx, state, one)
    held, computed = one.blocks or hits, computed_when_admitted(ctx, state, one)
    if ctx.config.reading is Reading.RELEASED:
        computed = max(computed, len(hits) * size)
    needed = -(-counted_after_chunk(ctx, one, computed) // size) - len(held)
    revived = sum(block not in state.pool.references for block in held)
    return needed + revived > len(state.pool.free)


def continued(step: Step) -> list[tuple[Sequence, Sequence]]:
    """The requests that the step left admitted, each as the step found it and as it left it."""
    found = {row.id: row for row in change_between(step.before, step.after).left}
    return [(found[row.id], row) for row in step.after.admitted if row.id in found]


def rows_in_slots(state: State) -> int:
    """Requests that take a slot of the running batch: those decoding, and the one prefilling."""
    return len(state.decoding) + (state.prefilling is not None)


def pending(state: State) -> int:
    """Requests that have arrived and have not left, counted in every place."""
    return len(state.waiting) + rows_in_slots(state) + len(state.paused)


@frozen
class Columns:
    """The rows of a decode step as numbers, one of each kind a row, in the order of the batch.

    `tkvs` and `paddings` in tokens; `blocks`: own ones of the row's table.
    """

    tkvs: list[int]
    paddings: list[int]
    blocks: list[int]


@once
def columns(_ctx: Context, step: Step) -> Columns:
    """The rows of the step's batch, for rules that look at one number of each."""
    rows = step.batch
    paddings = [row.left_padding for row in rows]
    tkvs = [row.tkv for row in rows]
    return Columns(tkvs, paddings, [len(row.blocks) for row in rows])


@once
def admitted_before(_ctx: Context, step: Step) -> dict[str, Sequence]:
    """The requests that the step found admitted, by name."""
    return {one.id: one for one in step.before.admitted}


def is_decode(step: Step) -> bool:
    """True for a decode step."""
    return step.kind == DECODE
