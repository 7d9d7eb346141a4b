"""Blocks that lookups find, or requests count as computed, and that hold less than that.

They are hashed when a step is planned. A load that is then lost, or a victim of the step that had
got tokens already, leaves them so. Schedulers do not track them.
"""

from collections.abc import Collection, Iterable, Mapping

from reference.core.frozen_map import FrozenMap, updated, without
from reference.vllm_v1.groups import all_tables
from reference.vllm_v1.transitions import Plan
from spec.core.arithmetic import cdiv
from spec.vllm_v1.records import Context, Sequence, State

Blocks = Mapping[int, int]  # of each, how many of its first tokens are there


def after_step(
    ctx: Context,
    before: State,
    plan: Plan,
    after: State,
    missing: Collection[int],
    undone: Collection[str],
) -> tuple[tuple[int, int], ...]:
    """The unfilled blocks after a step, in order.

    `missing`: blocks that lost loads should have filled. `undone`: requests that read them.
    """
    scheduled = plan.scheduled
    rows = [row for row in plan.state.running if row.id in scheduled and row.id not in undone]
    blocks = when_decided(ctx, before, plan)
    blocks = when_computed(ctx, blocks, ((row, scheduled[row.id]) for row in rows))
    running = {row.id: row for row in after.running}
    for row in plan.state.running if missing else ():
        read = row.computed - sum(flight.scheduled.get(row.id, 0) for flight in before.flights)
        held = row.blocks[: int(cdiv(read, ctx.config.block_size))]
        places = [place for place, block in enumerate(held) if block in missing]
        if places and (row.id in scheduled or read < row.computed):
            first = min(read, places[0] * ctx.config.block_size)
            valid = running[row.id].computed if row.id in running else first
            blocks = {**blocks, **left_by(ctx, row, valid)}
    return still(ctx, after, blocks)


def when_decided(ctx: Context, before: State, plan: Plan) -> Blocks:
    """The unfilled blocks once all is decided."""
    unfilled: Blocks = FrozenMap(before.unfilled or ())
    for event in plan.events:
        if event.transition in ("allocate", "allocate_in_group"):
            unfilled = without(unfilled, *event.after)
        elif event.transition == "preempt":
            row, tokens = plan.victims[event.id]
            end = row.computed + tokens
            planned = _from(ctx, row, row.computed, end) if tokens else {}
            unfilled = FrozenMap({**planned, **unfilled})
    return unfilled


def when_computed(ctx: Context, unfilled: Blocks, rows: Iterable[tuple[Sequence, int]]) -> Blocks:
    """The unfilled blocks once each of these requests has computed so many tokens more."""
    for row, count in rows if unfilled else ():
        for group, table in all_tables(ctx, row):
            unfilled = _filled_in(unfilled, table, group.block_size, row.computed, count)
    return unfilled


def _filled_in(
    unfilled: Blocks, table: tuple[int, ...], size: int, computed: int, count: int
) -> Blocks:
    """The unfilled blocks once `count` tokens more are computed in a table."""
    for place, block in enumerate(table):
        start, end = computed - place * size, computed + count - place * size
        if max(start, 0) <= unfilled.get(block, size) < end:
            unfilled = without(unfilled, block) if end >= size else updated(unfilled, {block: end})
    return unfilled


def left_by(ctx: Context, row: Sequence, valid: int) -> Blocks:
    """The blocks that a request leaves unfilled of which only its first tokens are valid."""
    return _from(ctx, row, valid, len(row.blocks) * ctx.config.block_size)


def _from(ctx: Context, row: Sequence, start: int, end: int) -> Blocks:
    """The blocks of the tokens from `start` to `end`, and how many of each are before these.

    Of a group of states the block of the last token.
    """
    unfilled = {}
    for group, table in all_tables(ctx, row):
        size = group.block_size
        first = end - 1 if group.is_mamba else start
        for place in range(first // size, int(cdiv(end, size))):
            unfilled[table[place]] = max(start - place * size, 0)
    return unfilled


def still(ctx: Context, state: State, unfilled: Blocks) -> tuple[tuple[int, int], ...]:
    """Those of the blocks that lookups find, or that a request counts as computed, in order."""
    rows = (*state.present, *state.draining) if unfilled else ()
    tables = [(row, *table) for row in rows for table in all_tables(ctx, row)]

    def is_counted(block: int, there: int) -> bool:
        return any(
            row.computed > table.index(block) * group.block_size + there
            for row, group, table in tables
            if block in table
        )

    return tuple(
        (block, there)
        for block, there in sorted(unfilled.items())
        if block in state.pool.keys or is_counted(block, there)
    )
