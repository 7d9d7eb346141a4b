"""Rules of the block pool: nothing is lost, shared without count, or handed out twice.

Source: vllm-v1, the KV cache manager that the plugin uses; spyre, "Padding", for block 0.
"""

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any

from spec.core import judging
from spec.core.blocks import BlockPool
from spec.core.changes import (
    Blocks,
    Change,
    change_between,
    changed,
    keys_with,
    without_middle,
)
from spec.core.judging import FreeList
from spec.core.requests import BlockKey
from spec.core.rule import Source
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.observed import continued, entering, lacks_next_chunk, pending, refused
from spec.spyre.rules.registry import (
    always,
    between,
    changed_pool,
    each_request,
    looking_at,
    of_step,
    refilled,
    spyre,
    witness,
)
from spec.spyre.state import PADDING_BLOCK, Sequence, State
from spec.spyre.variants import Reading

_POOL = Source("vllm-v1", "KV cache manager")


@always("BLK-1", _POOL, witness=lambda _, step: step.after.pool.references, look=changed_pool)
def free_or_held(_ctx: Context, state: State) -> Iterator[str]:
    """Every block is either free, once, or held."""
    # Free and held blocks together are the pool.
    yield from judging.free_or_held(state.pool)


@looking_at
def _moved_blocks(_ctx: Context, change: Change[State]) -> State | None:
    """Look at blocks whose count changed, or of which a table has more or fewer."""
    if change.moved_blocks is None:
        return None
    references, entered = change.moved_blocks
    pool = BlockPool(change.after.pool.size, (), references)
    return State(pool, decoding=tuple(Sequence("", 0, blocks=table) for table in entered))


@always("BLK-2", _POOL, look=_moved_blocks)
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def references_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """A block's reference count is the number of requests that hold it."""
    # Also: no block twice in one table, and requests that wait or have left hold none.
    yield from judging.references_are_holders(state.pool, state.present)


@always("BLK-3", spyre("Padding, Rectangular Decode"), look=changed_pool)
@witness(lambda _, step: any(row.left_padding for row in step.batch))
def block_zero_is_padding(_ctx: Context, state: State) -> Iterator[str]:
    """Block 0 is never handed out."""
    # It is neither free nor in any table.
    if PADDING_BLOCK in state.pool.free or PADDING_BLOCK in state.pool.references:
        yield "block 0 is in the pool"


_MOVING_BLOCKS = ("prefix_hit", "allocate", "finish", "preempt")


@of_step("BLK-4", _POOL, witness=lambda _, step: step.finished and step.before.pool.free)
def free_order(_ctx: Context, step: Step) -> Iterator[str]:
    """Blocks are handed out from the head of the free list; of the blocks given back, those without
    cached content come next, those with it last, a table's tail first.
    """
    # The step's events, applied to the free list before it, give the free list after it. A
    # preempted request goes before anything is handed out: its blocks' content is that before the
    # step. A finished one goes last, with what the step computed.
    before, after = step.before.pool.free, step.after.pool.free
    if before is after and not step.happened(*_MOVING_BLOCKS):
        return
    hits = {block for event in step.happened("prefix_hit") for block in event.after}
    if any(_order_errors(step, *without_middle(before, after, hits))):
        yield from _order_errors(step, tuple(before), tuple(after))


