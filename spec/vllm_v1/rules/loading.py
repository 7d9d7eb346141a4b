"""Rules of external keys and values: what loads is not schedulable, failures are made good.

Source: vllm-v1, "Prefix Caching" ("Remote cache too"); the rest is vLLM 0.28.0's.
"""

from collections.abc import Iterator
from functools import partial

from spec.vllm_v1.config import Connector, VllmV1Config, missing_blocks
from spec.vllm_v1.records import Context, Load, State, Step
from spec.vllm_v1.rules.registry import always, between, by_id, code, of_step, witness

_LOAD = code("KV connector")


def _async(config: VllmV1Config) -> bool:
    return config.connector is Connector.ASYNC


_of_loads = partial(of_step, source=_LOAD, applies=_async)
_between_loads = partial(between, source=_LOAD, applies=_async)


@_of_loads("V1-EXT-1")
@witness(lambda _, step: any(one.load is Load.LOADING for one in step.before.skipped))
def loading_is_not_scheduled(_ctx: Context, step: Step) -> Iterator[str]:
    """Whoever loads is not scheduled, preempted or finished."""
    # It stays as it is; its blocks are kept if its client leaves meanwhile.
    for one in step.before.skipped:
        after = step.after.draining if one.id in step.leavers else step.after.skipped
        if one.load is Load.LOADING and one not in after:
            yield f"{one.id} loads and is touched"


@always("V1-EXT-2", _LOAD, witness=lambda _, step: step.happened("load"), applies=_async)
def loading_has_its_blocks(ctx: Context, state: State) -> Iterator[str]:
    """Whoever loads has a block for every token on its way, and nobody can find them before they
    have come.
    """
    # The last of its blocks is one that is being written.
    for one in (*state.skipped, *state.draining):
        if one.load is not Load.LOADING:
            continue
        covered = len(one.blocks) * ctx.config.block_size
        if covered < one.computed or one.blocks[-1] in state.pool.keys:
            yield f"{one.id} loads {one.computed} tokens into blocks {list(one.blocks)}"


@_of_loads("V1-EXT-3", witness=lambda _, step: step.happened("promote"))
def loaded_requests_go_on(ctx: Context, step: Step) -> Iterator[str]:
    """A request whose load has ended is schedulable with what was loaded, less one token if it is
    all; where nothing came it owns nothing, and asks again.
    """
    # Its full blocks can be found from now on.
    before, planned = by_id(step.before.skipped), by_id(step.planned.present)
    for event in step.happened("promote"):
        row, loaded = planned[event.id], before[event.id].computed
        if loaded and row.computed != min(loaded, row.tokens - 1):
            yield f"{event.id} has {row.computed} tokens, {loaded} were loaded"
        full = row.blocks[: row.computed // ctx.config.block_size]
        hidden = [block for block in full if block not in step.planned.pool.keys]
        if ctx.config.prefix_caching and hidden:
            yield f"{event.id}: blocks {hidden} cannot be found"


@of_step("V1-EXT-4", _LOAD, applies=lambda config: config.connector is Connector.SYNC)
@witness(lambda _, step: step.failed_loads)
def lost_loads_are_computed(_ctx: Context, step: Step) -> Iterator[str]:
    """What a connector failed to bring within a step is computed again: no output in this step."""
    # A sharer of the blocks that were not filled gets none either, and keeps what came for it.
    planned, after = by_id(step.planned.running), by_id(step.after.running)
    for one_id in step.failed_loads:
        is_its_own = one_id in step.after.lost - step.before.lost
        most = planned[one_id].computed - is_its_own * step.external.get(one_id, 0)
        if one_id in step.outputs or after[one_id].computed > most:
            yield f"{one_id} goes on from {after[one_id].computed} tokens, {most} are there"


@of_step("V1-EXT-5", code("reserved blocks"), applies=_async)
@witness(lambda _, step: step.happened("load") and step.planned.running)
def loads_leave_room(ctx: Context, step: Step) -> Iterator[str]:
    """A load begins only if it leaves the blocks that prompts in progress still need."""
    # Judged where the load is the last thing decided.
    decided = [event for event in step.events if event.transition in ("admit", "load")]
    if not decided or decided[-1].transition != "load":
        return
    state = step.planned
    running = [
        one for one in state.running if one.computed + step.scheduled.get(one.id, 0) < one.tokens
    ]
    needed = sum(
        int(missing_blocks(one.tokens, len(one.blocks), ctx.config.block_size))
        for one in (*running, *state.skipped)
        if one.id != decided[-1].id
    )
    if needed > len(state.pool.free):
        yield f"{decided[-1].id} loads, {needed} blocks needed, {len(state.pool.free)} free"


@_between_loads("V1-EXT-6", witness=lambda _, step: step.before.draining)
def aborted_loads_drain(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """Whoever is aborted while it loads keeps its blocks until the load ends: they are being
    written to.
    """
    # A block that is given away would be overwritten by the load.
    draining = {one.id for one in after.draining}
    for one in before.skipped:
        if one.load is Load.LOADING and one.id in after.aborted - draining:
            yield f"{one.id} gave its blocks back while they are written"


@_between_loads("V1-EXT-7")
@witness(lambda _, step: any(one.load is Load.FAILED for one in step.before.skipped))
def failed_loads_count_nothing(ctx: Context, before: State, after: State) -> Iterator[str]:
    """After a failed load only what was cached before it counts as computed."""
    # The blocks that should have been filled are not cached yet.
    for one in after.skipped:
        if one.id not in after.lost - before.lost:
            continue
        cached = sum(block in after.pool.keys for block in one.blocks)
        if one.computed > cached * ctx.config.block_size:
            yield f"{one.id} has {one.computed} tokens computed, {cached} blocks cached"
