"""Rules of a request's life: it is in one place, it leaves once, it always leaves.

Source: spyre, "Overview" and "Priority rules"; the engine core's contract of vllm-v1.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import fields

from spec.core import judging
from spec.core.blocks import BlockPool
from spec.core.judging import ids
from spec.core.records import PREFILL
from spec.core.rule import Source
from spec.core.words import changes
from spec.spyre.records import Context, Step
from spec.spyre.rules.observed import Continued, continued, judges_rows
from spec.spyre.rules.registry import always, between, eventually, of_step, spyre, witness
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Reading

_CORE = Source("vllm-v1", "request lifecycle")


@always("LIF-1", _CORE)
@witness(lambda _, step: len(step.after.present) > 1)
def one_place_each(_ctx: Context, state: State) -> Iterator[str]:
    """A request is in exactly one place: a queue, the prefill slot, the batch, paused, or gone."""
    # Counted over all places.
    yield from judging.one_place_each(state)


@of_step("LIF-2", _CORE, witness=lambda _, step: step.finished and step.after.present)
def no_request_is_lost(_ctx: Context, step: Step) -> Iterator[str]:
    """No step loses or invents a request."""
    # A request that was there is there, or has finished.
    before, after = ids(step.before.present), ids(step.after.present) | set(step.finished)
    if before != after:
        yield f"before {sorted(before)}, after {sorted(after)}"


@of_step("LIF-3", spyre("Overview"), witness=lambda _, step: len(step.finished) > 1)
def finishes_once(ctx: Context, step: Step) -> Iterator[str]:
    """A request finishes once: with max_tokens tokens, or when it samples the end of sequence."""
    # What finished sampled in this step; what stayed has not come to its end.
    if set(step.finished) != step.after.finished - step.before.finished:
        yield f"reported {list(step.finished)}"
    generated = {row.id: row.generated for row in step.before.present}
    for id_ in step.finished:
        request = ctx.requests[id_]
        count = generated.get(id_, 0) + len(step.outputs.get(id_, ()))
        if count not in (request.max_tokens, request.end) and id_ not in step.ended:
            yield f"request {id_} finished with {count} tokens"
    silent = [id_ for id_ in step.finished if id_ not in step.outputs]
    if silent or len(set(step.finished)) != len(step.finished):
        yield f"finished {list(step.finished)}, without a token {silent}"
    for row in step.after.present:
        if row.generated >= ctx.requests[row.id].end or row.id in step.ended:
            yield f"request {row.id} stays with {row.generated} tokens"


@of_step("LIF-4", spyre("Decode padding"), witness=lambda _, step: step.outputs)
def tokens_are_counted(ctx: Context, step: Step) -> Iterator[str]:
    """A request never has more than max_tokens tokens, and gains one only when it is scheduled."""
    # Compared with what the step says it sampled.
    generated = {row.id: row.generated for row in step.before.present}
    for row in step.after.present:
        gained = row.generated - generated.get(row.id, 0)
        if gained != len(step.outputs.get(row.id, ())):
            yield f"request {row.id} gained {gained} tokens"
    for id_ in step.outputs:
        had = generated.get(id_)
        if id_ not in step.scheduled or had is None or had >= ctx.requests[id_].max_tokens:
            yield f"request {id_} sampled beyond its {had} tokens"


@always("LIF-5", _CORE, witness=lambda _, step: step.before.aborted)
def only_the_admitted_hold(_ctx: Context, state: State) -> Iterator[str]:
    """A request that waits or has gone away holds no block and no promise of one."""
    # Together with BLK-2: an abort in any phase gives everything back.
    for row in state.waiting:
        if row.blocks or row.reserved:
            yield f"request {row.id} waits with {len(row.blocks)} blocks"
    if state.orphaned:
        yield f"{state.orphaned} blocks are set aside for requests that have gone away"


@between("LIF-7", _CORE, witness=lambda _, step: len(step.before.waiting) > 1)
def queue_grows_at_its_end(ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps requests only arrive, at the end of the queue, or go away; in 2.6.3 those
    with a grammar stand behind the others that come before the same step.
    """
    # No other is touched; a newcomer has computed nothing of its whole prompt. A request that came
    # and went away again was not there before, and is aborted all the same.
    present = ids(before.present)
    gone = present - ids(after.present)
    left = after.aborted - before.aborted
    aborted = {id_ for id_ in left if id_ in present or id_ in before.finished}
    if gone != aborted or after.finished - before.finished:
        yield f"gone are {sorted(gone)}, aborted {sorted(aborted)}"
    stayed = _without(gone, before.waiting)
    new = tuple(row for row in after.waiting if row.id not in present)
    if tuple(after.waiting) != _with_newcomers(ctx, before, gone, new):
        yield f"waiting {[row.id for row in after.waiting]}, before {[row.id for row in stayed]}"
    elif new != tuple(Sequence(row.id, ctx.requests[row.id].prompt_len) for row in new):
        yield f"newcomers {new}"
    if after.admitted != _without(gone, before.admitted):
        yield "an admitted request changed"


