"""Rules of progress: tokens catch up, capacity is used, all requests leave.

Source: vllm-v1, "The Fundamental Insight" and "How They Work Together".
"""

from collections.abc import Iterator

from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import (
    blocks_to_find,
    cached_throughout,
    lacking_blocks,
    most_padding,
    needed_slots,
    offered,
    places_taken,
    received,
    receivers,
    share,
    steps_over,
)
from spec.vllm_v1.rules.order import in_turn
from spec.vllm_v1.rules.registry import (
    always,
    by_id,
    code,
    eventually,
    has_one_group,
    of_step,
    text,
    witness,
)
from spec.vllm_v1.rules.spans import lacks_encoding


@always("V1-PRG-1", text("The Fundamental Insight"))
@witness(lambda _, step: step.outputs and step.after.running)
def unfinished_are_behind(_ctx: Context, state: State) -> Iterator[str]:
    """An unfinished request is behind: it has a token that is not computed."""
    # Of those that it awaits the last is not. While it loads, all of them may be on their way; and
    # a turn has no tokens of its own before its client sends it.
    for row in state.present:
        if row.id in state.awaited:
            continue
        due = row.tokens + row.placeholders
        if row.computed >= due and row.load not in (Load.LOADING, Load.LOADED):
            yield f"{row.id} has computed {row.computed} of {due} tokens"


@of_step("V1-PRG-2", text("The Fundamental Insight"))
@witness(lambda _, step: any(id_ not in step.outputs for id_ in step.scheduled))
def caught_up_requests_sample(ctx: Context, step: Step) -> Iterator[str]:
    """A request samples in exactly the steps that compute the last of its tokens, and has the token
    when the results come.
    """
    # Nothing is sampled where a load was lost, and a request that has left meanwhile gets nothing.
    samples = by_id(receivers(step)).keys() & {*received(ctx, step).samples}
    expected = samples.difference(step.failed_loads, step.leavers)
    if expected != step.outputs.keys():
        yield f"sampled {sorted(step.outputs)}, caught up {sorted(expected)}"


def _judgeable(config: VllmV1Config) -> bool:
    # How much an asynchronous load must leave to others is judged by V1-EXT-5, and what several
    # groups of layers need by V1-GRP-13.
    return config.connector is not Connector.ASYNC and has_one_group(config)


@of_step("V1-PRG-3", text("How They Work Together"), applies=_judgeable)
@witness(lambda _, step: step.refusal == "V1-KV-1")
def waiting_has_a_reason(ctx: Context, step: Step) -> Iterator[str]:
    """Free capacity and a waiting request lead to admission: a request waits only for budget, a
    slot, blocks, its grammar, its client, an image's or audio's encoding, or an answer of the
    connector.
    """
    # Judged for the first of the queue when the decisions were made that is not stepped over. What
    # it finds may have been cached in the step, before or after it was looked at.
    if step.preempted or step.budget_left == 0:
        return
    if places_taken(step.planned) >= ctx.config.max_num_seqs:
        return
    for row in _queue(ctx, step):
        if _is_stepped_over(ctx, step, row, _cached(ctx, step.planned, row)):
            continue
        may_be_skipped = _is_stepped_over(ctx, step, row, cached_throughout(ctx, step, row))
        if may_be_skipped or _is_too_long(ctx, step, row):
            return
        lacks = lacks_encoding(ctx, step, row)
        if lacks == {True} and ctx.config.behaviour.passes_over_unencoded:
            continue
        if True not in lacks and _lacking(ctx, step, row) <= 0:
            free = len(step.planned.pool.free)
            yield f"{row.id} waits, {free} blocks free, {step.budget_left} tokens left"
        return


def _queue(ctx: Context, step: Step) -> Iterator[Sequence]:
    """What is left of the queue when all is decided, in its order, without what is held back."""
    rows = in_turn(ctx, step.planned.queued)
    return (row for row in rows if row.id not in step.before.held_back)


def _is_stepped_over(ctx: Context, step: Step, row: Sequence, cached: int) -> bool:
    """True if the prompt must not be cut, does not fit even with its hits, and is skipped."""
    if not steps_over(ctx.config):
        return False
    behind = row.tokens - cached
    return share(ctx, step, behind, step.budget_left) < share(ctx, step, behind, behind)


def _is_too_long(ctx: Context, step: Step, row: Sequence) -> bool:
    """True if the request would be cut and must not be: without chunking, or padded with drafts."""
    computed = _cached(ctx, step.planned, row)
    behind = row.tokens - computed
    padding = most_padding(ctx, computed, behind)
    may_be_cut = ctx.config.chunked_prefill and not padding
    return not may_be_cut and behind + padding > step.budget_left


def _found(ctx: Context, state: State, row: Sequence) -> list[int]:
    """The cached blocks of its longest prefix."""
    if not ctx.config.prefix_caching or row.computed:
        return []
    found: list[int] = []
    for key in ctx.keys.of(row.id, blocks_to_find(ctx, row)):
        if key not in state.pool.cached:
            break
        found.append(state.pool.cached[key][0])
    return found


def _cached(ctx: Context, state: State, row: Sequence) -> int:
    """Tokens that the request need not compute."""
    if row.computed:  # a turn of a session goes on with what is kept
        return row.computed
    local = len(_found(ctx, state, row)) * ctx.config.block_size
    return max(local, offered(ctx, state, row))


def _lacking(ctx: Context, step: Step, row: Sequence) -> int:
    """Blocks beyond the free ones that its admission needs."""
    pool = step.planned.pool
    found, computed = _found(ctx, step.planned, row), _cached(ctx, step.planned, row)
    behind = row.tokens - computed
    behind += most_padding(ctx, computed, behind)
    slots = needed_slots(ctx, computed + share(ctx, step, behind, step.budget_left))
    if ctx.config.reserve_full_prompt:
        slots = max(slots, row.tokens)
    revived = sum(block not in pool.references for block in found)
    held = len(row.blocks) + len(found)
    return lacking_blocks(ctx, slots, held) + revived - len(pool.free)


@of_step("V1-PRG-4", text("How They Work Together"), witness=lambda _, step: step.scheduled)
def no_idle_step(_ctx: Context, step: Step) -> Iterator[str]:
    """No step is idle while a request is pending, unless a grammar is compiled, or a connector is
    asked, loads or sends.
    """
    # A step that only preempts, or gets results, is not idle; what comes of it is V1-PRG-5's. Where
    # several may be in flight, one of them computes.
    if step.scheduled or step.preempted or step.happened("load"):
        return
    if any(flight.scheduled for flight in step.before.flights):
        return
    loads = any(row.load is Load.LOADING for row in step.before.present)
    before = step.before
    pending = [row.id for row in before.present if row.id not in before.awaited]
    held_back = before.held_back - before.awaited
    if pending and not (loads or before.draining or held_back):
        yield f"none of {pending} runs"


@eventually("V1-PRG-5", code("engine core"), witness=lambda _, step: step.finished)
def all_requests_leave(state: State, request_id: str) -> bool:
    """Every request that arrives finishes or is aborted: none waits, or is preempted and
    readmitted, for ever.
    """
    # Sooner or later it neither waits nor runs, whatever else arrives. A turn that its client has
    # not sent has not arrived.
    if request_id in state.awaited:
        return True
    queues = (state.skipped, state.waiting, state.running)
    return all(row.id != request_id for queue in queues for row in queue)
