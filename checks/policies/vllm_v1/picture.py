"""Pictures of vLLM V1: the token budget of a step, loading requests, drafts."""

from collections.abc import Iterator, Mapping
from itertools import chain

from checks.export.pages.picture import (
    Cells,
    Meter,
    Picture,
    Row,
    computed_positions,
    held_cells,
    joined,
    scheduled_tokens,
)
from spec.vllm_v1.config import Scheduling
from spec.vllm_v1.groups import NULL_BLOCK, KvGroup
from spec.vllm_v1.records import Context, Load, Sequence, State, Step


def rows(ctx: Context, state: State, step: Step | None) -> Iterator[Row]:
    """The running requests, then those that hold blocks while they load.

    The blocks of further groups of layers stand behind those of the first.
    """
    size = ctx.config.block_size
    places = {"running": state.running, "skipped": state.skipped, "draining": state.draining}
    for place, requests in places.items():
        for row in requests:
            computed = computed_positions(row, step)
            cells = held_cells(state.pool, row.blocks, size, filled=row.computed, computed=computed)
            further = (
                joined(_held_in_group(state, row, group, computed), group.block_size)
                for group in ctx.config.groups
            )
            all_cells = (*joined(cells, size), *chain.from_iterable(further))
            yield Row(id=row.id, place=place, cells=all_cells)


def _held_in_group(state: State, row: Sequence, group: KvGroup, computed: range) -> Iterator[Cells]:
    """The blocks of a request in a group of layers, without the places that have none."""
    table = row.tables[group.number - 1] if row.tables else ()
    size, filled = group.block_size, row.computed
    cells = held_cells(state.pool, table, size, filled=filled, computed=computed)
    return (cell for cell in cells if cell.blocks != (NULL_BLOCK,))


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """The tokens of the step with the token budget; the number of running requests."""
    yield scheduled_tokens(step, ctx.config.token_budget)
    running = len(step.planned.running)
    yield Meter(name="batch", value=running, limit=ctx.config.max_num_seqs, unit="requests")


def refused(ctx: Context, step: Step) -> str | None:
    """The next request in turn: the first passed over before, else the first that waits.

    Under priority either may be next; then the result is None.
    """
    passed, waiting = (
        [row.id for row in queue if row.load is not Load.LOADING]
        for queue in (step.after.skipped, step.after.waiting)
    )
    if passed and waiting and ctx.config.scheduling is Scheduling.PRIORITY:
        return None
    queued = {row.id for row in step.before.queued}
    return next((id_ for id_ in (*passed, *waiting) if id_ in queued), None)


def _owners(state: State) -> Mapping[str, Sequence]:
    return {row.id: row for row in (*state.present, *state.draining)}


PICTURE = Picture(
    rows=rows,
    numbers=("tokens", "computed", "generated", "drafts"),
    owners=_owners,
    queues=("skipped", "waiting"),
    meters=meters,
    refused=refused,
)
