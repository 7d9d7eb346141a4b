"""Rules of the block manager: nothing is lost, and the last holder frees, not earlier.

Source: nano-vllm, chapter 5, and "Reference Counting: Safe Shared Ownership".
"""

from collections.abc import Iterator

from spec.core import judging
from spec.core.judging import FreeList
from spec.nano_vllm.records import Context, State, Step
from spec.nano_vllm.rules.counting import needed_blocks, pool_blocks
from spec.nano_vllm.rules.registry import always, between, of_step, release, text, witness


@always("NANO-BLK-1", text("BlockManager Architecture"))
@witness(lambda _, step: step.after.pool.references)
def free_or_used(ctx: Context, state: State) -> Iterator[str]:
    """Every block is either in the free list, once, or used."""
    # Free and used blocks together are those of the pool, numbered from 0.
    yield from judging.free_or_held(state.pool)
    numbers = range(pool_blocks(ctx.config))
    blocks = (*state.pool.free, *state.pool.references)
    if beyond := [block for block in blocks if block not in numbers]:
        yield f"blocks {beyond} are none of {len(numbers)}, numbered from 0"


@always("NANO-BLK-2", text("Reference Counting: Safe Shared Ownership"))
@witness(
    lambda _, step: any(
        count == 1 and step.before.pool.references.get(block) == 2
        for block, count in step.after.pool.references.items()
    )
)
def counts_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """A block's count is the number of sequences that hold it: the last one frees it."""
    # With NANO-BLK-1: a block that no sequence holds is free.
    yield from judging.references_are_holders(state.pool, state.present)


@always("NANO-BLK-3", text("Request journey, FINISHED"))
@witness(lambda _, step: step.after.is_idle and step.finished)
def all_given_back(ctx: Context, state: State) -> Iterator[str]:
    """When no sequence is left, every block is free."""
    # Finished sequences give everything back at once; all are free that are configured.
    free, configured = len(state.pool.free), pool_blocks(ctx.config)
    if not (state.waiting or state.running) and free != configured:
        yield f"{free} of {configured} blocks are free"


@always("NANO-BLK-4", text("What Blocks Look Like in GPU Memory"))
@witness(lambda _, step: any(len(row.blocks) > 1 for row in step.after.running))
def blocks_match_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A running sequence holds exactly the blocks of its computed tokens, each once."""
    # Nothing is handed out before it is needed, but for the whole prefill of one that is cut.
    pairs = [(row, row.computed) for row in state.running]
    pairs += [(row, row.prefill_len) for row in state.waiting if row.blocks]
    for row, tokens in pairs:
        expected = needed_blocks(tokens, ctx.config.block_size)
        if not len(row.blocks) == len(set(row.blocks)) == expected:
            yield f"request {row.id}: {tokens} tokens, blocks {list(row.blocks)}"


@of_step("NANO-BLK-5", release("free_block_ids"))
@witness(
    lambda _, step: (
        step.happened("allocate") and list(step.before.pool.free) != sorted(step.before.pool.free)
    )
)
def first_in_first_out(_ctx: Context, step: Step) -> Iterator[str]:
    """Blocks are handed out first in, first out; a table is given back with its last block
    first.
    """
    # The step's events, applied to the free list before it, give the free list after it.
    books = FreeList.of(step.before.pool, step.before.present)
    for event in step.events:
        if event.transition == "prefix_hit":
            books.take(event.id, event.after)
        elif event.transition == "allocate":
            following = books.free[: len(event.after)]
            if following != [*event.after]:
                yield f"handed out {list(event.after)}, next were {following}"
            books.take(event.id, event.after)
        elif event.transition in ("preempt", "finish"):
            books.put((), books.give_back(event.id))
    free = [*step.after.pool.free]
    if free != books.free:
        yield f"free list {free}, expected {books.free}"


@between("NANO-BLK-6", release("deallocate"))
@witness(lambda _, step: step.before.aborted and step.before.pool.references)
def given_back_after_abort(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """An aborted sequence gives its blocks back in the same order as a finished one."""
    # Where several go at once their order is not known, so that only one is judged.
    gone = [row.id for row in before.present if row.id in after.aborted]
    if len(gone) != 1:
        return
    books = FreeList.of(before.pool, before.present)
    books.put((), books.give_back(gone[0]))
    free = [*after.pool.free]
    if free != books.free:
        yield f"free list {free}, expected {books.free}"
