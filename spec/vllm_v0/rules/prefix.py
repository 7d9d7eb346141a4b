"""Rules of prefix caching: what is found, what is counted, what is in a cached block.

Source: vllm-v0, "Calculating New Cached & Uncached Tokens", "Handling Prefix Caching" and "Marking
Blocks as Computed".
"""

from collections.abc import Iterator

from spec.core.words import by_name
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, State, Step
from spec.vllm_v0.rules.counting import batched, computed_contents, key_depth, longest_run
from spec.vllm_v0.rules.registry import always, by_id, is_released, of_step, text, witness

_CACHING = text("Handling Prefix Caching")
_CACHED = text("Calculating New Cached & Uncached Tokens")
_MARKING = text("Marking Blocks as Computed")


def _is_caching(config: VllmV0Config) -> bool:
    return config.prefix_caching


def _hits(_ctx: Context, step: Step) -> bool:
    return any(step.budget.cached.get(id_) for id_ in step.admitted)


@of_step("V0-PFX-1", _CACHING, applies=lambda config: not config.prefix_caching)
@witness(lambda _, step: step.prefills)
def without_caching_all_is_computed(_ctx: Context, step: Step) -> Iterator[str]:
    """Without prefix caching every request computes everything from scratch."""
    # No content is remembered, no use of a block, and no request has a block of another.
    if step.after.pool.keys or any(step.budget.cached.values()):
        yield f"cached {by_name(step.budget.cached)}, remembered {sorted(step.after.pool.keys)}"
    after, marked = step.after, [group.id for group in step.after.present if group.mark]
    if after.cpu.keys or after.computed or after.marks or marked:
        yield f"computed {sorted(after.computed)}, uses of {by_name(after.marks)}, {marked}"
    owners: dict[int, str] = {}
    for group in step.planned.running:
        for block in {*group.blocks}:
            if owners.setdefault(block, group.id) != group.id:
                yield f"block {block} is of {owners[block]} and {group.id}"


@of_step("V0-PFX-2", _CACHED, witness=_hits, applies=_is_caching)
def the_longest_prefix_counts_as_cached(ctx: Context, step: Step) -> Iterator[str]:
    """Of a prompt as many tokens count as cached as its longest run of computed blocks has, block
    by block from its first.
    """
    # What is in blocks that the step has allocated again may have been found before that, or not.
    pool, planned = step.before.pool, step.planned.pool.keys
    before = computed_contents(step.before)
    lost = {key for block, key in pool.keys.items() if planned.get(block) != key}
    rows = by_id(step.planned.running)
    for group in (rows[id_] for id_ in step.admitted):
        found = (group.cached or 0) // ctx.config.block_size
        most, least = (longest_run(ctx, group, it) for it in (before, before - lost))
        if not least <= found <= most or (group.cached or 0) % ctx.config.block_size:
            yield f"{group.id}: {group.cached} tokens count as cached, {most} blocks are"


def _processed(step: Step, group: Group) -> int:
    """Tokens of each of its sequences that have been computed after the step."""
    chunk = group.computed + step.scheduled.get(group.id, 0)
    return chunk if group.is_prefill else group.tokens


