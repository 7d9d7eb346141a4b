"""Rules of the block manager: both pools, tables and slots, the order of free blocks.

Source: vllm-v0, "Memory Management & Preemption" and "Freeing Sequences"; the orders are those of
the release.
"""

from collections.abc import Iterator
from math import inf
from typing import TypeAlias

from attrs import evolve

from spec.core import judging
from spec.core.blocks import BlockPool
from spec.core.words import by_name
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, State, Step
from spec.vllm_v0.rules.counting import (
    is_by_priority,
    key_depth,
    needed_blocks,
    rank,
    running_order,
    same_tokens,
    sharers,
)
from spec.vllm_v0.rules.memory import blank, device_tables, pushed, wrong_ranks
from spec.vllm_v0.rules.registry import (
    always,
    by_id,
    code,
    is_released,
    of_step,
    slot_victims,
    text,
    victims,
    witness,
)

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
    on_gpu, on_cpu = state.pool.references, state.cpu.references
    if not state.present and (on_gpu or on_cpu):
        yield f"held on the GPU {by_name(on_gpu)}, on the CPU {by_name(on_cpu)}"


@always("V0-BLK-6", _SLOTS)
@witness(
    lambda ctx, step: any(
        len(sequence.blocks) > 1 and sequence.slots % ctx.config.block_size
        for group in step.after.running
        for sequence in group.sequences
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
        for sequence in group.unfinished:
            least = needed_blocks(sequence.slots, config.block_size)
            most = needed_blocks(sequence.slots + extra, config.block_size)
            if not least <= len(sequence.blocks) <= most or sequence.slots > group.tokens:
                slots = f"{sequence.slots} slots of {group.tokens}"
                yield f"{sequence.id}: {slots}, {len(sequence.blocks)} blocks"


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
            first, *others = sorted(held, key=lambda holder: -holder.end)
            for other in others:
                pair = first.id, other.id
                shared[pair] = max(shared.get(pair, 0), other.end)
                if other.place != first.place:
                    yield f"block {block} is held by {first.id} and {other.id}"
    for (first_id, other_id), count in shared.items():
        if not same_tokens(ctx, first_id, other_id, count):
            yield f"{first_id} and {other_id} share blocks, not their first {count} tokens"


@always("V0-BLK-8", text("Handling Prefix Caching"), applies=_is_caching)
@witness(lambda _, step: step.before.pool.keys.keys() - step.after.pool.keys.keys())
def cache_maps_agree(_ctx: Context, state: State) -> Iterator[str]:
    """The content of every cached block leads to it, and to no other, on either device."""
    # A block that is allocated again has lost its content.
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
    return state.marks.get(block, -1), -key_depth(state.pool.keys[block])


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
def last_use_is_remembered(ctx: Context, step: Step) -> Iterator[str]:
    """Scheduling a request is a use of its blocks: what it then gives back was last used when it
    was last scheduled, until it is taken again; a request that starts over was never used.
    """
    # Later than all that was used before, which keeps its order. Swapping out is no use.
    if step.after.failure:
        return
    known = {group.id: group.mark for group in step.before.present}
    groups: dict[str, float] = {}
    for group in step.after.present:
        starts_over = group.id in step.preempted
        was = 0 if starts_over else known.get(group.id, 0)
        groups[group.id] = _NOW if group.id in step.scheduled else was
    marks: dict[int, float] = {}
    for block in step.after.pool.keys:
        ages = _ages(ctx, step, block)
        if (block in step.after.marks) not in {age is not None for age in ages}:
            yield f"block {block}: marked {block in step.after.marks}, last used {ages}"
        if block in step.after.marks:
            marks[block] = max((age for age in ages if age is not None), default=0)
    yield from wrong_ranks(step.after, groups, marks)


_NOW = inf  # later than all uses before the step


def _ages(ctx: Context, step: Step, block: int) -> set[float | None]:
    """When a block with contents was last used, as its mark says it; None: it has none.

    Both where a victim's block may have been taken again by its content, or not.
    """
    if block in _left_by_any(ctx, step):
        return {_NOW}
    if block in step.before.pool.references:
        holders = [group for group in step.before.running if block in group.blocks]
        givers = [group.mark for group in holders if group.id in {*step.preempted, *step.ignored}]
        ages: set[float | None] = {*givers} or {step.before.marks.get(block)}
        is_taken = block in step.planned.pool.references
        gone = victims(step)
        return ages | ({None} if is_taken and all(group.id in gone for group in holders) else set())
    return {None if block in step.planned.pool.references else step.before.marks.get(block)}


def _left_by_any(ctx: Context, step: Step) -> set[int]:
    """Blocks that sequences held when the step was decided which have left after it."""
    return {block for table in _leaving(ctx, step) for block in table}


def _leaving(ctx: Context, step: Step) -> list[tuple[int, ...]]:
    """Tables that are given back when tokens are sampled, in the order of giving them back.

    Those of sequences that have all their tokens in the order of the batch, then encoders' in that
    of the running queue; with lookahead slots group by group, in that order.
    """
    after = {sequence.id for group in step.after.present for sequence in group.unfinished}
    children: dict[str, list[str]] = {}
    for child, parent in step.forked.items():
        children.setdefault(parent, []).append(child)
    rows, own = by_id(step.planned.running), dict[str, list[tuple[int, ...]]]()
    for group in rows.values():
        first, *_ = group.sequences
        tables = {sequence.id: sequence.blocks for sequence in group.unfinished}
        tables |= dict.fromkeys(children.get(first.id, ()), first.blocks)
        own[group.id] = [table for name, table in tables.items() if name not in after]
    ended = [group for group in rows.values() if group.id in step.finished]
    if ctx.config.num_lookahead_slots:
        return [table for group in ended for table in (group.cross, *own[group.id])]
    over = [table for id_ in step.sampling for table in own.get(id_, ())]
    return [*over, *(group.cross for group in ended)]


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
    others = {block for group in runs if group.id not in step.scheduled for block in group.blocks}
    held = {block for group in runs for block in group.blocks} - others
    return held & {*step.after.pool.free} & step.after.pool.keys.keys()


@of_step("V0-BLK-10", code("naive block allocator"))
@witness(lambda _, step: len(step.finished) == 1 and step.after.pool.references)
def last_freed_is_first_handed_out(ctx: Context, step: Step) -> Iterator[str]:
    """Blocks without contents are handed out from the front of the free list, in the order in which
    requests are scheduled, and go back to its front, a table's tail before its head; on either
    device.
    """
    # Blocks that were given back and handed out again in one step stand in between.
    if step.after.failure:
        return
    yield from _order_when_decided(ctx, step, on_cpu=False)
    yield from _order_when_decided(ctx, step, on_cpu=True)
    planned, freed = step.planned, pushed(_with_forks(step), _leaving(ctx, step))
    due = [*(it for it in reversed(freed) if it not in planned.pool.keys), *blank(planned.pool)]
    if blank(step.after.pool) != due:
        yield f"free {blank(step.after.pool)} after the step, expected {due}"
    if step.after.cpu != planned.cpu:
        yield "the CPU's blocks changed when tokens were computed"


def _order_when_decided(ctx: Context, step: Step, *, on_cpu: bool) -> Iterator[str]:
    """How the free list of a device that the decisions leave is in another order than due."""
    pools = [state.cpu if on_cpu else state.pool for state in (step.before, step.planned)]
    was, now = map(blank, pools)
    before = {*was}
    stayed = [block for block in now if block in before]
    given = pushed(pools[0], _given_back(ctx, step, on_cpu=on_cpu))
    if ctx.config.prefix_caching:  # a block may be given up for another of its content
        is_sure = not given and len(stayed) == len(now) and not ctx.config.num_lookahead_slots
        is_held = before - {*now} <= pools[1].references.keys()
        if is_sure and is_held and now != was[len(was) - len(now) :]:
            yield f"free {now}, before {was}: not handed out from the front"
        return
    front = {*now[: len(now) - len(stayed)]}
    due = [block for block in reversed(given) if block in front]
    if now != [*due, *was[len(was) - len(stayed) :]]:
        yield f"free {now}, before {was}, given back {given}"
    taken = was[: len(was) - len(stayed)]
    if not given and taken != (fresh := _handed_out(ctx, step, on_cpu=on_cpu)):
        yield f"handed out {fresh}, next were {was}"


def _given_back(ctx: Context, step: Step, *, on_cpu: bool) -> list[tuple[int, ...]]:
    """Tables on a device that decisions give back, in the order in which they do."""
    config, before = ctx.config, step.before
    queue = sorted(before.running, key=lambda group: rank(ctx, group)) if _sorts(ctx, step) else ()
    order = [*(queue or before.running)]
    crowded = [group for group in reversed(order) if group.id in slot_victims(step)]
    rows = by_id(before.running)
    gone = [*(rows[id_] for id_ in step.by_priority if id_ in rows), *crowded]
    back = [group for group in before.swapped if group.id in {*step.swapped_in, *step.ignored}]
    stays = is_released(config)  # the release keeps blocks of what it ends while swapped out
    back = [group for group in back if not (stays and group.id in step.ignored)]
    return [
        table
        for group in (*gone, *back)
        for table in device_tables(group, config, on_cpu=on_cpu)
        if not (group.is_swapped != on_cpu and group.id in step.swapped_in)
    ]


def _sorts(ctx: Context, step: Step) -> bool:
    """True if the step sorts the running queue before it looks for slots."""
    by_default = is_by_priority(ctx.config) and not ctx.config.chunked_prefill
    return by_default and not (step.admitted and is_released(ctx.config))


def _handed_out(ctx: Context, step: Step, *, on_cpu: bool) -> list[int]:
    """Blocks of a device that decisions handed out, in the order in which they did."""
    config, before = ctx.config, by_id(step.before.present)
    rows = by_id(step.planned.present)
    runs = [id_ for id_ in running_order(ctx, step) if id_ in step.scheduled]
    came = [*step.admitted, *runs, *step.swapped_in]
    if config.chunked_prefill:
        came = [*runs, *step.swapped_in, *step.admitted]
    names = [*step.swapped_out] if on_cpu else came
    return [
        block for id_ in names if id_ in rows for block in _new_blocks(ctx, before[id_], rows[id_])
    ]


def _new_blocks(ctx: Context, was: Group, now: Group) -> list[int]:
    """Blocks that a group was handed, in order: tables, its encoder's, then what tables grew."""
    size, has_moved = ctx.config.block_size, was.is_swapped != now.is_swapped
    begins = not was.blocks
    new: list[int] = []
    grown: list[int] = []
    for old, sequence in zip(was.sequences, now.sequences, strict=False):
        least = needed_blocks(now.tokens, size) if begins else len(old.blocks)
        if begins or has_moved:
            new += sequence.blocks[:least]
            grown += sequence.blocks[least:]
        else:
            copied = zip(old.blocks, sequence.blocks, strict=False)
            grown += [*sequence.blocks[least:], *(it for before, it in copied if before != it)]
    crosses = begins or (has_moved and not is_released(ctx.config))
    return [*new, *(now.cross if crosses else ()), *grown]


def _with_forks(step: Step) -> BlockPool:
    """The pool when the step was decided, with the further holders that forks are."""
    pool, references = step.planned.pool, dict(step.planned.pool.references)
    tables = {
        sequence.id: sequence.blocks for it in step.planned.running for sequence in it.sequences
    }
    for parent in step.forked.values():
        for block in tables[parent]:
            references[block] += 1
    return evolve(pool, references=references)


@always("V0-BLK-13", text("Retrieving Sequence Data & Memory Blocks"), applies=_is_caching)
@witness(lambda _, step: len({*step.after.pool.free} & step.after.pool.keys.keys()) > 1)
def the_longest_unused_are_next(_ctx: Context, state: State) -> Iterator[str]:
    """Free blocks with contents stand behind those without, on either device, the longest unused in
    front, of these the deepest, and of these the one with the smallest number.
    """
    # Uses are known on the GPU alone.
    for pool, marks in ((state.pool, {**state.marks}), (state.cpu, dict[int, int]())):
        full = [block for block in pool.free if block in pool.keys]

        def age(block: int, pool: BlockPool = pool, marks: dict[int, int] = marks) -> Age:
            return marks.get(block, -1), -key_depth(pool.keys[block]), block

        due = [*blank(pool), *sorted(full, key=age)]
        if [*pool.free] != due:
            yield f"free {list(pool.free)}, expected {due}"


Age: TypeAlias = tuple[int, int, int]


@always("V0-BLK-11", text("Handling Encoder-Decoder Models"))
@witness(lambda _, step: any(group.cross for group in step.after.running))
def encoders_have_their_blocks(ctx: Context, state: State) -> Iterator[str]:
    """Of an encoder-decoder model each group that has begun has blocks for all that its encoder
    computed, apart from its sequences'.
    """
    # Others have none.
    for group in (*state.running, *state.swapped):
        expected = needed_blocks(ctx.requests[group.id].encoder_len, ctx.config.block_size)
        if len({*group.cross}) != expected:
            yield f"{group.id} has {list(group.cross)} of {expected} blocks"
    for group in state.running:
        shared = {block for sequence in group.sequences for block in sequence.blocks} & {
            *group.cross
        }
        if shared:
            yield f"{group.id}: {sorted(shared)} are its encoder's and its sequences'"
