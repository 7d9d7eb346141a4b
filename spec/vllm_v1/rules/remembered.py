"""Rules of the request record: each field after a step follows from its value and the events.

The fields are those of `spec.vllm_v1.records.Sequence`. `planned` is the state when all is decided
and nothing is computed.
"""

from collections.abc import Collection, Iterator
from typing import TypeAlias

from attrs import fields, frozen

from spec.core.judging import ids
from spec.core.words import changes
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.registry import by_id, code, hits, holders, of_step, text, witness

_RECORD = code("request")
_ROLLBACK = text("Speculative Decoding - Rollback Logic")


Pairs: TypeAlias = list[tuple[Sequence, Sequence]]  # of requests, as they were and as they are


@frozen
class _Parts:
    """The two parts of a step: `decided`, the decisions, and `computed`, the results."""

    decided: Pairs
    computed: Pairs


def _parts(_ctx: Context, step: Step) -> _Parts:
    """Each request that is present before and after a part of the step."""
    return _Parts(_pairs(step.before, step.planned), _pairs(step.planned, step.after))


def _pairs(before: State, after: State) -> Pairs:
    was = by_id(holders(before))
    return [(was[row.id], row) for row in holders(after) if row.id in was]


def _leaves(step: Step, row: Sequence) -> bool:
    """True if the request leaves in the step."""
    return row.id in step.finished or row.id in step.leavers


