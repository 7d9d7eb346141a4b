"""Rules of external keys and values: what loads is not schedulable, failures are made good, and
what is sent is kept.

Source: vllm-v1, "Prefix Caching" ("Remote cache too"); the rest is vLLM 0.28.0's.
"""

from collections.abc import Iterator
from functools import partial

from spec.core.judging import ids
from spec.core.words import by_name, changes
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import (
    blocks_left,
    brought,
    lacking_blocks,
    missing_blocks,
    offered,
    read_by,
    verified,
    wrongly_held_back,
)
from spec.vllm_v1.rules.group_counting import lacking_at_one_time, tables_by_group
from spec.vllm_v1.rules.registry import (
    always,
    between,
    by_id,
    code,
    hits,
    of_step,
    text,
    witness,
)

_LOAD = code("KV connector")


def _async(config: VllmV1Config) -> bool:
    return config.connector is Connector.ASYNC


def _drains(config: VllmV1Config) -> bool:
    return config.sends or config.connector is Connector.ASYNC


_of_loads = partial(of_step, source=_LOAD, applies=_async)
_between_loads = partial(between, source=_LOAD, applies=_async)


@_of_loads("V1-EXT-1")
@witness(lambda _, step: any(row.load is Load.LOADING for row in step.before.skipped))
def loading_is_not_scheduled(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that loads is not scheduled, preempted or finished."""
    # It stays as it is; what becomes of it if its client leaves meanwhile is V1-EXT-11's.
    for row in step.before.skipped:
        is_here = row.load is Load.LOADING and row.id not in step.leavers
        if is_here and row not in step.after.skipped:
            yield f"{row.id} loads and is touched"


@_of_loads("V1-EXT-2", witness=lambda _, step: step.happened("load"))
def loading_has_its_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """A request that loads has a block for every token on its way, and none of these can be
    found before it has come.
    """
    # What can be found of its blocks was cached when the load began.
    was, after, found = by_id(_loading(step.before)), step.after, hits(step)
    for row in _loading(after):
        cached = was[row.id].blocks if row.id in was else ()
        known = {*found.get(row.id, ())} | {*cached} & step.before.pool.keys.keys()
        covered = len(row.blocks) * ctx.config.block_size
        if covered < row.computed or {*row.blocks} & after.pool.keys.keys() - known:
            yield f"{row.id} loads {row.computed} tokens into blocks {list(row.blocks)}"


def _loading(state: State) -> tuple[Sequence, ...]:
    return tuple(row for row in (*state.skipped, *state.draining) if row.load is Load.LOADING)


@_of_loads("V1-EXT-3", witness=lambda _, step: step.happened("promote"))
def loaded_requests_go_on(ctx: Context, step: Step) -> Iterator[str]:
    """A request whose load has ended is schedulable with what was loaded, less one token if it is
    all; where nothing came it owns nothing, and asks again.
    """
    # Its full blocks can be found from now on: those of a prefix that is whole in all groups.
    before, planned = by_id(step.before.skipped), by_id(step.planned.present)
    taken = step.happened("prefix_hit", "allocate")
    for event in step.happened("promote"):
        row, loaded = planned[event.id], before[event.id].computed
        own = [allocation for allocation in taken if allocation.id == event.id]
        new_blocks = [block for allocation in own for block in allocation.after]
        if not loaded and new_blocks != [*row.blocks]:
            yield f"{event.id} keeps blocks of {list(row.blocks)}, nothing came"
        if loaded and row.computed != min(loaded, row.tokens - 1):
            yield f"{event.id} has {row.computed} tokens, {loaded} were loaded"
        whole = row.computed // ctx.config.hit_alignment * ctx.config.hit_alignment
        full = row.blocks[: whole // ctx.config.block_size]
        hidden = [block for block in full if block not in step.planned.pool.keys]
        if ctx.config.prefix_caching and hidden:
            yield f"{event.id}: blocks {hidden} cannot be found"


@of_step("V1-EXT-4", _LOAD, applies=lambda config: config.connector is Connector.SYNC)
@witness(lambda _, step: step.failed_loads)
def lost_loads_are_computed(ctx: Context, step: Step) -> Iterator[str]:
    """What a connector failed to bring within a step is computed again: no output in this step."""
    # A sharer of the blocks that were not filled gets none either, and keeps what came for it.
    read, after = read_by(ctx, step), by_id(step.after.running)
    for request_id in step.failed_loads:
        most = read[request_id]
        if request_id in step.after.lost - step.before.lost:
            local = most - brought(ctx, step).get(request_id, 0)
            most = max(local, min(ctx.if_lost.get(request_id, 0), most - 1))
        if request_id in step.outputs or after[request_id].computed > most:
            yield f"{request_id} goes on from {after[request_id].computed} tokens, {most} are there"


@of_step("V1-EXT-5", code("reserved blocks"), applies=_async)
@witness(lambda _, step: step.happened("load") and step.planned.running)
def loads_leave_room(ctx: Context, step: Step) -> Iterator[str]:
    """A load begins only if it leaves the blocks that prompts in progress still need, and in 0.33.0
    those of their next step with drafts and of its own.
    """
    # Judged where the load is the last thing decided. In progress is also what has its last chunk
    # in this step; of the newcomers what has loaded, or has chunks to come.
    decided = [event for event in step.events if event.transition in ("admit", "load")]
    if not decided or decided[-1].transition != "load":
        return
    state, loaded, behaviour = step.planned, ids(step.before.skipped), ctx.config.behaviour
    running = [
        row
        for row in state.running
        if row.prefilling
        or row.id in loaded
        or row.computed + step.scheduled.get(row.id, 0) < row.tokens
    ]
    drafts, more = ctx.config.num_speculative_tokens, 0
    if drafts and behaviour.loads_reserve_drafts:
        more = 1 + drafts + ctx.config.num_lookahead_tokens
    begun = [row for row in state.skipped if row.blocks or row.id in state.lost]
    needed = lacking_blocks(ctx, more, 0) + sum(
        lacking_at_one_time(ctx, _all_tables(ctx, row), row.tokens + more)
        for row in (*running, *begun)
        if row.id != decided[-1].id
    )
    if needed > len(state.pool.free):
        yield f"{decided[-1].id} loads, {needed} blocks needed, {len(state.pool.free)} free"


def _all_tables(ctx: Context, row: Sequence) -> Iterator[tuple[int, ...]]:
    return (table for _, table in tables_by_group(ctx, row))


@_between_loads("V1-EXT-6", witness=lambda _, step: step.before.draining)
def aborted_loads_drain(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """A request that is aborted while it loads keeps its blocks until the load ends: they are
    being written to.
    """
    # A block that is given away would be overwritten by the load.
    draining = {row.id for row in after.draining}
    for row in before.skipped:
        if row.load is Load.LOADING and row.id in after.aborted - draining:
            yield f"{row.id} gave its blocks back while they are written"


@_between_loads("V1-EXT-7")
@witness(lambda _, step: any(row.load is Load.FAILED for row in step.before.skipped))
def failed_loads_count_what_came(ctx: Context, before: State, after: State) -> Iterator[str]:
    """After a failed load what was cached before it counts as computed, and the whole blocks that
    came of it but for the last.
    """
    # The blocks that should have been filled are not cached yet.
    size, was = ctx.config.block_size, by_id(before.skipped)
    for row in after.skipped:
        if row.id not in after.lost - before.lost:
            continue
        cached = sum(block in after.pool.keys for block in row.blocks)
        end = was.get(row.id, row).computed
        due = min(blocks_left(ctx, row.id, cached, end) * size, end)
        if row.computed != due:
            yield f"{row.id} has {row.computed} tokens computed, {due} are there"


@of_step(
    "V1-EXT-8",
    text("Prefix Caching - Shared KV Blocks"),
    applies=lambda config: config.connector is not Connector.NONE,
)
@witness(lambda _, step: step.external or step.happened("load"))
def what_is_offered_is_taken(ctx: Context, step: Step) -> Iterator[str]:
    """A request that begins is brought all that the connector has of it beyond what is cached
    here.
    """
    # Once: a request that has loaded, or has lost its load, computes the rest itself.
    if not (begun := step.happened("admit", "load")):
        return
    before, planned = by_id(step.before.queued), by_id(step.planned.present)
    size, found = ctx.config.block_size, hits(step)
    for event in begun:
        if before[event.id].computed:
            continue
        local = len(found.get(event.id, ())) * size
        expected = max(local, offered(ctx, step.planned, before[event.id]))
        brought = event.transition == "load" or step.external.get(event.id, 0) > 0
        if planned[event.id].computed != expected or brought != (expected > local):
            yield f"{event.id} has {planned[event.id].computed} tokens, {expected} are there"


@of_step("V1-EXT-10", _LOAD)
@witness(lambda _, step: len(step.failed_loads) > 1)
def readers_of_a_lost_load_go_back(ctx: Context, step: Step) -> Iterator[str]:
    """Those that read a block which a lost load of the step did not fill have no result; the first
    of them goes back to before its first such block, the others keep what they had; and only
    requests that were brought something lose it.
    """
    # What was brought ends where the tokens of the step begin. With steps in flight a request may
    # have read such a block in any of them: what is still to come of these is no result, either.
    size, external, read = ctx.config.block_size, brought(ctx, step), read_by(ctx, step)
    rows, after = by_id(step.planned.running), by_id(step.after.running)
    lost = step.after.lost - step.before.lost
    if not lost <= external.keys() or len(step.after.lost) < len(step.before.lost):
        yield f"lost {sorted(step.after.lost)}, brought {by_name(external)}"
        return
    if not (lost or step.failed_loads):
        return
    held = {name: rows[name].blocks[: len(range(0, count, size))] for name, count in read.items()}
    missing = missing_blocks(ctx, step)
    unclaimed, undone = set(missing), []
    for name, blocks in held.items():
        if name in step.leavers or missing.isdisjoint(blocks):
            continue
        undone.append(name)
        claimed = [place for place, block in enumerate(blocks) if block in unclaimed]
        unclaimed.difference_update(blocks)
        due = claimed[0] * size if claimed else read[name]
        if name not in after or after[name].computed != due:
            yield f"{name} does not go on from {due} tokens"
    if list(step.failed_loads) != undone:
        yield f"no result for {list(step.failed_loads)}, expected {undone}"


@of_step("V1-EXT-11", _LOAD, applies=_drains, witness=lambda _, step: len(step.before.draining) > 0)
def draining_goes_on(ctx: Context, step: Step) -> Iterator[str]:
    """A step ends no transfer of a request that has left; one that leaves in the step while it
    loads, or whose blocks are to be sent, joins them, in the order of leaving.
    """
    # With its blocks. What it has computed is sent, that of this step included; from 0.33.0 on
    # without drafts that were accepted behind its end.
    trims = ctx.config.behaviour.trims_at_end
    planned, rows = step.planned, by_id(step.planned.present)
    if planned.draining != step.before.draining:
        yield f"drain {planned.draining} when all is decided, before {step.before.draining}"
    due = [_drained(row) for row in planned.draining]
    for event in step.happened("leave", "finish"):
        if event.id not in rows:
            yield f"{event.id} leaves and was not there"
            continue
        row = rows[event.id]
        computed = row.computed + step.scheduled.get(row.id, 0)
        if event.transition == "finish" and row in planned.running:
            accepted = step.accepted.get(row.id, 0)
            computed -= verified(ctx, step).get(row.id, 0) - accepted
            beyond = accepted + 1 - len(step.outputs.get(row.id, ()))
            computed -= beyond if trims else 0
        loads, is_sent = row.load is Load.LOADING, ctx.config.sends and computed > 0
        if loads or is_sent:
            due.append((row.id, (row.blocks, *row.tables), computed, loads, is_sent))
    if [_drained(row) for row in step.after.draining] != due:
        yield f"drain {step.after.draining}, expected {due}"


@of_step("V1-EXT-14", _LOAD, applies=lambda config: config.sends)
@witness(lambda _, step: any(id_ in ids(step.after.draining) for id_ in step.finished))
def what_has_finished_is_sent(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that finishes has all its tokens but the newest computed, and they are sent."""
    # One that was preempted since has lost them: it must not finish with late results.
    drains = by_id(step.after.draining)
    for id_ in step.finished:
        row = drains.get(id_)
        if row is None or row.computed < row.tokens - 1:
            yield f"{id_} finishes, and {0 if row is None else row.computed} tokens are sent"


def _drained(row: Sequence) -> tuple[str, tuple[tuple[int, ...], ...], int, bool, bool]:
    """What is known of a request that has left: its blocks, and who still needs them."""
    return row.id, (row.blocks, *row.tables), row.computed, row.load is Load.LOADING, row.sending


@always("V1-EXT-12", _LOAD)
@witness(lambda _, step: any(row.sending for row in step.before.draining))
def only_transfers_hold_blocks(_ctx: Context, state: State) -> Iterator[str]:
    """A request that has left holds its blocks exactly as long as a load writes to them or the
    connector sends them.
    """
    # A request that has not left is not sent, and one that has waits for nothing else.
    for row in state.draining:
        if not row.sending and row.load is not Load.LOADING:
            yield f"{row.id} has left and holds {list(row.blocks)} for nothing"
        if row.drafts or row.placeholders or row.prefilling:
            yield f"{row.id} has left, and has {changes(Sequence(row.id, row.prompt_len), row)}"
    for row in state.present:
        if row.sending:
            yield f"{row.id} is sent and has not left"


@of_step("V1-EXT-13", _LOAD, witness=lambda _, step: step.before.unanswered and step.admitted)
def unanswered_requests_wait(_ctx: Context, step: Step) -> Iterator[str]:
    """A request of which the connector has not said what it has is neither admitted nor loaded, and
    no step makes the connector say it.
    """
    # One that leaves is not asked about any more.
    yield from wrongly_held_back(step, "unanswered")
