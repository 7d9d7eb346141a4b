"""How vLLM V1 is drawn: the token budget of a step, requests that load, drafts."""

from collections.abc import Iterator, Mapping

from checks.export.pages.picture import (
    Meter,
    Picture,
    Row,
    computed_positions,
    held_cells,
    joined,
    scheduled_tokens,
)
from spec.vllm_v1.config import Scheduling
from spec.vllm_v1.records import Context, Load, Sequence, State, Step


def rows(ctx: Context, state: State, step: Step | None) -> Iterator[Row]:
    """The running requests, then those that hold blocks while their keys and values come."""
    size = ctx.config.block_size
    places = {"running": state.running, "skipped": state.skipped, "draining": state.draining}
    for place, requests in places.items():
        for one in requests:
            computed = computed_positions(one, step)
            cells = held_cells(state.pool, one.blocks, size, filled=one.computed, computed=computed)
            yield Row(id=one.id, place=place, cells=joined(cells, size))


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """What the step computes against the token budget; the running requests."""
    yield scheduled_tokens(step, ctx.config.token_budget)
    running = len(step.planned.running)
    yield Meter(name="batch", value=running, limit=ctx.config.max_num_seqs, unit="requests")


def refused(ctx: Context, step: Step) -> str | None:
    """The one that is looked at next: of those passed over before, else of the waiting.

    By priority either may be; then it is not said.
    """
    passed, waiting = (
        [one.id for one in queue if one.load is not Load.LOADING]
        for queue in (step.after.skipped, step.after.waiting)
    )
    if passed and waiting and ctx.config.scheduling is Scheduling.PRIORITY:
        return None
    known = {one.id for one in step.before.queued}
    return next((one for one in (*passed, *waiting) if one in known), None)


def _owners(state: State) -> Mapping[str, Sequence]:
    return {one.id: one for one in (*state.present, *state.draining)}


PICTURE = Picture(
    rows=rows,
    numbers=("tokens", "computed", "generated", "drafts"),
    owners=_owners,
    queues=("skipped", "waiting"),
    meters=meters,
    refused=refused,
)