@of_step("V1-LIF-8", _RECORD)
@witness(lambda _, step: len(step.scheduled) < len(step.before.present) and step.scheduled)
def untouched_requests_stay(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that a step gives no tokens, and neither preempts nor loads nor takes for loaded,
    stays as it is.
    """
    # Nor does what is computed change a request that was given no tokens; one that gets the token
    # of a step in flight has it, and is as it was in all else.
    touched = {*step.scheduled, *step.preempted} | ids(step.happened("load", "promote"))
    for before, after, excepted in (
        (step.before, step.planned, touched),
        (
            step.planned,
            step.after,
            {*step.scheduled, *step.finished, *step.failed_loads} | step.leavers,
        ),
    ):
        now = by_id(holders(after))
        for row in holders(before):
            is_same = row.id in excepted or now.get(row.id) == row
            if not is_same and not (row.id in step.outputs and _gains(step, row, now.get(row.id))):
                yield f"{row.id}: {changes(row, now.get(row.id))}"


def _gains(step: Step, was: Sequence, row: Sequence | None) -> bool:
    """True if only the tokens that the request has and awaits are others, and rejected drafts."""
    verifies = was.id in step.accepted and was in step.planned.running
    others = {"generated", "placeholders", *(["computed"] if verifies else [])}
    names = {key.name for key in fields(Sequence)} - others
    return all(getattr(was, name) == getattr(row, name, None) for name in names)


@of_step("V1-LIF-9", _RECORD, given=_parts, witness=lambda _, step: step.preempted)
def what_was_handed_in_stays(_ctx: Context, _step: Step, parts: _Parts) -> Iterator[str]:
    """A step changes neither the length of a request's prompt nor its number among the arrivals."""
    # A victim comes back with the number that it had.
    for was, row in (*parts.decided, *parts.computed):
        if (row.prompt_len, row.arrival) != (was.prompt_len, was.arrival):
            yield f"{row.id} has prompt {row.prompt_len}, arrival {row.arrival}, was {was}"


@of_step("V1-PRG-6", text("The Fundamental Insight"), given=_parts)
@witness(lambda _, step: any(row.computed for row in step.planned.running))
def computed_when_decided(ctx: Context, step: Step, parts: _Parts) -> Iterator[str]:
    """When all is decided a request has computed what it had, a newcomer also what it found in the
    cache and what is brought, and a victim nothing.
    """
    # Of a load that has ended one token is left to compute; what a load brings is V1-EXT-8's.
    found, size = hits(step), ctx.config.block_size
    loads, promoted = ids(step.happened("load")), ids(step.happened("promote"))
    for was, row in parts.decided:
        had = min(was.computed, was.tokens - 1) if row.id in promoted else was.computed
        if row.id in step.admitted:
            had += len(found.get(row.id, ())) * size + step.external.get(row.id, 0)
        due = 0 if row.id in step.preempted else had
        if row.id not in loads and row.computed != due:
            yield f"{row.id} has computed {row.computed} when all is decided, expected {due}"


@of_step("V1-ASY-6", code("AsyncScheduler"), given=_parts)
@witness(lambda _, step: any(row.placeholders for row in step.planned.running))
def decisions_await_nothing(_ctx: Context, step: Step, parts: _Parts) -> Iterator[str]:
    """When all is decided a request awaits as many tokens as before, and a victim none."""
    # How many are in flight then is V1-ASY-3's.
    for was, row in parts.decided:
        due = 0 if row.id in step.preempted else was.placeholders
        if row.placeholders != due:
            yield f"{row.id} awaits {row.placeholders} tokens when all is decided, expected {due}"


@of_step("V1-PRG-7", code("is_prefill_chunk"))
@witness(lambda _, step: any(row.prefilling for row in step.after.running))
def prefilling_is_what_is_left(_ctx: Context, step: Step) -> Iterator[str]:
    """A request is marked as prefilling exactly if the last step that gave it tokens left some of
    those that it had then uncomputed, or lost its load, and it was not preempted since.
    """
    # Only what runs is marked; what is decided changes no mark but a victim's.
    for row in step.planned.queued:
        if row.prefilling:
            yield f"{row.id} does not run and is marked"
    before = by_id(step.before.running)
    for row in step.planned.running:
        if row.prefilling != (row.id in before and before[row.id].prefilling):
            yield f"{row.id} is marked {row.prefilling} when all is decided"
    after = by_id(step.after.running)
    for row in step.planned.running:
        if row.id not in after:
            continue
        due = row.prefilling
        if row.id in step.scheduled:
            end = row.computed + step.scheduled[row.id]
            due = end < row.tokens + row.placeholders
        due = due or row.id in step.failed_loads
        if after[row.id].prefilling != due:
            yield f"{row.id} is marked {after[row.id].prefilling}, expected {due}"


@of_step(
    "V1-PRG-8", text("The Fundamental Insight"), given=_parts, witness=lambda _, step: step.outputs
)
def generated_is_what_was_sampled(_ctx: Context, step: Step, parts: _Parts) -> Iterator[str]:
    """A request has generated what it had, and after the step what it sampled in it, too."""
    # A victim keeps its tokens.
    for was, row in parts.decided:
        if row.generated != was.generated:
            yield f"{row.id} has {row.generated} tokens when all is decided, had {was.generated}"
    for was, row in parts.computed:
        due = was.generated + len(step.outputs.get(row.id, ()))
        if row.generated != due:
            yield f"{row.id} has generated {row.generated} tokens, expected {due}"


def _sampling(ctx: Context, step: Step) -> Collection[str]:
    """The requests for which the step samples, whether or not the results have come."""
    if not ctx.config.steps_in_flight:
        return step.outputs
    rows = (row for row in step.planned.running if row.id in step.scheduled)
    ends = ((row, row.computed + step.scheduled[row.id]) for row in rows)
    return {row.id for row, end in ends if end >= row.tokens + row.placeholders}


@of_step("V1-SPC-6", _ROLLBACK, given=_parts)
@witness(lambda _, step: any(row.drafts for row in step.after.running))
def drafts_are_proposed(ctx: Context, step: Step, parts: _Parts) -> Iterator[str]:
    """A request that samples has as many drafts to verify next as are proposed for it; one that is
    given tokens and does not sample, that is admitted, preempted or leaves has none.
    """
    # With steps in flight so many may be proposed: which they are is not known when it samples.
    # A drafter proposes num_speculative_tokens, or fewer. Any other request keeps what it has.
    without = {*step.scheduled, *step.preempted, *step.admitted}
    for was, row in parts.decided:
        due = 0 if row.id in without else was.drafts
        if row.drafts != due:
            yield f"{row.id} has {row.drafts} drafts when all is decided, expected {due}"
    for was, row in parts.computed:
        due = was.drafts
        if row.id in _sampling(ctx, step):
            due = step.proposed.get(row.id, ctx.config.num_speculative_tokens)
        due = 0 if _leaves(step, row) or row.id in step.failed_loads else due
        if row.drafts != due:
            yield f"{row.id} has {row.drafts} drafts, expected {due}"


@of_step("V1-KV-16", code("block tables"), given=_parts)
@witness(lambda _, step: step.happened("prefix_hit") and step.happened("allocate"))
def tables_grow_at_their_ends(_ctx: Context, step: Step, parts: _Parts) -> Iterator[str]:
    """A request's block table is what it held, then the cached blocks that it found, then those
    that it was handed out; a victim's is empty.
    """
    # So is one's whose load brought nothing, before it finds any. Computing changes no table.
    fresh: dict[str, tuple[int, ...]] = {}
    for event in step.happened("allocate"):
        fresh[event.id] = fresh.get(event.id, ()) + event.after
    found, promoted = hits(step), ids(step.happened("promote"))
    for was, row in parts.decided:
        held = () if row.id in promoted and not was.computed else was.blocks
        due = (*held, *found.get(row.id, ()), *fresh.get(row.id, ()))
        if row.blocks != (() if row.id in step.preempted else due):
            yield f"{row.id} has blocks {list(row.blocks)}, expected {list(due)}"
    for was, row in parts.computed:
        if row.blocks != was.blocks:
            yield f"{row.id} has blocks {list(row.blocks)} after computing, had {list(was.blocks)}"


@of_step("V1-EXT-9", code("KV connector"), given=_parts)
@witness(lambda _, step: step.happened("load"))
def loads_begin_and_end(_ctx: Context, step: Step, parts: _Parts) -> Iterator[str]:
    """A request is marked as loading from the step that begins its load, and its mark is taken off
    in the step that takes it for loaded, or in which it leaves and no longer loads.
    """
    # Between steps a load ends (V1-LIF-3).
    loads, promoted = ids(step.happened("load")), ids(step.happened("promote"))
    for was, row in parts.decided:
        due = Load.LOADING if row.id in loads else Load.NONE if row.id in promoted else was.load
        if row.load is not due:
            yield f"{row.id} is marked {row.load}, expected {due}"
    for was, row in parts.computed:
        has_ended = _leaves(step, row) and was.load is not Load.LOADING
        due = Load.NONE if has_ended else was.load
        if row.load is not due:
            yield f"{row.id} is marked {row.load} after computing, expected {due}"
