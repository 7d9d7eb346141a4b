"""How vLLM V1 is drawn: the token budget of a step, requests that load, drafts."""

from collections.abc import Iterator, Mapping

from checks.export.pages.picture import (
    Meter,
    Picture,
    Row,
    computed_in,
    held_cells,
    joined,
    scheduled_tokens,
)
from spec.vllm_v1.records import Context, Sequence, State, Step


def rows(ctx: Context, state: State, step: Step | None) -> Iterator[Row]:
    """The running requests, then those that hold blocks while their keys and values come."""
    size = ctx.config.block_size
    places = {"running": state.running, "skipped": state.skipped, "draining": state.draining}
    for place, requests in places.items():
        for one in requests:
            computed = computed_in(one, step)
            cells = held_cells(state.pool, one.blocks, size, filled=one.computed, computed=computed)
            yield Row(id=one.id, place=place, cells=joined(cells, size))


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """What the step computes against the token budget; the running requests."""
    yield scheduled_tokens(step, ctx.config.token_budget)
    running = len(step.planned.running)
    yield Meter(name="batch", value=running, limit=ctx.config.max_num_seqs, unit="requests")


def _owners(state: State) -> Mapping[str, Sequence]:
    return {one.id: one for one in (*state.present, *state.draining)}


PICTURE = Picture(
    rows=rows,
    numbers=("tokens", "computed", "generated", "drafts"),
    owners=_owners,
    queues=("skipped", "waiting"),
    meters=meters,
)
