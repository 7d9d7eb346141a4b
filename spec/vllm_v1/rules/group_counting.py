"""Counts of several groups of layers for the rules, by definition: position by position."""

from collections.abc import Iterable, Iterator

from spec.vllm_v1.groups import NULL_BLOCK, KvGroup
from spec.vllm_v1.records import Context, Sequence
from spec.vllm_v1.rules.counting import lacking_blocks, token_limit


def tables_by_group(ctx: Context, row: Sequence) -> Iterator[tuple[KvGroup, tuple[int, ...]]]:
    """The request's block table in each group, the first among them."""
    further = row.tables or ((),) * len(ctx.config.groups)
    yield from zip(ctx.config.all_groups, (row.blocks, *further), strict=True)


def read_before(group: KvGroup, position: int) -> range:
    """Positions before its own that the token at `position` reads in a group.

    Of a group of states it is the last position: the state after it stands for all before.
    """
    first = 0 if group.reach is None else max(position - group.reach + 1, 0)
    return range(first, position)


def places_of(group: KvGroup, positions: range) -> range:
    """Places of a group's block table in which these positions lie."""
    if not positions:
        return range(0)
    return range(positions[0] // group.block_size, positions[-1] // group.block_size + 1)


def places_needed(group: KvGroup, start: int, end: int) -> set[int]:
    """Places that must have a block in a step that computes the tokens from `start` to `end`.

    A group of states needs that of the state that is continued, and that of the last token.
    """
    before = {*places_of(group, read_before(group, start))}
    return before | {*places_of(group, range(end - 1 if group.is_mamba else start, end))}


def first_read(group: KvGroup, computed: int) -> int:
    """The first place of which the token behind the `computed` ones reads something."""
    read = places_of(group, read_before(group, computed))
    return read.start if read else computed // group.block_size


def lacking_at_one_time(ctx: Context, tables: Iterable[tuple[int, ...]], end: int) -> int:
    """Blocks that these tables lack in all groups together until `end` tokens are computed.

    In a group with a window those held at one time: for the window and a whole step, and one block
    more where these do not begin with a block.
    """
    return sum(
        _lacking(ctx, group, len(table), end, ever=True)
        for group, table in zip(ctx.config.all_groups, tables, strict=True)
    )


def lacking_at_once(ctx: Context, tables: Iterable[tuple[int, ...]], end: int) -> int:
    """Blocks that these tables lack in all groups together for the tokens up to `end`."""
    return sum(
        _lacking(ctx, group, len(table), end, ever=False)
        for group, table in zip(ctx.config.all_groups, tables, strict=True)
    )


def _lacking(ctx: Context, group: KvGroup, held: int, end: int, *, ever: bool) -> int:
    places = len(range(0, end, group.block_size))
    if ever and group.reach is not None:
        tokens = min(group.reach - 1 + token_limit(ctx.config), ctx.config.max_model_len)
        places = min(places, len(range(0, tokens, group.block_size)) + 1)
    count = max(places - held, 0)
    return min(count, 1) if group.is_mamba else count


def lacking_in_groups(ctx: Context, row: Sequence, start: int, end: int) -> int:
    """Blocks that a request lacks in all groups together, for the tokens from `start` to `end`."""
    count = lacking_blocks(ctx, end, len(row.blocks))
    for group, table in [*tables_by_group(ctx, row)][1:]:
        needed = places_needed(group, start, end)
        count += len([place for place in needed if place >= len(table)])
    return count


def most_held(ctx: Context, group: KvGroup, end: int) -> int:
    """Blocks that a request holds in a group at most at one time until `end` tokens are computed.

    In a step as large as the budget that begins anywhere.
    """
    most = token_limit(ctx.config)
    starts = range(end) if group.reach is not None else range(1)
    step = end if group.reach is None else most
    return max(len(places_needed(group, start, min(start + step, end))) for start in starts)


def held_blocks(table: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks of a table, without the places that have none."""
    return tuple(block for block in table if block != NULL_BLOCK)
