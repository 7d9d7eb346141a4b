"""Rules of the block manager: both pools, tables and slots, the order of free blocks.

Source: vllm-v0, "Memory Management & Preemption" and "Freeing Sequences"; the orders are those of
the release.
"""

from collections.abc import Iterator
from itertools import pairwise

from spec.core import judging
from spec.core.blocks import BlockPool
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, State, Step
from spec.vllm_v0.rules.counting import blocks_for, depth_of, same_tokens, sharers
from spec.vllm_v0.rules.registry import always, code, of_step, text, victims, witness

_FREE = text("Freeing Sequences (`free_seq`)")
_SWAP = text("Swapping Functions")
_SLOTS = text("Appending Memory Slots (`_append_slots`)")


def _is_caching(config: VllmV0Config) -> bool:
    return config.prefix_caching


def _free_or_held(pool: BlockPool, size: int | None) -> Iterator[str]:
    yield from judging.free_or_held(pool)
    if size not in (None, pool.size):
        yield f"{pool.size} blocks, {size} are configured"
    beyond = {*pool.free, *pool.references} - {*range(1, pool.size + 1)}
    if beyond:
        yield f"blocks {sorted(beyond)} of {pool.size}"


@always("V0-BLK-1", _FREE, witness=lambda _, step: step.after.pool.references)
def free_or_held_on_the_gpu(ctx: Context, state: State) -> Iterator[str]:
    """Every block of the GPU is either free, once, or held."""
    # Free and held blocks together are those that are configured, numbered from 1.
    yield from _free_or_held(state.pool, ctx.config.num_blocks)


@always("V0-BLK-2", _SWAP, witness=lambda _, step: step.after.cpu.references)
def free_or_held_on_the_cpu(ctx: Context, state: State) -> Iterator[str]:
    """Every block of the CPU is either free, once, or held."""
    # Over any sequence of swaps.
    yield from _free_or_held(state.cpu, ctx.config.num_cpu_blocks)


@always("V0-BLK-3", _FREE)
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def references_on_the_gpu_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """The count of a GPU block is the number of tables of running groups in which it stands:
    what leaves, is preempted or swapped out holds nothing any more.
    """
    # Tables of sequences and of encoders alike.
    yield from judging.references_are_holders(state.pool, state.running)


@always("V0-BLK-4", _SWAP, witness=lambda _, step: len(step.after.swapped) > 1)
def references_on_the_cpu_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """The count of a CPU block is the number of tables of swapped groups in which it stands:
    what leaves or comes back holds nothing any more.
    """
    # A group that ends while it is swapped out, too.
    yield from judging.references_are_holders(state.cpu, state.swapped)


@always("V0-BLK-5", _FREE, witness=lambda _, step: step.after.is_idle and step.finished)
def nothing_leaks(_ctx: Context, state: State) -> Iterator[str]:
    """When no request is left every block of both devices is free."""
    # Whatever ended the requests.
    held = {**state.pool.references}, {**state.cpu.references}
    if not state.present and any(held):
        yield f"held on GPU and CPU: {held}"


@always("V0-BLK-6", _SLOTS)
@witness(
    lambda ctx, step: any(
        len(sequence.blocks) > 1 and sequence.slots % ctx.config.block_size
        for one in step.after.running
        for sequence in one.sequences
    )
)
def tables_cover_slots(ctx: Context, state: State) -> Iterator[str]:
    """A table has a block for each of its slots, and none beyond the lookahead: it grows as needed
    instead of being allocated ahead.
    """
    # Only tokens have slots; the newest may have none yet.
    config = ctx.config
    extra = config.num_lookahead_slots + (config.num_scheduler_steps > 1 and config.chunked_prefill)
    for group in (*state.running, *state.swapped):
        for one in group.unfinished:
            least = blocks_for(one.slots, config.block_size)
            most = blocks_for(one.slots + extra, config.block_size)
            if not least <= len(one.blocks) <= most or one.slots > group.tokens:
                yield f"{one.id}: {one.slots} slots of {group.tokens}, {len(one.blocks)} blocks"


@always("V0-BLK-7", text("Caching & Lookahead Slots"))
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def each_slot_is_mapped_once(ctx: Context, state: State) -> Iterator[str]:
    """A slot belongs to one token of one sequence, unless several have the same tokens up to it: a
    shared prefix, or what a fork began with.
    """
    # The tokens are compared, and where in its table each has the block.
    shared: dict[tuple[str, str], int] = {}  # how many tokens two sequences must have in common
    for queue in (state.running, state.swapped):
        for block, held in sharers(queue, ctx.config.block_size).items():
            first, *others = sorted(held, key=lambda one: -one.end)
            for other in others:
                pair = first.id, other.id
                shared[pair] = max(shared.get(pair, 0), other.end)
                if other.place != first.place:
                    yield f"block {block} is held by {first.id} and {other.id}"
    for (one, another), count in shared.items():
        if not same_tokens(ctx, one, another, count):
            yield f"{one} and {another} share blocks, not their first {count} tokens"


@always("V0-BLK-8", text("Handling Prefix Caching"), applies=_is_caching)
@witness(lambda _, step: step.before.pool.keys.keys() - step.after.pool.keys.keys())
def cache_maps_agree(_ctx: Context, state: State) -> Iterator[str]:
    """The content of every cached block leads to it, and to no other, on either device."""
    # A block that is handed out anew has lost its content.
    for pool in (state.pool, state.cpu):
        yield from judging.cache_maps_agree(pool)
        if len({*pool.keys.values()}) < len(pool.keys):
            yield f"several of {sorted(pool.keys)} have the same content"


