"""Rules of prefix caching: what is hashed, what is found.

Source: vllm-v1, "Prefix Caching - Shared KV Blocks".
"""

from collections.abc import Iterator

from spec.core.changes import changed
from spec.core.judging import begin_alike
from spec.core.requests import BlockKey
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import blocks_to_find
from spec.vllm_v1.rules.registry import always, by_id, code, hits, of_step, text, witness

_PREFIX = text("Prefix Caching - Shared KV Blocks")


def _caching(config: VllmV1Config) -> bool:
    return config.prefix_caching


@of_step("V1-KV-4", _PREFIX, witness=lambda _, step: hits(step), applies=_caching)
def longest_prefix_is_hit(ctx: Context, step: Step) -> Iterator[str]:
    """A request takes the cached blocks of its longest prefix, whole blocks only."""
    # The next block was not in the cache all the time, nor held by one that runs and was asked for
    # the same.
    before, planned, size = step.before.pool, step.planned.pool, ctx.config.block_size
    rows, found = by_id(step.before.queued), hits(step)
    started = [event.id for event in step.happened("admit", "load")]
    for one_id in started:
        row = rows[one_id]
        if row.computed:
            continue
        most = blocks_to_find(ctx, row.tokens)
        keys, taken = ctx.keys.of(one_id, most), found.get(one_id, ())
        wrong = [
            block for block, key in zip(taken, keys, strict=False) if planned.keys.get(block) != key
        ]
        if wrong:
            yield f"{one_id} takes {wrong} for other tokens"
        if len(taken) < most and {*before.cached.get(keys[len(taken)], ())} & {
            *planned.cached.get(keys[len(taken)], ())
        }:
            yield f"{one_id} takes {len(taken)} cached blocks, the next is cached too"
        prompt, end = ctx.requests[one_id].prompt, (len(taken) + 1) * size
        for other in step.before.running if len(taken) < most else ():
            if end <= other.computed and prompt.begins_like(ctx.requests[other.id].prompt, end):
                yield f"{one_id} takes {len(taken)} cached blocks, {other.id} has the next"


@of_step("V1-KV-5", code("limit of a hit"), applies=_caching)
@witness(
    lambda ctx, step: any(
        (len(found) + 1) * ctx.config.block_size == by_id(step.before.present)[one_id].tokens
        for one_id, found in hits(step).items()
    )
)
def last_token_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """However much of a request is cached, one token at least is computed, and its whole block."""
    # A fully cached prompt computes its last block again.
    rows = by_id(step.before.present)
    for one_id, found in hits(step).items():
        if len(found) * ctx.config.block_size >= rows[one_id].tokens:
            yield f"{one_id} takes {len(found)} blocks of {rows[one_id].tokens} tokens"
    planned = by_id(step.planned.running)
    for one_id in step.admitted:
        if planned[one_id].computed >= planned[one_id].tokens:
            yield f"{one_id} has nothing left to compute"


@always("V1-KV-10", _PREFIX, witness=lambda _, step: hits(step), applies=_caching)
def found_blocks_are_computed(ctx: Context, state: State) -> Iterator[str]:
    """A block that can be found and is held is full of computed tokens."""
    # One of its holders at least has computed it to its end.
    size = ctx.config.block_size
    rows = (*state.present, *state.draining)
    computed = {block for one in rows for block in one.blocks[: one.computed // size]}
    held = {block for one in rows for block in one.blocks}
    # A loaded request computes its last token again: the block of it is full all the same.
    nearly = {
        one.blocks[one.computed // size]
        for one in state.queued
        if (one.computed + 1) % size == 0 and one.computed // size < len(one.blocks)
    }
    empty = (held - computed - nearly) & state.pool.keys.keys()
    if empty:
        yield f"blocks {sorted(empty)} can be found and are not computed"


@always("V1-KV-11", code("allocate_slots"), applies=_caching)
@witness(
    lambda _, step: any(count > step.accepted.get(one, 0) for one, count in step.drafts.items())
)
def drafts_are_not_cached(ctx: Context, state: State) -> Iterator[str]:
    """Only blocks full of a request's own final tokens are cached, drafts never; equal hashes mean
    equal prefixes.
    """
    # Each cached block in a table has the key of that request at that place.
    for one in state.present:
        full = one.tokens // ctx.config.block_size
        keys = ctx.keys.of(one.id, full)
        for place, block in enumerate(one.blocks):
            key = state.pool.keys.get(block)
            if key is not None and (place >= full or key != keys[place]):
                yield f"{one.id}: block {block} at place {place} is cached with other tokens"


Contents = set[tuple[int, BlockKey]]  # blocks, each with what it holds


def _filled(ctx: Context, one: Sequence, computed: int) -> Contents:
    """What the blocks of a request hold of which so many tokens are computed.

    A loaded request computes its last token again: the block of it is full all the same.
    """
    size = ctx.config.block_size
    full = (computed + (one.load is Load.LOADED)) // size
    return {*zip(one.blocks, ctx.keys.of(one.id, full), strict=False)}


@of_step("V1-KV-12", _PREFIX, applies=_caching)
@witness(lambda _, step: step.after.pool.keys.keys() - step.before.pool.keys.keys())
def what_is_found_anew_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """A step lets only those contents be found that a request computed, or that were brought."""
    # A request that held the block before the step or after it, or left in it.
    before, after = step.before.pool.keys, step.after.pool.keys
    moved = ((block, after.get(block)) for block in changed(before, after))
    fresh = {(block, key) for block, key in moved if key is not None and before.get(block) != key}
    if not fresh:
        return
    stays = by_id(step.after.present)
    rows = (*step.before.present, *step.before.draining, *stays.values(), *step.after.draining)
    for one in rows:
        fresh -= _filled(ctx, one, one.computed)
    for one in step.planned.running:
        if one.id not in stays:
            fresh -= _filled(ctx, one, one.computed + step.scheduled.get(one.id, 0))
    if fresh:
        yield f"blocks {sorted(block for block, _ in fresh)} can be found, no request computed them"


@of_step("V1-KV-14", _PREFIX, applies=_caching)
@witness(lambda _, step: any(count > 1 for count in step.planned.pool.references.values()))
def sharers_have_equal_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """A request that takes a cached block which another one holds has the same tokens as that
    one, up to the block's end.
    """
    # Compared token by token, not by hashes, up to the last block that both hold.
    size, rows = ctx.config.block_size, (*step.planned.present, *step.planned.draining)
    for one_id, found in hits(step).items():
        for other in rows:
            held = {*other.blocks} if other.id != one_id else {}
            shared = [place for place, block in enumerate(found, start=1) if block in held]
            requests = ctx.requests[one_id], ctx.requests[other.id]
            if shared and not begin_alike(*requests, shared[-1] * size):
                yield f"{one_id} and {other.id} share {len(shared)} blocks, their tokens differ"
