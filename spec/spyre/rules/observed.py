"""What several rules look at in a step, said once."""

from itertools import takewhile

from spec.core.records import DECODE
from spec.spyre.padding import active_chunk, chunk_count, chunk_end, left_padding, reused_blocks
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import Sequence, State


def entering(step: Step, request_id: str) -> Sequence:
    """The request as the step found it."""
    before = step.before
    return next(
        one for queue in (before.admitted, before.waiting) for one in queue if one.id == request_id
    )


def last_chunk(step: Step) -> Chunk | None:
    """The step's chunk if it completes a prompt."""
    return step.chunk if step.chunk is not None and step.chunk.is_last else None


def computed_before(step: Step, chunk: Chunk) -> int:
    """Prompt tokens in the cache before the chunk, in tokens, a prefix hit included."""
    return max(entering(step, chunk.id).computed, chunk.cached_tokens)


def refused(step: Step) -> Sequence | None:
    """The request that the refusal kept from a prefill: the ongoing one, or the queue's head."""
    if step.refusal is None:
        return None
    return step.before.prefilling or next(iter(step.before.waiting), None)


def prefix_hits(ctx: Context, state: State, sequence: Sequence) -> tuple[int, ...]:
    """The cached blocks that a waiting request would take: its longest cached run."""
    if not ctx.config.prefix_caching or sequence is state.prefilling:
        return ()
    full = (sequence.prefill_len - 1) // ctx.config.block_size
    run = takewhile(lambda key: key in state.pool.cached, ctx.keys.of(sequence.id, full))
    return tuple(state.pool.cached[key][0] for key in run)


def computed_when_admitted(ctx: Context, state: State, sequence: Sequence) -> int:
    """Tokens that need no computing: those computed, or those of whole cached chunks."""
    config, length = ctx.config, sequence.prefill_len
    padding = left_padding(length, config.block_size, config.chunk_size)
    reused = reused_blocks(
        len(prefix_hits(ctx, state, sequence)),
        padding // config.block_size,
        config.blocks_per_chunk,
        chunk_count(length, config.chunk_size),
    )
    return max(sequence.computed, int(reused) * config.block_size)


def next_chunk_end(ctx: Context, sequence: Sequence, computed: int) -> int:
    """Prompt position after the chunk that follows `computed` tokens."""
    config, length = ctx.config, sequence.prefill_len
    padding = left_padding(length, config.block_size, config.chunk_size)
    index = active_chunk(computed, padding, config.chunk_size)
    return int(chunk_end(index, padding, config.chunk_size, length))


def is_decode(step: Step) -> bool:
    """True for a decode step."""
    return step.kind == DECODE