@of_step("V0-BLK-9", text("Retrieving Sequence Data & Memory Blocks"), applies=_is_caching)
@witness(lambda _, step: _evicted(step) and _kept(step))
def least_recently_used_goes_first(_ctx: Context, step: Step) -> Iterator[str]:
    """Blocks that were accessed are kept from being evicted: of the free ones those without
    contents go first, then those that were used the longest ago, of these the deepest.
    """
    # Of the blocks that were free before the step and still are; decodes may give blank ones back.
    evicted, kept = _evicted(step), _kept(step)
    blank = {*step.before.pool.free} - step.before.pool.keys.keys()
    blank &= {*step.planned.pool.free} - step.planned.pool.keys.keys()
    if evicted and blank and step.scheduled.keys() == {*step.admitted}:
        yield f"evicted {sorted(evicted)}, {sorted(blank)} are free and blank"
    if not evicted or not kept:
        return
    oldest = min(kept, key=lambda block: _age(step.before, block))
    for block in evicted:
        if _age(step.before, oldest) < _age(step.before, block):
            yield f"evicted {block}, used longer ago or deeper: {oldest}"


def _age(state: State, block: int) -> tuple[int, int]:
    return state.marks.get(block, -1), -depth_of(state.pool.keys[block])


def _idle(step: Step) -> set[int]:
    """Free blocks with contents, before the step."""
    return {*step.before.pool.free} & step.before.pool.keys.keys()


def _evicted(step: Step) -> set[int]:
    known = {*step.planned.pool.keys.values()}
    return {block for block in _idle(step) if step.before.pool.keys[block] not in known}


def _kept(step: Step) -> set[int]:
    pool, planned = step.before.pool, step.planned.pool
    stays = {block for block in _idle(step) if planned.keys.get(block) == pool.keys[block]}
    return stays & {*planned.free}


@of_step("V0-BLK-12", text("Retrieving Sequence Data & Memory Blocks"), applies=_is_caching)
@witness(lambda _, step: _left_by_scheduled(step) and _rests(step))
def last_use_is_remembered(_ctx: Context, step: Step) -> Iterator[str]:
    """Scheduling a request is a use of its blocks: those that it then gives back were used later
    than all that were free before, which keep their order.
    """
    # Blocks with contents; those with other holders aside, which were not scheduled.
    before, after = step.before.marks, step.after.marks
    rests = sorted(_rests(step), key=lambda block: after.get(block, -1))
    for older, newer in pairwise(rests):
        ages = [marks.get(it, -1) for marks in (before, after) for it in (older, newer)]
        if ages[0] > ages[1] or (ages[0] == ages[1]) != (ages[2] == ages[3]):
            yield f"{older} counts as used before {newer}, ages were {ages[:2]}"
    for block in _left_by_scheduled(step) if rests else ():
        if after.get(rests[-1], -1) >= after.get(block, -1):
            yield f"{block} was used in this step, {rests[-1]} counts as used later"


def _rests(step: Step) -> set[int]:
    """Blocks that are free with the same contents from the beginning of the step to its end."""
    pools = (step.planned.pool, step.after.pool)
    kept = (
        {it for it in pool.free if pool.keys.get(it) == step.before.pool.keys.get(it)}
        for pool in pools
    )
    return _idle(step).intersection(*kept)


def _left_by_scheduled(step: Step) -> set[int]:
    """Blocks with contents that only scheduled groups held and no group holds after the step."""
    runs = step.planned.running
    others = {block for one in runs if one.id not in step.scheduled for block in one.blocks}
    held = {block for one in runs for block in one.blocks} - others
    return held & {*step.after.pool.free} & step.after.pool.keys.keys()


@of_step(
    "V0-BLK-10", code("naive block allocator"), applies=lambda config: not config.prefix_caching
)
@witness(lambda _, step: len(step.finished) == 1 and step.after.pool.references)
def last_freed_is_first_handed_out(_ctx: Context, step: Step) -> Iterator[str]:
    """Without prefix caching blocks are handed out from the front of the free list, and go back to
    its front, a table's tail before its head.
    """
    # Judged where no group gives way in the step, and one sequence gives its table back.
    before, planned = step.before.pool, step.planned.pool
    fresh = planned.references.keys() - before.references.keys()
    expected = {*tuple(before.free)[: len(fresh)]}, tuple(before.free)[len(fresh) :]
    if not victims(step) and not step.ignored and (fresh, tuple(planned.free)) != expected:
        yield f"handed out {sorted(fresh)}, next were {list(before.free)}"
    after = {one.id for group in step.after.present for one in group.unfinished}
    left = [
        (one.blocks, group.cross)
        for group in step.planned.running
        for one in group.unfinished
        if one.id not in after
    ]
    if len(left) == 1 and left[0][1] == () and not step.forked:
        freed = [block for block in left[0][0][::-1] if planned.references[block] == 1]
        if tuple(step.after.pool.free) != (*freed, *planned.free):
            yield f"free {list(step.after.pool.free)}, freed {freed} before {list(planned.free)}"


@always("V0-BLK-11", text("Handling Encoder-Decoder Models"))
@witness(lambda _, step: any(one.cross for one in step.after.running))
def encoders_have_their_blocks(ctx: Context, state: State) -> Iterator[str]:
    """Of an encoder-decoder model each group that has begun has blocks for all that its encoder
    computed, apart from its sequences'.
    """
    # Others have none.
    for one in (*state.running, *state.swapped):
        expected = blocks_for(ctx.requests[one.id].encoder_len, ctx.config.block_size)
        if len({*one.cross}) != expected:
            yield f"{one.id} has {list(one.cross)} of {expected} blocks"
    for one in state.running:
        shared = {block for sequence in one.sequences for block in sequence.blocks} & {*one.cross}
        if shared:
            yield f"{one.id}: {sorted(shared)} are its encoder's and its sequences'"
