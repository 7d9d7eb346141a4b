"""Blocks that lookups find, or requests count as computed, and that hold less than that.

They are hashed when a step is planned. A load that is then lost, or a victim of the step that had
got tokens already, leaves them so. Schedulers do not track them.
"""

from collections.abc import Collection, Iterable, Mapping

from reference.core.frozen_map import FrozenMap, updated, without
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
    planned = dict[str, Blocks]()
    tables = {row.id: row.blocks for row in before.running}
    for event in plan.events:
        if event.transition == "allocate":
            unfilled = without(unfilled, *event.after)
            tables[event.id] = (*event.before, *event.after)
        elif event.transition == "catch_up":
            computed, table = event.before, tables[event.id]
            planned[event.id] = _from(ctx, table, computed, computed + event.after)
        elif event.transition == "preempt":
            unfilled = FrozenMap({**planned.pop(event.id, {}), **unfilled})
    return unfilled


def when_computed(ctx: Context, unfilled: Blocks, rows: Iterable[tuple[Sequence, int]]) -> Blocks:
    """The unfilled blocks once each of these requests has computed so many tokens more."""
    size = ctx.config.block_size
    for row, count in rows if unfilled else ():
        for place, block in enumerate(row.blocks):
            start, end = row.computed - place * size, row.computed + count - place * size
            there = unfilled.get(block, size)
            if max(start, 0) <= there < end:
                unfilled = updated(unfilled, {block: min(end, size)})
    return FrozenMap((block, there) for block, there in unfilled.items() if there < size)


def left_by(ctx: Context, row: Sequence, valid: int) -> Blocks:
    """The blocks that a request leaves unfilled of which only its first tokens are valid."""
    return _from(ctx, row.blocks, valid, len(row.blocks) * ctx.config.block_size)


def _from(ctx: Context, table: tuple[int, ...], start: int, end: int) -> Blocks:
    """The blocks of the tokens from `start` to `end`, and how many of each are before these."""
    size = ctx.config.block_size
    places = range(start // size, int(cdiv(end, size)))
    return {table[place]: max(start - place * size, 0) for place in places}


def still(ctx: Context, state: State, unfilled: Blocks) -> tuple[tuple[int, int], ...]:
    """Those of the blocks that lookups find, or that a request counts as computed, in order."""
    size, rows = ctx.config.block_size, (*state.present, *state.draining)

    def is_counted(block: int, there: int) -> bool:
        tables = (row for row in rows if block in row.blocks)
        return any(row.computed > row.blocks.index(block) * size + there for row in tables)

    return tuple(
        (block, there)
        for block, there in sorted(unfilled.items())
        if block in state.pool.keys or is_counted(block, there)
    )