def _order_errors(step: Step, free: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[str]:
    """How `after` differs from what the events make of `free`."""
    gives_back = step.happened("finish", "preempt")
    left = change_between(step.before, step.after).left if gives_back else ()
    books = FreeList.of(free, left)
    for event in step.events:
        if event.transition == "allocate" and books.free[: len(event.after)] != tuple(event.after):
            following = list(books.free[: len(event.after)])
            yield f"handed out {list(event.after)}, next were {following}"
        if event.transition == "allocate":
            books.hand_out(event.id, event.after)
        elif event.transition == "prefix_hit":
            books.take(event.id, event.after)
        elif event.transition in ("finish", "preempt"):
            content = step.before if event.transition == "preempt" else step.after
            books.put(*_by_content(books.give_back(event.id), content))
    if books.free != after:
        yield f"free list {list(after)}, expected {list(books.free)}"


def _by_content(freed: list[int], state: State) -> tuple[list[int], list[int]]:
    """Freed blocks without cached content, and those with it."""
    known = [block for block in freed if block in state.pool.keys]
    return [block for block in freed if block not in state.pool.keys], known


@between("BLK-10", _POOL)
@witness(lambda _, step: step.before.aborted and step.before.pool.references)
def free_order_after_abort(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """An abort gives blocks back in the same order as an end."""
    # Where several go at once their order is not known: the blocks of all are then in any order on
    # their side of the list, and those that were free are between them.
    left = change_between(before, after).left
    gone = [one for one in left if one.id in after.aborted]
    books = FreeList.of(before.pool.free, left)
    freed = [block for one in gone for block in books.give_back(one.id)]
    if not gone:
        return
    plain, cached = _by_content(freed, before)
    found = after.pool.free
    if len(gone) > 1:
        front, back = found[: len(plain)], found[len(found) - len(cached) :]
        is_same = (sorted(front), sorted(back)) == (sorted(plain), sorted(cached))
        plain, cached = ([*front], [*back]) if is_same else (plain, cached)
    books.put(plain, cached)
    if found != books.free:
        yield f"free list {list(found)}, expected {list(books.free)}"


@looking_at
def _contents_and_holders(ctx: Context, change: Change[State]) -> State | None:
    """Look at contents that changed, and at those of requests whose table or filling did."""
    seen = refilled(ctx, change.before, change.after)
    rows = () if seen is None else seen.decoding
    if change.before.pool is change.after.pool and not rows:
        return None
    known = {one.id: one for one in change.before.admitted}
    held = chain.from_iterable(_newly_judged(ctx, known.get(one.id), one) for one in rows)
    return State(change.contents_of(held), decoding=rows)


def _newly_judged(ctx: Context, before: Sequence | None, one: Sequence) -> Blocks:
    """Blocks of a request that the rule compares with its tokens and did not before."""
    if before is None:
        return one.blocks
    same = before.blocks[: min(_own_blocks(ctx, before), _own_blocks(ctx, one))]
    return one.blocks[len(same) :] if one.blocks[: len(same)] == same else one.blocks


def _own_blocks(ctx: Context, one: Sequence) -> int:
    """How many blocks the tokens fill that a request has, or that are to be computed for it."""
    return max(one.computed, one.prefill_len) // ctx.config.block_size


def _caching(config: SpyreConfig) -> bool:
    return config.prefix_caching


@always("BLK-5", _POOL, applies=_caching, look=_contents_and_holders)
@witness(
    lambda _, step: any(
        block in step.before.pool.keys
        for event in step.happened("allocate")
        for block in event.after
    )
)
def cache_maps_agree(ctx: Context, state: State) -> Iterator[str]:
    """Keys and cached blocks name each other; a block handed out anew has lost its old content."""
    # Both maps describe the same set of pairs. What a request holds has the content of its own
    # tokens at that place, or none.
    yield from judging.cache_maps_agree(state.pool)
    for one in state.admitted:
        own = ctx.keys.of(one.id, _own_blocks(ctx, one))
        for block, key in zip_longest(one.blocks, own[: len(one.blocks)]):
            if state.pool.keys.get(block, key) != key:
                yield f"request {one.id} holds block {block} with other content"


@always("BLK-6", _POOL, witness=lambda _, step: step.after.is_idle and step.finished)
def all_given_back(ctx: Context, state: State) -> Iterator[str]:
    """When no request is left, every block has been given back."""
    # Cached content may stay, holders may not: all that are configured are free.
    if pending(state):
        return
    if state.pool.references:
        yield f"held by no request: {sorted(state.pool.references)}"
    configured = ctx.config.num_blocks or _blocks_by_default(ctx.config)
    if len(state.pool.free) != configured:
        yield f"{len(state.pool.free)} of {configured} blocks are free"


def _blocks_by_default(config: SpyreConfig) -> int:
    """As many as requests of full length need in every slot.

    2.6.3 counts whole blocks only, and takes the next multiple of the slots that leaves one block
    for padding.
    """
    slots, length, size = config.max_num_seqs, config.max_model_len, config.block_size
    if config.reading is Reading.TEXT:
        return sum(len(range(0, length, size)) for _ in range(slots))
    full_rows = sum(length // size for _ in range(slots))
    all_blocks = next(n for n in range(full_rows + 1, full_rows + slots + 1) if n % slots == 0)
    return all_blocks - 1


@of_step("BLK-7", spyre("Boundary chunk"), applies=_caching)
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def shared_blocks_are_not_written(_ctx: Context, step: Step) -> Iterator[str]:
    """A block that several requests hold is never written."""
    # Written are a chunk's blocks and the last block of each decode row.
    written = {block for block in step.chunk.writes if block} if step.chunk else set()
    written |= {row.blocks[-1] for row in step.batch}
    for references in (step.before.pool.references, step.after.pool.references):
        for block in written & _shared(references):
            yield f"block {block} is written, {references[block]} requests hold it"


_shared = keys_with(lambda holders: holders > 1)


@always("BLK-8", _POOL, look=each_request)
@witness(lambda _, step: any(len(one.blocks) > 1 for one in step.after.admitted))
def blocks_match_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A request holds exactly the blocks of its computed tokens, or its cached blocks if more."""
    # Nothing is handed out before it is needed; the waiting hold nothing.
    size = ctx.config.block_size
    for one in state.present:
        filled, cached = -(-one.computed // size), one.hit_blocks
        if len(one.blocks) != (filled if filled > cached else cached):
            yield f"request {one.id}: {one.computed} tokens, blocks {list(one.blocks)}"


def _without_reservation(config: SpyreConfig) -> bool:
    return not config.reservation


@of_step("BLK-9", _POOL, applies=_without_reservation)
@witness(lambda _, step: step.refusal == "BLK-9")
def chunk_finds_its_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """Without reservation, a chunk is computed only if the free blocks suffice for it."""
    # None is preempted for a prefill, and none is refused one while the blocks are there.
    one = refused(ctx, step) if step.refusal == "BLK-9" else None
    if one is not None and not lacks_next_chunk(ctx, step.before, one):
        yield f"{one.id} refused, {len(step.before.pool.free)} blocks free"
    if step.chunk is not None and step.happened("preempt"):
        yield f"prefill of {step.chunk.id} preempted {step.happened('preempt')[0].id}"


@of_step("BLK-11", _POOL)
@witness(lambda _, step: step.happened("prefix_hit") and step.happened("allocate"))
def tables_grow_at_their_ends(_ctx: Context, step: Step) -> Iterator[str]:
    """A block table grows at its end only: by the cached blocks that its request finds when it is
    admitted, then by the blocks that are handed out, in their order.
    """
    new: dict[str, list[int]] = {}
    for event in step.happened("prefix_hit", "allocate"):
        new.setdefault(event.id, []).extend(event.after)
    for before, after in continued(step):
        due = (*before.blocks, *new.get(after.id, ()))
        if after.blocks != due:
            yield f"request {after.id}: blocks {list(after.blocks)}, due are {list(due)}"


@of_step("BLK-12", _POOL, applies=_caching)
@witness(lambda _, step: any(len(blocks) > 1 for blocks in step.after.pool.cached.values()))
def contents_stay_until_handed_out(ctx: Context, step: Step) -> Iterator[str]:
    """A block keeps its content until it is handed out; a block that is filled is found behind
    others with the same content, in the order in which rows are computed.
    """
    # Of two blocks with the same content a lookup so finds the older.
    before, after = step.before.pool, step.after.pool
    taken = {block for event in step.happened("allocate") for block in event.after}
    filled: dict[BlockKey, list[int]] = {}
    for row_id, table, computed in _computed_tables(ctx, step):
        full = ctx.keys.of(row_id, computed // ctx.config.block_size)
        for block, key in zip(table, full, strict=False):
            if block in taken or block not in before.keys:
                filled.setdefault(key, []).append(block)
    emptied = {before.keys[block] for block in taken if block in before.keys}
    for key in {*emptied, *filled, *changed(before.cached, after.cached)}:
        kept = [block for block in before.cached.get(key, ()) if block not in taken]
        due = (*kept, *filled.get(key, ()))
        if after.cached.get(key, ()) != due:
            yield f"content in blocks {list(after.cached.get(key, ()))}, due are {list(due)}"


def _computed_tables(ctx: Context, step: Step) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Of each row that computed, in their order, its table and how many tokens then count.

    A request that finished with its prefill has computed all of it.
    """
    if step.chunk is None:
        yield from ((row.id, row.blocks, row.computed) for row in step.batch)
        return
    one = step.chunk.id
    row = next((row for row in step.after.admitted if row.id == one), None)
    if row is not None:
        yield one, row.blocks, row.computed
        return
    found = entering(step, one)
    new = (event.after for event in step.happened("prefix_hit", "allocate"))
    yield one, (*found.blocks, *chain.from_iterable(new)), found.prefill_len
