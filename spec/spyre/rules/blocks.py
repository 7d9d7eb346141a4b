"""Rules of the block pool: nothing is lost, shared without count, or handed out twice.

Source: vllm-v1, the KV cache manager that the plugin uses; spyre, "Padding", for block 0.
"""

from collections.abc import Iterator
from itertools import chain, zip_longest

from spec.core import judging
from spec.core.judging import FreeList
from spec.core.requests import BlockKey
from spec.core.rule import Source
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.observed import (
    Continued,
    continued,
    entering,
    lacks_next_chunk,
    pending,
    refused,
)
from spec.spyre.rules.registry import (
    always,
    between,
    of_step,
    spyre,
    witness,
)
from spec.spyre.state import PADDING_BLOCK, State
from spec.spyre.variants import Reading

_POOL = Source("vllm-v1", "KV cache manager")


@always("BLK-1", _POOL, witness=lambda _, step: step.after.pool.references)
def free_or_held(_ctx: Context, state: State) -> Iterator[str]:
    """Every block is either free, once, or held."""
    # Free and held blocks together are the pool.
    yield from judging.free_or_held(state.pool)


@always("BLK-2", _POOL)
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def references_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """A block's reference count is the number of requests that hold it."""
    # Also: no block twice in one table, and requests that wait or have left hold none.
    yield from judging.references_are_holders(state.pool, state.present)


@always("BLK-3", spyre("Padding, Rectangular Decode"))
@witness(lambda _, step: any(row.left_padding for row in step.batch))
def block_zero_is_padding(_ctx: Context, state: State) -> Iterator[str]:
    """Block 0 is never handed out."""
    # It is neither free nor in any table.
    if PADDING_BLOCK in state.pool.free or PADDING_BLOCK in state.pool.references:
        yield "block 0 is in the pool"


@of_step("BLK-4", _POOL, witness=lambda _, step: step.finished and step.before.pool.free)
def free_order(_ctx: Context, step: Step) -> Iterator[str]:
    """Blocks are handed out from the head of the free list; of the blocks given back, those without
    cached content come next, those with it last, a table's tail first.
    """
    # The step's events, applied to the free list before it, give the free list after it. A
    # preempted request goes before anything is handed out: its blocks' content is that before the
    # step. A finished one goes last, with what the step computed.
    books = FreeList.of(step.before.pool, step.before.present)
    for event in step.events:
        if event.transition == "allocate":
            following = books.free[: len(event.after)]
            if following != [*event.after]:
                yield f"handed out {list(event.after)}, next were {following}"
            books.hand_out(event.id, event.after)
        elif event.transition == "prefix_hit":
            books.take(event.id, event.after)
        elif event.transition in ("finish", "preempt"):
            content = step.before if event.transition == "preempt" else step.after
            books.put(*_by_content(books.give_back(event.id), content))
    free = [*step.after.pool.free]
    if free != books.free:
        yield f"free list {free}, expected {books.free}"


def _by_content(freed: list[int], state: State) -> tuple[list[int], list[int]]:
    """Freed blocks without cached content, and those with it."""
    cached = [block for block in freed if block in state.pool.keys]
    return [block for block in freed if block not in state.pool.keys], cached


@between("BLK-10", _POOL)
@witness(lambda _, step: step.before.aborted and step.before.pool.references)
def free_order_after_abort(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """An abort gives blocks back in the same order as an end."""
    # Where several go at once their order is not known: the blocks of all are then in any order on
    # their side of the list, and those that were free are between them.
    gone = [row for row in before.present if row.id in after.aborted]
    books = FreeList.of(before.pool, before.present)
    freed = [block for row in gone for block in books.give_back(row.id)]
    if not gone:
        return
    plain, cached = _by_content(freed, before)
    free = [*after.pool.free]
    if len(gone) > 1:
        front, back = free[: len(plain)], free[len(free) - len(cached) :]
        is_same = (sorted(front), sorted(back)) == (sorted(plain), sorted(cached))
        plain, cached = (front, back) if is_same else (plain, cached)
    books.put(plain, cached)
    if free != books.free:
        yield f"free list {free}, expected {books.free}"


def _caching(config: SpyreConfig) -> bool:
    return config.prefix_caching


@always("BLK-5", _POOL, applies=_caching)
@witness(
    lambda _, step: any(
        block in step.before.pool.keys
        for event in step.happened("allocate")
        for block in event.after
    )
)
def cache_maps_agree(ctx: Context, state: State) -> Iterator[str]:
    """Keys and cached blocks name each other; a block allocated again has lost its old content."""
    # Both maps describe the same set of pairs. What a request holds has the content of its own
    # tokens at that place, or none.
    yield from judging.cache_maps_agree(state.pool)
    size = ctx.config.block_size
    for row in state.admitted:
        own = ctx.keys.of(row.id, max(row.computed, row.prefill_len) // size)
        for block, key in zip_longest(row.blocks, own[: len(row.blocks)]):
            if state.pool.keys.get(block, key) != key:
                yield f"request {row.id} holds block {block} with other content"


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
        for block in written:
            if references.get(block, 0) > 1:
                yield f"block {block} is written, {references[block]} requests hold it"


@always("BLK-8", _POOL)
@witness(lambda _, step: any(len(row.blocks) > 1 for row in step.after.admitted))
def blocks_match_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A request holds exactly the blocks of its computed tokens, or its cached blocks if more."""
    # Nothing is handed out before it is needed; the waiting hold nothing.
    size = ctx.config.block_size
    for row in state.present:
        if len(row.blocks) != max(-(-row.computed // size), row.hit_blocks):
            yield f"request {row.id}: {row.computed} tokens, blocks {list(row.blocks)}"


def _without_reservation(config: SpyreConfig) -> bool:
    return not config.reservation


@of_step("BLK-9", _POOL, applies=_without_reservation)
@witness(lambda _, step: step.refusal == "BLK-9")
def chunk_finds_its_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """Without reservation, a chunk is computed only if the free blocks suffice for it."""
    # None is preempted for a prefill, and none is refused one while the blocks are there.
    row = refused(ctx, step) if step.refusal == "BLK-9" else None
    if row is not None and not lacks_next_chunk(ctx, step.before, row):
        yield f"{row.id} refused, {len(step.before.pool.free)} blocks free"
    if step.chunk is not None and step.happened("preempt"):
        yield f"prefill of {step.chunk.id} preempted {step.happened('preempt')[0].id}"


@of_step("BLK-11", _POOL, given=continued)
@witness(lambda _, step: step.happened("prefix_hit") and step.happened("allocate"))
def tables_grow_at_their_ends(_ctx: Context, step: Step, rows: Continued) -> Iterator[str]:
    """A block table grows at its end only: by the cached blocks that its request finds when it is
    admitted, then by the blocks that are handed out, in their order.
    """
    new: dict[str, list[int]] = {}
    for event in step.happened("prefix_hit", "allocate"):
        new.setdefault(event.id, []).extend(event.after)
    for before, after in rows:
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
    for key in {*before.cached, *after.cached, *filled}:
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
    id_ = step.chunk.id
    row = next((row for row in step.after.admitted if row.id == id_), None)
    if row is not None:
        yield id_, row.blocks, row.computed
        return
    found = entering(step, id_)
    new = (event.after for event in step.happened("prefix_hit", "allocate"))
    yield id_, (*found.blocks, *chain.from_iterable(new)), found.prefill_len