@always("LIF-8", _CORE, witness=lambda _, step: step.batch)
def cache_holds_all_but_the_newest(ctx: Context, state: State) -> Iterator[str]:
    """What is cached of a decoding request is its prompt and its answer but for the newest token;
    one that waits or prefills will compute all that it has.
    """
    # A preempted request computes its answer so far again, like a prompt.
    slot = () if state.prefilling is None else (state.prefilling,)
    for row in (*state.waiting, *slot):
        if row.prefill_len != ctx.requests[row.id].prompt_len + row.generated:
            yield f"request {row.id}: {row.prefill_len} tokens, {row.generated} generated"
    for row in (*state.decoding, *state.paused):
        if row.computed + 1 != ctx.requests[row.id].prompt_len + row.generated:
            yield f"request {row.id}: {row.computed + 1} tokens, {row.generated} generated"


@between("LIF-9", _CORE)
@witness(lambda _, step: step.before.aborted and step.before.waiting and step.before.decoding)
def nothing_else_changes(ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps a request that arrives is put behind the queue, one that is aborted is
    taken from its place and gives its blocks back, and nothing else changes.
    """
    # Every field is compared, also one that states are given later. The order in which blocks come
    # back is that of BLK-10. In 2.6.3 what was promised to a leaver stays set aside.
    present, now = ids(before.present), ids(after.present)
    gone, leavers = present - now, [row for row in before.present if row.id not in now]
    # Some may have come and gone since the step before.
    came = (after.aborted - before.aborted) & (ctx.requests.keys() - present - now)
    slot = before.prefilling
    new = [row.id for row in after.waiting if row.id in ctx.requests and row.id not in present]
    newcomers = tuple(Sequence(id_, ctx.requests[id_].prompt_len) for id_ in new)
    if tuple(after.waiting) != _with_newcomers(ctx, before, gone, newcomers):
        yield f"waiting {[row.id for row in after.waiting]}, gone {sorted(gone)}"
    is_released = ctx.config.reading is Reading.RELEASED
    kept = sum(row.reserved for row in leavers) if is_released else 0
    with_grammar = {id_ for id_ in new if ctx.requests[id_].grammar}
    with_images = {id_ for id_ in new if ctx.requests[id_].has_images}
    back = _without(gone, before.waiting[len(before.waiting) - before.behind :])
    compiling = (before.compiling - gone) | with_grammar
    if not after.compiling <= compiling:
        yield f"compiling {sorted(after.compiling - compiling)}"
    if not after.encoding <= before.encoding - gone:
        yield f"encoding {sorted(after.encoding)}"
    untold = after.untold - before.untold
    if untold and not (is_released and untold <= before.encoding & gone):
        yield f"not told are {sorted(untold)}"
    due: dict[str, object] = {
        "waiting": after.waiting,
        "prefilling": None if slot is not None and slot.id in gone else slot,
        "decoding": _without(gone, before.decoding),
        "paused": _without(gone, before.paused),
        "cohort": sum(row.id not in gone for row in before.waiting[: before.cohort]),
        "orphaned": before.orphaned + kept,
        "compiling": after.compiling,
        "unencoded": (before.unencoded - gone) | with_images,
        "encoding": after.encoding,
        "untold": before.untold | untold,
        "behind": len(back) + len(with_grammar) if is_released else 0,
        "aborted": before.aborted | gone | (came - before.finished),
        "pool": after.pool,
    }
    pool = _released_pool(leavers, before.pool, after.pool)
    yield from _other_values(State, before, after, due)
    yield from _other_values(BlockPool, before.pool, after.pool, pool)


def _without(gone: set[str], rows: Iterable[Sequence]) -> tuple[Sequence, ...]:
    return tuple(row for row in rows if row.id not in gone)


def _with_newcomers(
    ctx: Context, before: State, gone: set[str], new: tuple[Sequence, ...]
) -> tuple[Sequence, ...]:
    """The queue with newcomers at its end; in 2.6.3 those that came with a grammar since the last
    step stand behind the others.
    """
    place = len(before.waiting) - before.behind
    front, back = _without(gone, before.waiting[:place]), _without(gone, before.waiting[place:])
    if ctx.config.reading is not Reading.RELEASED:
        return (*front, *back, *new)
    late = tuple(row for row in new if ctx.requests[row.id].grammar)
    others = tuple(row for row in new if row not in late)
    return (*front, *others, *back, *late)


def _released_pool(
    leavers: list[Sequence], before: BlockPool, after: BlockPool
) -> dict[str, object]:
    """Changed fields of the pool after these requests release their blocks, in any order."""
    held = judging.holders_of(leavers)
    if not held:
        return {}
    counts = before.references.items()
    references = {block: count - held[block] for block, count in counts if count != held[block]}
    free = (*before.free, *(block for block in held if block not in references))
    is_same = sorted(after.free) == sorted(free)
    return {"references": references, "free": after.free if is_same else free}


def _other_values(
    kind: type[Any], before: Any, after: Any, due: dict[str, object]
) -> Iterator[str]:
    """Each field without the value that is due; where none is named, that is the one before."""
    for key in fields(kind):
        expected = due.get(key.name, getattr(before, key.name))
        found = getattr(after, key.name)
        if found != expected:
            yield f"{key.name} is {found}, due is {expected}"


@of_step("LIF-10", _CORE, witness=lambda _, step: step.finished and step.before.finished)
def the_gone_stay_known(_ctx: Context, step: Step) -> Iterator[str]:
    """The requests that finish in a step join those that finished before it; no other request
    joins these or the aborted, and none of them is forgotten.
    """
    for name, due in (("finished", {*step.finished}), ("aborted", set[str]())):
        before, after = getattr(step.before, name), getattr(step.after, name)
        if after - before != due or len(after) != len(before) + len(due):
            yield f"{name}: {sorted(after)}, before {sorted(before)} and now {sorted(due)}"


@of_step("LIF-11", _CORE, given=continued)
@witness(lambda _, step: step.kind == PREFILL and step.before.decoding)
def others_are_untouched(_ctx: Context, step: Step, rows: Continued) -> Iterator[str]:
    """A step touches no request but those that it schedules, pauses, resumes or preempts; its rows
    are left as they were computed.
    """
    # So that what rules say of the rows of a batch is true of the state that the step left. What
    # waits is the matter of SPY-PRI-13, a row that sits out that of SPY-PAU-1 and SPY-PAU-8.
    chunk, slot = step.chunk, step.before.prefilling
    if chunk is not None:
        in_slot = None if chunk.is_last else chunk.id
    else:
        victims = ids(step.happened("preempt"))
        in_slot = None if slot is None or slot.id in victims else slot.id
    found = None if step.after.prefilling is None else step.after.prefilling.id
    if found != in_slot:
        yield f"{found} in the prefill slot, due is {in_slot}"
    computed = {row.id: row for row in step.batch}
    sits_out = ids(step.after.paused) if judges_rows(step) else set[str]()
    for before, after in rows:
        is_own = chunk is not None and after.id == chunk.id
        if not (is_own or after.id in sits_out) and after != computed.get(after.id, before):
            yield f"request {after.id}: {changes(computed.get(after.id, before), after)}"


@eventually("LIF-6", spyre("Priority rules, No idle steps"), witness=lambda _, step: step.finished)
def all_requests_leave(state: State, request_id: str) -> bool:
    """Every request that arrives finishes or is aborted."""
    # Sooner or later it neither waits, prefills, decodes nor pauses, whatever else arrives.
    return request_id not in ids(state.present)
