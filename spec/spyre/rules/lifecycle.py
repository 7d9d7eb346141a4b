"""Rules of a request's life: it is in one place, it leaves once, it always leaves.

Source: spyre, "Overview" and "Priority rules"; the engine core's contract of vllm-v1.
"""

from collections.abc import Iterator

from spec.core import judging
from spec.core.changes import Change, change_between, ids
from spec.core.rule import Source
from spec.spyre.records import Context, Step
from spec.spyre.rules.registry import (
    always,
    between,
    each_request,
    eventually,
    looking_at,
    of_step,
    spyre,
    witness,
)
from spec.spyre.state import Sequence, State

_CORE = Source("vllm-v1", "request lifecycle")


@always("LIF-1", _CORE, look=looking_at(lambda _ctx, change: change.places))
@witness(lambda _, step: len(step.after.present) > 1)
def one_place_each(_ctx: Context, state: State) -> Iterator[str]:
    """A request is in exactly one place: a queue, the prefill slot, the batch, paused, or gone."""
    # Counted over all places.
    yield from judging.one_place_each(state)


@of_step("LIF-2", _CORE, witness=lambda _, step: step.finished and step.after.present)
def no_request_is_lost(_ctx: Context, step: Step) -> Iterator[str]:
    """No step loses or invents a request."""
    # A request that was there is there, or has finished.
    change = change_between(step.before, step.after)
    left, entered = change.names
    if left == entered | {*step.finished}:
        return  # and those that wait untouched are the same anyway
    before, after = ids(step.before.present), ids(step.after.present) | set(step.finished)
    if before != after:
        yield f"before {sorted(before)}, after {sorted(after)}"


@of_step("LIF-3", spyre("Overview"), witness=lambda _, step: len(step.finished) > 1)
def finishes_once(ctx: Context, step: Step) -> Iterator[str]:
    """A request finishes once: with max_tokens tokens, or when it samples the end of sequence."""
    # What finished sampled in this step; what stayed has fewer than max_tokens, and did not sample
    # the end of sequence.
    change = change_between(step.before, step.after)
    if set(step.finished) != change.finished:
        yield f"reported {list(step.finished)}"
    tokens = {one.id: one.generated for one in change.left} if step.finished else {}
    for one_id in step.finished:
        request = ctx.requests[one_id]
        count = tokens.get(one_id, 0) + len(step.outputs.get(one_id, ()))
        if count not in (request.max_tokens, request.end) and one_id not in step.ended:
            yield f"request {one_id} finished with {count} tokens"
    silent = [one for one in step.finished if one not in step.outputs]
    if silent or len(set(step.finished)) != len(step.finished):
        yield f"finished {list(step.finished)}, without a token {silent}"
    for one in change.entered:
        if one.generated >= ctx.requests[one.id].max_tokens or one.id in step.ended:
            yield f"request {one.id} stays with {one.generated} tokens"


@of_step("LIF-4", spyre("Decode padding"), witness=lambda _, step: step.outputs)
def tokens_are_counted(ctx: Context, step: Step) -> Iterator[str]:
    """A request never has more than max_tokens tokens, and gains one only when it is scheduled."""
    # Compared with what the step says it sampled.
    change = change_between(step.before, step.after)
    generated = {one.id: one.generated for one in change.left}
    outputs = step.outputs
    for one in change.entered:
        name = one.id
        gained = one.generated - generated.get(name, 0)
        if gained != (len(outputs[name]) if name in outputs else 0):
            yield f"request {name} gained {gained} tokens"
    for one_id in step.outputs:
        had = generated.get(one_id)
        if one_id not in step.scheduled or had is None or had >= ctx.requests[one_id].max_tokens:
            yield f"request {one_id} sampled beyond its {had} tokens"


@looking_at
def _holders(_ctx: Context, change: Change[State]) -> State | None:
    """Look at requests that changed, and at all where what is set aside for leavers did."""
    is_same = change.before.orphaned == change.after.orphaned
    return change.requests if is_same else change.after


@always("LIF-5", _CORE, witness=lambda _, step: step.before.aborted, look=_holders)
def only_the_admitted_hold(_ctx: Context, state: State) -> Iterator[str]:
    """A request that waits or has gone away holds no block and no promise of one."""
    # Together with BLK-2: an abort in any phase gives everything back.
    for one in state.waiting:
        if one.blocks or one.reserved:
            yield f"request {one.id} waits with {len(one.blocks)} blocks"
    if state.orphaned:
        yield f"{state.orphaned} blocks are set aside for requests that have gone away"


@between("LIF-7", _CORE, witness=lambda _, step: len(step.before.waiting) > 1)
def queue_grows_at_its_end(ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps requests only arrive, at the end of the queue, or go away."""
    # No other is touched; a newcomer has computed nothing of its whole prompt. A request that came
    # and went away again was not there before, and is aborted all the same.
    change = change_between(before, after)
    known = ids(change.left)
    gone = known - ids(change.entered)
    aborted = change.aborted & (known | before.finished)
    if gone != aborted or change.finished:
        yield f"gone are {sorted(gone)}, aborted {sorted(aborted)}"
    stayed = before.waiting
    if gone:
        stayed = tuple(one for one in stayed if one.id not in gone)
    new = after.waiting[len(stayed) :]
    if after.waiting[: len(stayed)] != stayed:
        yield f"waiting {[one.id for one in after.waiting]}, before {[one.id for one in stayed]}"
    elif new != tuple(Sequence(one.id, ctx.requests[one.id].prompt_len) for one in new):
        yield f"newcomers {new}"
    if after.admitted != tuple(one for one in before.admitted if one.id not in gone):
        yield "an admitted request changed"


@always("LIF-8", _CORE, witness=lambda _, step: step.batch, look=each_request)
def cache_holds_all_but_the_newest(ctx: Context, state: State) -> Iterator[str]:
    """What is cached of a decoding request is its prompt and its answer but for the newest token;
    one that waits or prefills will compute all that it has.
    """
    # A preempted request computes its answer so far again, like a prompt.
    slot = () if state.prefilling is None else (state.prefilling,)
    for one in (*state.waiting, *slot):
        if one.prefill_len != ctx.requests[one.id].prompt.length + one.generated:
            yield f"request {one.id}: {one.prefill_len} tokens, {one.generated} generated"
    for one in (*state.decoding, *state.paused):
        if one.computed + 1 != ctx.requests[one.id].prompt.length + one.generated:
            yield f"request {one.id}: {one.computed + 1} tokens, {one.generated} generated"


@eventually("LIF-6", spyre("Priority rules, No idle steps"), witness=lambda _, step: step.finished)
def all_requests_leave(state: State, request_id: str) -> bool:
    """Every request that arrives finishes or is aborted."""
    # Sooner or later it neither waits, prefills, decodes nor pauses, whatever else arrives.
    return request_id not in ids(state.present)
