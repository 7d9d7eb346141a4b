"""The KV cache manager: prefix hits of a request, and the slots of its new tokens.

Source: vllm-v1, "Memory Management & Preemption" and "Prefix Caching"; orders and limits that
the text leaves open are those of vLLM 0.28.0.
"""

from collections.abc import Iterable

from attrs import evolve, frozen

from reference.core.block_pool import allocate, lookup, register, release, touch
from reference.core.guards import require
from reference.vllm_v1 import groups
from spec.core.arithmetic import cdiv
from spec.core.blocks import BlockPool, missing_blocks
from spec.vllm_v1.config import hit_blocks_at_most, slots_end
from spec.vllm_v1.groups import aligned
from spec.vllm_v1.records import Context, Sequence


@frozen
class Demand:
    """What a request asks of the pool; lengths in tokens.

    `hits`: cached blocks that it takes. `external`: tokens that the connector brings. `new`:
    tokens to compute. `is_load`: the external tokens come later, nothing is computed now.
    `further_hits`: those in the groups of layers beside the first. `junction`: where the prefix
    ends that the first group has, if another has less of it.
    """

    new: int = 0
    hits: tuple[int, ...] = ()
    external: int = 0
    is_load: bool = False
    further_hits: groups.Tables = ()
    junction: int = 0