@of_step("V0-PFX-3", _MARKING, applies=_is_caching)
@witness(lambda _, step: step.after.computed - step.before.computed)
def computed_blocks_are_computed(ctx: Context, step: Step) -> Iterator[str]:
    """A step lets only those blocks count as computed that it, or an earlier one, has computed to
    their ends.
    """
    # One of the holders has, when what the step schedules is computed.
    size, before, after = ctx.config.block_size, step.before, step.after
    fresh = {
        block
        for block in after.computed
        if block not in before.computed or before.pool.keys.get(block) != after.pool.keys.get(block)
    }
    for group in step.planned.running:
        for sequence in group.unfinished:
            fresh -= {*sequence.blocks[: _processed(step, group) // size]}
    if fresh:
        yield f"blocks {sorted(fresh)} count as computed"


@of_step("V0-PFX-4", _MARKING, applies=_is_caching)
@witness(lambda _, step: step.after.computed - step.before.computed)
def processed_blocks_are_marked(ctx: Context, step: Step) -> Iterator[str]:
    """Every block whose tokens were processed counts as computed, so that later requests need not
    compute the same block again, as long as it has its content.
    """
    # Its content does, wherever it is.
    known = computed_contents(step.after)
    was, now = step.before.pool.keys, step.after.pool.keys
    same = {it for it in step.before.computed if it in was and was[it] == now.get(it)}
    if lost := same - step.after.computed:
        yield f"blocks {sorted(lost)} do not count as computed any more"
    for group in step.planned.running:
        for sequence in group.unfinished if group.id in step.scheduled else ():
            end = _processed(step, group)
            keys = ctx.keys.of(sequence.id, min(end, sequence.slots) // ctx.config.block_size)
            begun = group.computed // ctx.config.block_size
            unmarked = [place for place in range(begun, len(keys)) if keys[place] not in known]
            if unmarked:
                yield f"{sequence.id} has computed its blocks at {unmarked}"


@of_step("V0-PFX-5", _CACHED, applies=_is_caching)
@witness(
    lambda _, step: any(
        step.scheduled[id_] > 1 and count == 1
        for id_, count in step.budget.batched.items()
        if id_ in step.scheduled
    )
)
def one_token_at_least_is_computed(_ctx: Context, step: Step) -> Iterator[str]:
    """However much of a request is cached, its last token is computed: at least one of the tokens
    counted is uncached.
    """
    # A request that is scheduled counts with one token or more.
    rows = by_id(step.planned.running)
    for request_id, count in step.scheduled.items():
        cached = step.budget.cached.get(request_id, 0)
        if cached >= count or rows[request_id].computed + cached >= rows[request_id].tokens:
            yield f"{request_id}: {cached} of {count} tokens are cached, {batched(step)} computed"


@always("V0-PFX-6", _CACHING, applies=_is_caching)
@witness(lambda _, step: step.after.pool.keys.keys() & step.after.pool.references.keys())
def contents_are_those_of_the_holders(ctx: Context, state: State) -> Iterator[str]:
    """A cached block in a table is full, and known by the tokens of that sequence at that place and
    all before it.
    """
    # On either device.
    size = ctx.config.block_size
    for pool, groups in ((state.pool, state.running), (state.cpu, state.swapped)):
        for sequence in (sequence for group in groups for sequence in group.unfinished):
            keys = ctx.keys.of(sequence.id, sequence.slots // size)
            for place, block in enumerate(sequence.blocks):
                key = pool.keys.get(block)
                if key is None:
                    continue
                if place >= len(keys) or key != keys[place] or key_depth(key) != place + 1:
                    yield f"{sequence.id}: block {block} at place {place} is known by other tokens"


@of_step("V0-PFX-7", _CACHED, witness=_hits, applies=_is_caching)
def cached_tokens_lie_in_computed_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """Tokens that count as cached lie in blocks of the request's table that were computed in an
    earlier step for the same tokens.
    """
    # With the content that they had then.
    rows, before = by_id(step.planned.running), step.before
    for group in (rows[id_] for id_ in step.admitted):
        found = (group.cached or 0) // ctx.config.block_size
        keys = ctx.keys.of(group.unfinished[0].id, found)
        for place, block in enumerate(group.unfinished[0].blocks[:found]):
            if block not in before.computed or before.pool.keys.get(block) != keys[place]:
                yield f"{group.id}: block {block} at place {place} was not computed"


@of_step("V0-PFX-8", _CACHING, applies=_is_caching)
@witness(lambda _, step: step.finished and {*step.after.pool.free} & step.after.pool.keys.keys())
def contents_stay_until_blocks_are_handed_out(ctx: Context, step: Step) -> Iterator[str]:
    """A block keeps its content, held or free, until it is allocated again or its content is given
    up for another block's, and is given one only for the tokens that a request has in it.
    """
    # On either device; all that changes contents happens when the step is decided.
    size = ctx.config.block_size
    for name, groups in (("pool", step.planned.running), ("cpu", step.planned.present)):
        before, planned, after = (
            getattr(state, name) for state in (step.before, step.planned, step.after)
        )
        if after.keys != planned.keys:
            yield f"contents of {sorted(after.keys)}, when decided of {sorted(planned.keys)}"
        for block, key in before.keys.items():
            is_taken = block in planned.references and block not in before.references
            is_moved = _changed_hands(step, name, block) or (
                name == "pool" and block in before.free and _is_exchanged(step)
            )
            may_go = is_taken or key in planned.cached or is_moved
            if planned.keys.get(block) != key and not may_go:
                yield f"block {block} has lost its content"
        contents = {
            (block, key)
            for sequence in (sequence for group in groups for sequence in group.unfinished)
            for block, key in zip(
                sequence.blocks, ctx.keys.of(sequence.id, sequence.slots // size), strict=False
            )
        }
        fresh = {*planned.keys.items()} - {*before.keys.items()} - contents
        if fresh:
            yield f"blocks {sorted(block for block, _ in fresh)} have contents of no request"


def _is_exchanged(step: Step) -> bool:
    """True if a decode was given a cached block for the one that it took and filled in this step.

    The block that it took is free again, and its earlier content is gone. Who was swapped in took
    all its blocks.
    """
    before, planned = step.before.pool.keys, step.planned.pool.keys
    held = {row.id: row.blocks for group in step.before.running for row in group.sequences}
    held |= {row.id: () for group in step.before.swapped for row in group.sequences}
    return any(
        block in before and planned.get(block) == before[block]
        for group in step.planned.running
        for row in group.sequences
        if row.id in held
        for block in row.blocks[len(held[row.id]) :]
    )


def _changed_hands(step: Step, pool: str, block: int) -> bool:
    """True if a block is held in another place than before, on the GPU or on the CPU."""
    on_cpu = pool == "cpu"
    before, planned = (
        {
            (sequence.id, place)
            for group in state.present
            for sequence in (group.sequences if group.is_swapped == on_cpu else ())
            for place, held in enumerate(sequence.blocks)
            if held == block
        }
        for state in (step.before, step.planned)
    )
    return bool(planned) and before.isdisjoint(planned)


@of_step("V0-PFX-9", _CACHED, applies=_is_caching)
@witness(lambda _, step: any(group.cached for group in step.after.running))
def what_was_cached_is_remembered(ctx: Context, step: Step) -> Iterator[str]:
    """How much of a prompt the cache had is remembered from its admission until it is computed or
    starts over; what waits or decodes remembers nothing.
    """
    # A swapped prompt may be forgotten by the release, see V0-SWP-16.
    before, planned = by_id(step.before.present), by_id(step.planned.present)
    for group in planned.values():
        was = before.get(group.id, group)
        forgets = is_released(ctx.config) and was.is_swapped and group.cached is None
        due = None if group.id in step.preempted else was.cached
        if group.id not in step.admitted and group.cached != due and not forgets:
            yield f"{group.id} remembers {group.cached} cached tokens, {due} before"
    for group in step.after.present:
        known = planned.get(group.id, group).cached
        due = known if group.is_prefill and group not in step.after.waiting else None
        if group.cached != due:
            yield f"{group.id} remembers {group.cached} cached tokens, {due} when it was decided"
