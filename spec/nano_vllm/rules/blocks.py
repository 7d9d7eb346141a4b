"""Rules of the block manager: nothing is lost, and the last holder frees, not earlier.

Source: nano-vllm, chapter 5, and "Reference Counting: Safe Shared Ownership".
"""

from collections.abc import Iterator

from spec.core import judging
from spec.nano_vllm.records import Context, State, Step
from spec.nano_vllm.rules.counting import blocks_of
from spec.nano_vllm.rules.registry import always, between, of_step, release, text, witness
from spec.nano_vllm.rules.replay import Books, replayed


@always("NANO-BLK-1", text("BlockManager Architecture"))
@witness(lambda _, step: step.after.pool.references)
def free_or_used(ctx: Context, state: State) -> Iterator[str]:
    """Every block is either in the free list, once, or used."""
    # Free and used blocks together are those of the pool, numbered from 0.
    pool = state.pool
    listed = sorted([*pool.free, *pool.references])
    if listed != list(range(pool.size)):
        yield f"free {list(pool.free)}, used {sorted(pool.references)} of {pool.size} blocks"
    if ctx.config.num_blocks not in (None, pool.size):
        yield f"{pool.size} blocks, {ctx.config.num_blocks} are configured"


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
def all_given_back(_ctx: Context, state: State) -> Iterator[str]:
    """When no sequence is left, every block is free."""
    # Finished sequences give everything back at once.
    if not (state.waiting or state.running) and len(state.pool.free) != state.pool.size:
        yield f"{len(state.pool.free)} of {state.pool.size} blocks are free"


@always("NANO-BLK-4", text("What Blocks Look Like in GPU Memory"))
@witness(lambda _, step: any(len(one.blocks) > 1 for one in step.after.running))
def blocks_match_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A running sequence holds exactly the blocks of its computed tokens, each once."""
    # Nothing is handed out before it is needed.
    for one in state.running:
        expected = blocks_of(one.computed, ctx.config.block_size)
        if not len(one.blocks) == len(set(one.blocks)) == expected:
            yield f"request {one.id}: {one.computed} tokens, blocks {list(one.blocks)}"


@of_step("NANO-BLK-5", release("free_block_ids"))
@witness(
    lambda _, step: (
        step.happened("allocate") and list(step.before.pool.free) != sorted(step.before.pool.free)
    )
)
def first_in_first_out(ctx: Context, step: Step) -> Iterator[str]:
    """Blocks are handed out first in, first out; a table is given back with its last block
    first.
    """
    # The step's events, applied to the free list before it, give the free list after it.
    books = Books.at(ctx, step.before)
    for event, books in replayed(ctx, step):
        if event.transition == "allocate":
            count = len(event.after)
            if books.free[:count] != tuple(event.after):
                yield f"handed out {list(event.after)}, next were {list(books.free[:count])}"
    if books.free != step.after.pool.free:
        yield f"free list {list(step.after.pool.free)}, expected {list(books.free)}"


@between("NANO-BLK-6", release("deallocate"))
@witness(lambda _, step: step.before.aborted and step.before.pool.references)
def given_back_after_abort(ctx: Context, before: State, after: State) -> Iterator[str]:
    """An aborted sequence gives its blocks back in the same order as a finished one."""
    # Where several go at once their order is not known, so that only one is judged.
    gone = after.aborted - before.aborted
    if len(gone) != 1 or not any(one.id in gone for one in before.present):
        return
    books = Books.at(ctx, before)
    books.put((), books.give_back(next(iter(gone))))
    if books.free != after.pool.free:
        yield f"free list {list(after.pool.free)}, expected {list(books.free)}"
