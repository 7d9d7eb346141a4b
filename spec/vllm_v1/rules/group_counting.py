"""Counts of several groups of layers for the rules, by definition: position by position."""

from collections.abc import Iterable, Iterator

from spec.vllm_v1.groups import NULL_BLOCK, KvGroup
from spec.vllm_v1.records import Context, Sequence, Step
from spec.vllm_v1.rules.counting import lacking_blocks, needed_slots, token_limit


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


def slots_in(ctx: Context, group: KvGroup, end: int) -> int:
    """Positions that need slots in a group to compute those below `end`.

    The drafter whose tokens are the lookahead has no states.
    """
    return end if group.is_mamba else needed_slots(ctx, end)


def places_in(ctx: Context, group: KvGroup, end: int) -> int:
    """Places of the group's table that the positions below `end` need, lookahead included."""
    return len(range(0, slots_in(ctx, group, end), group.block_size))


def places_needed(ctx: Context, group: KvGroup, tokens: range) -> set[int]:
    """Places that must have a block in a step that computes these tokens.

    A group of states needs that of the state that is continued, and that of the last token.
    """
    end = slots_in(ctx, group, tokens.stop)
    before = {*places_of(group, read_before(group, tokens.start))}
    return before | {*places_of(group, range(end - 1 if group.is_mamba else tokens.start, end))}


def uncertain(step: Step, row: Sequence) -> list[range]:
    """The tokens of a running request whose results are not known when all is decided.

    Those of each step in flight, then its own; of drafts that are rejected some come again.
    """
    given = [flight.scheduled.get(row.id, 0) for flight in step.before.flights]
    spans, start = [], row.computed - sum(given)
    for count in (*given, step.scheduled.get(row.id, 0)):
        spans += [range(start, start + count)] if count else []
        start += count
    return spans


def first_read(group: KvGroup, computed: int) -> int:
    """The first place of which the token behind the `computed` ones reads something."""
    read = places_of(group, read_before(group, computed))
    return read.start if read else computed // group.block_size


def lacking_at_one_time(ctx: Context, tables: Iterable[tuple[int, ...]], end: int) -> int:
    """Blocks that these tables lack in all groups together until `end` tokens are computed.

    In a group with a window those held at one time: for the window, a whole step and those in
    flight, and one block more where these do not begin with a block.
    """
    return sum(
        _lacking(ctx, group, len(table), end, ever=True)
        for group, table in zip(ctx.config.all_groups, tables, strict=True)
    )


def lacking_at_once(ctx: Context, tables: Iterable[tuple[int, ...]], end: int) -> int:
    """Blocks that these tables lack in all groups together for the tokens up to `end`."""
    return sum(
        _lacking(ctx, group, len(table), slots_in(ctx, group, end), ever=False)
        for group, table in zip(ctx.config.all_groups, tables, strict=True)
    )


def _lacking(ctx: Context, group: KvGroup, held: int, slots: int, *, ever: bool) -> int:
    places = len(range(0, slots, group.block_size))
    if ever and group.reach is not None and not group.is_mamba:
        planned = token_limit(ctx.config) * (1 + ctx.config.steps_in_flight)
        tokens = min(group.reach - 1 + planned, ctx.config.max_model_len)
        places = min(places, len(range(0, tokens, group.block_size)) + 1)
    count = max(places - held, 0)
    return min(count, 1) if group.is_mamba else count


def lacking_in_groups(ctx: Context, row: Sequence, tokens: range) -> int:
    """Blocks that a request lacks in all groups together, to compute these tokens."""
    count = lacking_blocks(ctx, needed_slots(ctx, tokens.stop), len(row.blocks))
    for group, table in [*tables_by_group(ctx, row)][1:]:
        needed = places_needed(ctx, group, tokens)
        count += len([place for place in needed if place >= len(table)])
    return count


def most_held(ctx: Context, group: KvGroup, end: int) -> int:
    """Blocks that a request holds in a group at most at one time until `end` tokens are computed.

    In steps as large as the budget that begin anywhere, as many as may be in flight and one more;
    within the model length.
    """
    end = min(end, ctx.config.max_model_len)
    most = token_limit(ctx.config) * (1 + ctx.config.steps_in_flight)
    starts = range(end) if group.reach is not None else range(1)
    step = end if group.reach is None else most
    spans = (range(start, min(start + step, end)) for start in starts)
    return max(len(places_needed(ctx, group, span)) for span in spans)


def held_blocks(table: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks of a table, without the places that have none."""
    return tuple(block for block in table if block != NULL_BLOCK)