def found(ctx: Context, pool: BlockPool, sequence: Sequence) -> Demand:
    """The cached blocks of the longest prefix that all groups of layers have."""
    hits, size = prefix_hits(ctx, pool, sequence), ctx.config.block_size
    if not ctx.config.groups:
        return Demand(hits=hits)
    longest = int(aligned(len(hits) * size, ctx.config.hit_alignment))
    end, further = groups.common_prefix(ctx, pool, sequence, longest)
    parts = end < longest and ctx.config.has_states
    junction = longest if parts else 0
    return Demand(hits=hits[: end // size], further_hits=further, junction=junction)


def prefix_hits(ctx: Context, pool: BlockPool, sequence: Sequence) -> tuple[int, ...]:
    """The cached blocks of the longest prefix, at least one token short of all (V1-KV-5)."""
    if not (ctx.config.prefix_caching and ctx.requests[sequence.id].reads_cache):
        return ()
    at_most = int(hit_blocks_at_most(sequence.tokens, ctx.config.block_size))
    return lookup(pool, ctx.keys.of(sequence.id, at_most))


def is_brought(ctx: Context, request_id: str) -> bool:
    """True if the request takes what a connector has of it, and is to be answered.

    In 0.33.0 it does not if it reads no cache.
    """
    return ctx.requests[request_id].reads_cache or ctx.config.behaviour.loads_unread


def computed_with(ctx: Context, sequence: Sequence, demand: Demand) -> int:
    """Tokens that need not be computed: computed before, cached, and held by the connector."""
    return sequence.computed + len(demand.hits) * ctx.config.block_size + demand.external


def blocks_taken(ctx: Context, pool: BlockPool, sequence: Sequence, demand: Demand) -> int:
    """Free blocks that the demand uses up: new ones, and hits that no request holds."""
    needed = _needed(ctx, sequence, demand)
    return _missing(ctx, sequence, demand, needed) + _revived(ctx, pool, sequence, demand)


def _needed(ctx: Context, sequence: Sequence, demand: Demand) -> groups.Positions:
    """Positions for which the request needs blocks."""
    lookahead = 0 if demand.is_load else ctx.config.num_lookahead_tokens
    end = computed_with(ctx, sequence, demand) + demand.new
    return groups.Positions(end, int(slots_end(end, lookahead, ctx.config.max_model_len)))


def _missing(
    ctx: Context,
    sequence: Sequence,
    demand: Demand,
    needed: groups.Positions,
    *,
    ever: bool = False,
) -> int:
    """Blocks that it lacks for these positions, in all groups of layers.

    `ever`: of those that it holds at one time until it has computed all of them.
    """
    held = len(sequence.blocks) + len(demand.hits)
    tables = groups.with_hits(
        ctx, sequence, demand.further_hits, computed_with(ctx, sequence, demand)
    )
    further = groups.missing(ctx, tables, needed, ever=ever)
    return int(missing_blocks(needed.slots, held, ctx.config.block_size)) + sum(further)


def _revived(ctx: Context, pool: BlockPool, sequence: Sequence, demand: Demand) -> int:
    """Cached blocks that it takes, and that no request holds."""
    first = sum(block not in pool.references for block in demand.hits)
    computed = computed_with(ctx, sequence, demand)
    return first + groups.revived(ctx, pool, demand.further_hits, computed)


def fits(ctx: Context, pool: BlockPool, sequence: Sequence, demand: Demand) -> bool:
    """True if a running request's new tokens find their slots."""
    return blocks_taken(ctx, pool, sequence, demand) <= len(pool.free)


def fits_at_admission(
    ctx: Context,
    pool: BlockPool,
    sequence: Sequence,
    demand: Demand,
    in_progress: Iterable[Sequence],
) -> bool:
    """True if a waiting request finds its slots; if so configured, those of all its tokens.

    An asynchronous load also leaves what the prompts in progress still need, since it holds its
    blocks without getting anywhere (vLLM 0.28.0).
    """
    if ctx.config.reserve_full_prompt:
        whole = min(sequence.tokens, ctx.config.max_model_len)
        everything = groups.Positions(whole, whole)
        needed = _missing(ctx, sequence, demand, everything, ever=True)
        if needed + _revived(ctx, pool, sequence, demand) > len(pool.free):
            return False
    spoken_for = blocks_spoken_for(ctx, in_progress) if demand.is_load else 0
    return blocks_taken(ctx, pool, sequence, demand) <= len(pool.free) - spoken_for


def blocks_spoken_for(ctx: Context, in_progress: Iterable[Sequence]) -> int:
    """Blocks that prompts in progress still lack, and those of the drafts of a request that loads.

    In 0.33.0 a prompt in progress lacks the slots of its next step with drafts, too.
    """
    more = ctx.config.reserved_draft_slots
    ends = ((row, row.tokens + more) for row in in_progress)
    lacking = (
        _missing(ctx, row, Demand(), groups.Positions(end, end), ever=True) for row, end in ends
    )
    return int(cdiv(more, ctx.config.block_size)) + sum(lacking)


def allocate_slots(
    ctx: Context, pool: BlockPool, sequence: Sequence, demand: Demand
) -> tuple[BlockPool, Sequence]:
    """The request with its hits and new blocks, full blocks of final tokens cached at once.

    What the connector brings has its slots first, in all groups of layers. Drafts are not cached:
    they may be rejected. What is still being loaded is not cached either.
    """
    # guard
    require(fits(ctx, pool, sequence, demand), "allocate_slots", "V1-KV-1")
    # effect
    computed = computed_with(ctx, sequence, demand)
    grown = evolve(
        sequence,
        blocks=(*sequence.blocks, *demand.hits),
        tables=groups.with_hits(ctx, sequence, demand.further_hits, computed),
        computed=computed,
        junction=sequence.junction or demand.junction,
    )
    pool = touch(pool, groups.real(_hits_in(grown, demand)))
    if demand.external:
        pool, grown = _with_slots(ctx, pool, grown, groups.Positions(computed, computed))
    pool, grown = _with_slots(ctx, pool, grown, _needed(ctx, sequence, demand))
    if demand.is_load:
        return pool, grown
    return cache_blocks(ctx, pool, grown, min(computed + demand.new, grown.tokens)), grown


def _hits_in(sequence: Sequence, demand: Demand) -> groups.Tables:
    """The cached blocks that a request has taken: those at the beginnings of its tables."""
    further = zip(sequence.tables, demand.further_hits, strict=False)
    return demand.hits, *(table[: len(found)] for table, found in further)


def _with_slots(
    ctx: Context, pool: BlockPool, sequence: Sequence, needed: groups.Positions
) -> tuple[BlockPool, Sequence]:
    """The request with new blocks for these positions, in one group after the other."""
    lacking = missing_blocks(needed.slots, len(sequence.blocks), ctx.config.block_size)
    pool, blocks = allocate(pool, int(lacking))
    pool, tables = groups.allocated(ctx, pool, sequence.tables, needed)
    return pool, evolve(
        sequence,
        blocks=(*sequence.blocks, *blocks),
        tables=tables,
        grown_from=groups.grown_from(ctx, sequence, tables),
    )


def cache_blocks(ctx: Context, pool: BlockPool, sequence: Sequence, tokens: int) -> BlockPool:
    """Let lookups find the request's blocks that are full of its first `tokens` tokens.

    Where blocks of groups of layers differ in size: of a prefix that is whole in all of them.
    """
    if not ctx.config.prefix_caching:
        return pool
    tokens = int(aligned(tokens, ctx.config.hit_alignment))
    full = tokens // ctx.config.block_size
    fresh = [index for index in range(full) if sequence.blocks[index] not in pool.keys]
    if fresh:
        keys = ctx.keys.of(sequence.id, full)
        pool = register(
            pool, [sequence.blocks[index] for index in fresh], [keys[index] for index in fresh]
        )
    return groups.cached(ctx, pool, sequence, tokens)


def free_tables(ctx: Context, pool: BlockPool, row: Sequence) -> BlockPool:
    """A request gives all its blocks back, one group of layers after the other."""
    return groups.freed(free(ctx, pool, row.blocks), row.tables)


def free(ctx: Context, pool: BlockPool, blocks: tuple[int, ...]) -> BlockPool:
    """A request gives the blocks of its table back, the tail first."""
    released = release(pool, blocks)
    if ctx.config.behaviour.empty_blocks_first:
        return released
    freed = [block for block in reversed(blocks) if block not in released.references]
    return evolve(released, free=(*pool.free, *freed))
