"""The block tables of groups of layers beside the first, in a plan.

Source: vLLM 0.28.0, KV cache coordinator. The formulas are those of `spec/vllm_v1/groups.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from engine.vllm_v1.blocks import PoolDraft
from engine.vllm_v1.plan import Blocks, GroupBlocks, Tables
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.state import SchedulerState
from spec.core.arithmetic import cdiv
from spec.core.requests import BlockKey
from spec.vllm_v1.config import slots_end
from spec.vllm_v1.groups import (
    NULL_BLOCK,
    KvGroup,
    is_findable,
    last_state,
    most_blocks,
    retired_places,
    state_aligned_end,
    unread_blocks,
)

Positions: TypeAlias = tuple[int, int]  # the end of the tokens to compute, and of the lookahead
_GROUP_BITS = 96  # more than a number has that is a key


def real(table: Iterable[int]) -> Blocks:
    """The blocks of a table, without the null block."""
    return tuple(block for block in table if block != NULL_BLOCK)


def empty(state: SchedulerState) -> Tables:
    """The tables of a request without blocks."""
    return ((),) * len(state.groups)


def key_at(row: RequestState, state: SchedulerState, group: KvGroup, place: int) -> BlockKey:
    """The key of the row's block at this place of the group's table."""
    blocks = (place + 1) * group.block_size // state.config.block_size
    state.hash_blocks(row, blocks)
    key: Any = row.hashes[blocks - 1]
    is_number = isinstance(key, int)  # in a simulation
    numbered: BlockKey = key + (group.number << _GROUP_BITS if is_number else bytes([group.number]))
    return numbered


# --- hits -----------------------------------------------------------------------------------------


def common_hits(
    state: SchedulerState, pool: PoolDraft, row: RequestState, longest: int
) -> tuple[int, Tables]:
    """The longest prefix that all groups have, of at most `longest` tokens, and its blocks."""
    for end in range(longest, 0, -state.alignment):
        tables = []
        for group in state.groups:
            table = _hit(state, pool, row, group, end)
            if table is None:
                break
            tables.append(table)
        else:
            return end, tuple(tables)
    return 0, empty(state)


def _hit(
    state: SchedulerState, pool: PoolDraft, row: RequestState, group: KvGroup, end: int
) -> Blocks | None:
    """The group's cached blocks for this prefix, from the last on; None if it lacks one."""
    size = group.block_size
    unread = _unread(group, end)
    found = []
    for place in range(end // size - 1, unread - 1, -1):
        block = pool.lookup(key_at(row, state, group, place))
        if block is None:
            return None
        found.append(block)
    return (NULL_BLOCK,) * unread + tuple(reversed(found))


# --- blocks ---------------------------------------------------------------------------------------


def lacking(
    state: SchedulerState, tables: Tables, needed: Positions, *, ever: bool = False
) -> list[int]:
    """Blocks that each table lacks for these positions.

    `ever`: of those that a request holds at one time until it has computed all of them.
    """
    return [
        _lacking(state, group, len(table), _end(group, needed), ever=ever)
        for group, table in zip(state.groups, tables, strict=True)
    ]


def positions(state: SchedulerState, end: int) -> Positions:
    """Those that need blocks for tokens up to `end`, lookahead included."""
    config = state.config
    return end, int(slots_end(end, config.num_lookahead_tokens, config.max_model_len))


def _end(group: KvGroup, needed: Positions) -> int:
    return needed[0] if group.is_mamba else needed[1]  # a drafter has no states


def _lacking(state: SchedulerState, group: KvGroup, held: int, end: int, *, ever: bool) -> int:
    config, size = state.config, group.block_size
    places = int(cdiv(end, size))
    if group.is_mamba:
        return min(max(places - held, 0), 1)
    if ever and group.reach is not None:
        most = most_blocks(group.reach, config.uncertain_tokens, config.max_model_len, size)
        places = min(places, int(most))
    return max(places - held, 0)


def with_hits(state: SchedulerState, hits: Tables, computed: int) -> Tables:
    """The tables of a request that begins with its hits and has `computed` tokens then.

    Without the hits of which the token behind these reads nothing.
    """
    tables = []
    for group, found in zip(state.groups, hits, strict=True):
        count = _unread(group, computed)
        tables.append((NULL_BLOCK,) * count + found[count:])
    return tuple(tables)


def _unread(group: KvGroup, computed: int) -> int:
    reach, size = group.reach, group.block_size
    return 0 if reach is None else int(unread_blocks(computed, reach, size))


def revived(state: SchedulerState, pool: PoolDraft, hits: Tables, computed: int) -> int:
    """Blocks of these hits that no request holds; a state counts also if it is not taken."""
    count = 0
    for group, found in zip(state.groups, hits, strict=True):
        taken = real(found if group.is_mamba else found[_unread(group, computed) :])
        count += sum(pool.references(block) == 0 for block in taken)
    return count


def taken(tables: Tables, hits: Tables) -> GroupBlocks:
    """The tables that begin with these hits, before blocks are handed out."""
    found = (real(table[: len(hit)]) for table, hit in zip(tables, hits, strict=True))
    return GroupBlocks(tuple(found), ((),) * len(tables), tables)


def allocated(
    state: SchedulerState, pool: PoolDraft, held: GroupBlocks, needed: Positions
) -> GroupBlocks:
    """The tables with the next free blocks for these positions."""
    fresh, tables, grown_from = [], [], held.grown_from
    for group, table, given in zip(state.groups, held.tables, held.fresh, strict=True):
        end = _end(group, needed)
        count = _lacking(state, group, len(table), end, ever=False)
        if count and group.is_mamba and state.config.leaves_states:
            grown_from = len(table)
        blocks = pool.allocate(count) if count else ()
        gap = int(cdiv(end, group.block_size)) - len(table) - count
        fresh.append(given + blocks)
        tables.append(table + (NULL_BLOCK,) * gap + blocks)
    return GroupBlocks(held.hits, tuple(fresh), tuple(tables), held.junction, grown_from)


def unread(state: SchedulerState, row: RequestState, certain: int) -> tuple[Tables, list[Blocks]]:
    """The row's tables without what no token behind its `certain` ones reads; and that, by group.

    These have their results: no rejected draft takes the row back before their end.
    """
    kept, given = [], []
    for group, table in zip(state.groups, row.tables, strict=True):
        places = _retired(state, group, table, certain, row.grown_from)
        given.append(tuple(table[place] for place in places))
        left = (NULL_BLOCK if place in places else block for place, block in enumerate(table))
        kept.append(tuple(left) if places else table)
    return tuple(kept), given


def _retired(
    state: SchedulerState, group: KvGroup, table: Blocks, certain: int, grown_from: int
) -> list[int]:
    """The places of a table whose blocks are released."""
    if group.reach is None:
        return []
    count = _unread(group, certain)
    over_gaps = not (group.is_mamba and state.config.leaves_states)
    return retired_places(table, count, grown_from, over_gaps=over_gaps)


def findable(
    state: SchedulerState, row: RequestState, tables: Tables, tokens: range
) -> Iterator[tuple[KvGroup, int, BlockKey]]:
    """Blocks that are full of these tokens of the row and may be hit, with their keys."""
    for group, table in zip(state.groups, tables, strict=True):
        size = group.block_size
        for place in range(tokens.start // size, tokens.stop // size):
            block = table[place]
            if block != NULL_BLOCK and is_findable(group, place, state.alignment):
                yield group, block, key_at(row, state, group, place)


# --- states ---------------------------------------------------------------------------------------


def chunk(state: SchedulerState, row: RequestState, span: range, tokens: int, junction: int) -> int:
    """Tokens of the chunk `span` of a row that has `tokens`, up to where a state is kept."""
    config = state.config
    if not config.has_states:
        return len(span)
    size, same = config.block_size, config.behaviour.keeps_state_for_same_prompt
    most = min(state.budget, config.long_prefill_token_threshold or state.budget)
    end = state_aligned_end(
        span.start,
        span.stop,
        max(row.request.prompt_len, tokens - 1),
        size,
        most,
        last=last_state(tokens, size, for_same_prompt=same),
        junction=junction,
    )
    return end - span.start


def last_states(state: SchedulerState, hits: Sequence[Blocks]) -> Iterator[int]:
    """The states with which these hits end."""
    for group, table in zip(state.groups, hits, strict=True):
        if group.is_mamba and table:
            yield table[-1]
