"""The groups of layers beside the first: their hits, blocks and keys.

Each function does nothing where there is one group. Source: vLLM 0.28.0, KV cache coordinator.
"""

from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from reference.core.block_pool import allocate, register, release
from spec.core.arithmetic import cdiv
from spec.core.blocks import BlockPool
from spec.vllm_v1.groups import (
    NULL_BLOCK,
    KvGroup,
    group_key,
    is_findable,
    last_state,
    most_blocks,
    retired_places,
    state_aligned_end,
    unread_blocks,
)
from spec.vllm_v1.records import Context, Sequence

Tables = tuple[tuple[int, ...], ...]


def tables_of(ctx: Context, sequence: Sequence) -> Iterator[tuple[KvGroup, tuple[int, ...]]]:
    """The request's block table in each group beside the first."""
    groups = ctx.config.groups
    yield from zip(groups, sequence.tables or ((),) * len(groups), strict=True)


def all_tables(ctx: Context, sequence: Sequence) -> Iterator[tuple[KvGroup, tuple[int, ...]]]:
    """The request's block table in each group, the first among them."""
    yield ctx.config.first_group, sequence.blocks
    yield from tables_of(ctx, sequence)


def real(tables: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The blocks in these tables, without the null block."""
    return tuple(block for table in tables for block in table if block != NULL_BLOCK)


# --- hits -----------------------------------------------------------------------------------------


def common_prefix(
    ctx: Context, pool: BlockPool, sequence: Sequence, longest: int
) -> tuple[int, Tables]:
    """The longest aligned prefix of at most `longest` tokens that all groups have, and its blocks.

    A group has a prefix if it has all blocks of which the token behind it reads something.
    """
    for end in range(longest, 0, -ctx.config.hit_alignment):
        tables = [_cached(ctx, pool, sequence, group, end) for group in ctx.config.groups]
        found = tuple(table for table in tables if table is not None)
        if len(found) == len(tables):
            return end, found
    return 0, ((),) * len(ctx.config.groups)


def _cached(
    ctx: Context, pool: BlockPool, sequence: Sequence, group: KvGroup, end: int
) -> tuple[int, ...] | None:
    """The group's cached blocks for a prefix of `end` tokens; None if it lacks one."""
    unread = _unread(group, end)
    table = [NULL_BLOCK] * unread
    for place in range(unread, end // group.block_size):
        key = group_key(ctx.keys, sequence.id, group, place)
        if key not in pool.cached:
            return None
        table.append(pool.cached[key][0])
    return tuple(table)


# --- blocks ---------------------------------------------------------------------------------------


@frozen
class Positions:
    """The positions of a request up to which it needs blocks.

    `end`: of its tokens, once those of the step are computed. `slots`: of its lookahead, too; a
    drafter has no states (vLLM 0.28.0).
    """

    end: int
    slots: int

    def of(self, group: KvGroup) -> int:
        """The positions for which a group needs blocks."""
        return self.end if group.is_mamba else self.slots


def missing(ctx: Context, tables: Tables, needed: Positions, *, ever: bool = False) -> list[int]:
    """Blocks that each of these tables lacks for these positions.

    `ever`: of those that a request holds at one time until it has computed all of them.
    """
    return [
        _lacking(ctx, group, needed.of(group), len(table), ever=ever)
        for group, table in zip(ctx.config.groups, tables, strict=True)
    ]


def _lacking(ctx: Context, group: KvGroup, end: int, held: int, *, ever: bool) -> int:
    places, config = int(cdiv(end, group.block_size)), ctx.config
    if group.is_mamba:
        return min(max(places - held, 0), 1)
    if ever and group.reach is not None:
        limits = (config.uncertain_tokens, config.max_model_len, group.block_size)
        places = min(places, int(most_blocks(group.reach, *limits)))
    return max(places - held, 0)


def with_hits(ctx: Context, sequence: Sequence, hits: Tables, computed: int) -> Tables:
    """The request's block table in each group; one that begins takes its hits.

    Not those of which the token behind its `computed` tokens, brought ones included, reads nothing.
    """
    if sequence.tables or not ctx.config.groups:
        return sequence.tables
    tables = []
    for group, found in zip(ctx.config.groups, hits or ((),) * len(ctx.config.groups), strict=True):
        unread = _unread(group, computed)
        tables.append((*(NULL_BLOCK,) * unread, *found[unread:]))
    return tuple(tables)


def _unread(group: KvGroup, computed: int) -> int:
    """Leading blocks of which the token behind the `computed` ones reads nothing."""
    return 0 if group.reach is None else int(unread_blocks(computed, group.reach, group.block_size))


def revived(ctx: Context, pool: BlockPool, hits: Tables, computed: int) -> int:
    """Blocks of these hits that no request holds; a state counts also if it is not taken."""
    counted = (
        found if group.is_mamba else found[_unread(group, computed) :]
        for group, found in zip(ctx.config.groups, hits, strict=False)
    )
    return sum(block not in pool.references for block in real(counted))


def allocated(
    ctx: Context, pool: BlockPool, tables: Tables, needed: Positions
) -> tuple[BlockPool, Tables]:
    """The tables with new blocks for these positions.

    Of a group of states only the last place gets one.
    """
    grown = []
    for group, table in zip(ctx.config.groups, tables, strict=True):
        end = needed.of(group)
        count = _lacking(ctx, group, end, len(table), ever=False)
        pool, blocks = allocate(pool, count)
        skipped = max(int(cdiv(end, group.block_size)) - len(table) - count, 0)
        grown.append((*table, *(NULL_BLOCK,) * skipped, *blocks))
    return pool, tuple(grown)


def cached(ctx: Context, pool: BlockPool, sequence: Sequence, tokens: int) -> BlockPool:
    """Let lookups find the request's blocks in the groups that are full of its first tokens.

    Those of which no hit could read anything are left out. `tokens`: whole blocks in each group.
    """
    for group, table in tables_of(ctx, sequence):
        fresh = [
            place
            for place, block in enumerate(table[: tokens // group.block_size])
            if block != NULL_BLOCK
            and block not in pool.keys
            and is_findable(group, place, ctx.config.hit_alignment)
        ]
        keys = [group_key(ctx.keys, sequence.id, group, place) for place in fresh]
        pool = register(pool, [table[place] for place in fresh], keys)
    return pool


def freed(pool: BlockPool, tables: Tables) -> BlockPool:
    """A request gives the blocks of its tables back, each table's tail first."""
    for table in tables:
        pool = release(pool, real((table,)))
    return pool


def without_unread(
    ctx: Context, pool: BlockPool, sequence: Sequence, certain: int
) -> tuple[BlockPool, Sequence, list[tuple[int, tuple[int, ...]]]]:
    """Give back the blocks of which no token reads anything behind the `certain` ones.

    These have their results: no rejected draft takes the request back before their end. With the
    number of each group and its blocks.
    """
    if not sequence.tables:
        return pool, sequence, []
    tables, given = [], list[tuple[int, tuple[int, ...]]]()
    for group, table in tables_of(ctx, sequence):
        places = _retired(ctx, group, table, certain, sequence.grown_from)
        unread = tuple(table[place] for place in places)
        if unread:
            given.append((group.number, unread))
            pool = release(pool, unread)
        kept = (NULL_BLOCK if place in places else block for place, block in enumerate(table))
        tables.append(tuple(kept))
    return pool, evolve(sequence, tables=tuple(tables)), given


def _retired(
    ctx: Context, group: KvGroup, table: tuple[int, ...], certain: int, grown_from: int
) -> list[int]:
    """The places of a table whose blocks are given back."""
    if group.reach is None:
        return []
    unread = _unread(group, certain)
    over_gaps = not (group.is_mamba and ctx.config.leaves_states)
    return retired_places(table, unread, grown_from, over_gaps=over_gaps)


def grown_from(ctx: Context, sequence: Sequence, grown: Tables) -> int:
    """How many places the tables of states had before they grew, now or before, where it counts."""
    if not ctx.config.leaves_states:
        return 0
    held = [table for group, table in tables_of(ctx, sequence) if group.is_mamba]
    after = [table for group, table in zip(ctx.config.groups, grown, strict=True) if group.is_mamba]
    return len(held[0]) if len(after[0]) > len(held[0]) else sequence.grown_from


# --- states ---------------------------------------------------------------------------------------


def chunk(ctx: Context, sequence: Sequence, start: int, new: int, junction: int) -> int:
    """Tokens of a chunk of `new` tokens that ends where a state may lie, if there are states."""
    config, tokens = ctx.config, sequence.tokens
    if not config.has_states:
        return new
    size, for_same = config.block_size, config.behaviour.keeps_state_for_same_prompt
    end = state_aligned_end(
        start,
        start + new,
        max(sequence.prompt_len, tokens - 1),
        size,
        min(config.token_budget, config.long_prefill_token_threshold or config.token_budget),
        last=last_state(tokens, size, for_same_prompt=for_same),
        junction=junction,
    )
    return end - start


def fresh_states(
    ctx: Context, before: BlockPool, after: BlockPool, grown: Sequence, held: Tables
) -> frozenset[bytes]:
    """The keys of the request's states that can be found since one pool became the other.

    `held`: the blocks that it had, or took from the cache. A new one may have its old content.
    """
    old = {block for block in real(held) if block in before.keys}
    return frozenset(
        after.keys[block]
        for group, table in tables_of(ctx, grown)
        for block in table
        if group.is_mamba and block in after.keys and block not in old
    )


def reads_fresh_state(ctx: Context, pool: BlockPool, hits: Tables, fresh: frozenset[bytes]) -> bool:
    """True if a hit ends with a state that this step computes: it may be read in the next."""
    last = (table[-1] for group, table in zip(ctx.config.groups, hits, strict=False) if table)
    return any(pool.keys.get(block) in fresh for block in last)
