"""Rules of what 2.6.3 ships beyond the text: reservation, pausing; and of preemption.

Source: sendnn-inference 2.6.3, observed; preemption is vLLM V1's, where blocks run out.
"""

from collections.abc import Iterator
from functools import partial

from spec.core.judging import FreeList, ids
from spec.core.rule import Source
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.joining import volume_together
from spec.spyre.rules.observed import (
    Continued,
    by_id,
    continued,
    is_decode,
    judges_rows,
    lacks_worst_case,
    promised_blocks,
    refused,
    worst_case_blocks,
)
from spec.spyre.rules.registry import always, eventually, guard, of_step, release, witness
from spec.spyre.state import Sequence, State


def _reserving(config: SpyreConfig) -> bool:
    return config.reservation


_RESERVATION = release("block reservation")
_always_reserved = partial(always, source=_RESERVATION, applies=_reserving)
_of_pausing = partial(
    of_step, source=release("decode pausing"), applies=lambda config: config.may_pause
)
_of_preemption = partial(
    of_step, source=Source("vllm-v1", "Preemption"), applies=lambda config: not config.reservation
)


@_always_reserved("SPY-RES-1")
@witness(lambda _, step: step.refusal == "SPY-RES-1")
def promises_can_be_kept(ctx: Context, state: State) -> Iterator[str]:
    """Blocks promised to admitted requests are never more than the free ones."""
    # Cached blocks that no request holds count as free. Promised is what each may still need.
    promised = promised_blocks(ctx, state)
    if promised > len(state.pool.free):
        yield f"{promised} blocks promised, {len(state.pool.free)} free"


@_always_reserved("SPY-RES-2")
@witness(lambda _, step: any(row.reserved for row in step.after.admitted))
def worst_case_is_set_aside(ctx: Context, state: State) -> Iterator[str]:
    """An admitted request holds, or is promised, all blocks that it may ever need."""
    # Counted for prompt and maximum output; the last token's key and value need no slot.
    for row in state.admitted:
        needed = worst_case_blocks(ctx, row)
        if len(row.blocks) + row.reserved != needed:
            yield f"request {row.id}: {len(row.blocks)} held, {row.reserved} promised of {needed}"


@guard("SPY-RES-4", _RESERVATION, applies=_reserving)
@witness(lambda _, step: step.refusal == "SPY-RES-1")
def refused_only_for_lack_of_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """A request is refused for lack of blocks only if its worst case, less the cached blocks that
    others hold, exceeds the free blocks that no request is promised.
    """
    # So that a request never waits for blocks that are there.
    row = refused(ctx, step)
    if row is None or step.refusal != "SPY-RES-1":
        return
    if row == step.before.prefilling or not lacks_worst_case(ctx, step.before, row):
        needed, free = worst_case_blocks(ctx, row), len(step.before.pool.free)
        yield f"{row.id} refused: needs {needed} in all, {free} free"


@of_step("SPY-RES-3", _RESERVATION, applies=_reserving)
@witness(
    lambda _, step: (
        len({block for row in step.batch for block in row.blocks}) == step.before.pool.size
    )
)
def no_request_is_preempted(_ctx: Context, step: Step) -> Iterator[str]:
    """With reservation no request ever loses its blocks before it leaves."""
    # The pool may be empty, but never too small.
    for event in step.happened("preempt"):
        yield f"request {event.id} was preempted"


@always("SPY-RES-5", _RESERVATION, applies=lambda config: not config.reservation)
@witness(lambda _, step: step.after.admitted)
def nothing_is_promised(_ctx: Context, state: State) -> Iterator[str]:
    """Without reservation no block is promised to a request."""
    for row in state.present:
        if row.reserved:
            yield f"request {row.id} is promised {row.reserved} blocks"


@of_step("SPY-RES-6", _RESERVATION)
@witness(lambda _, step: step.before.orphaned)
def set_aside_is_kept(_ctx: Context, step: Step) -> Iterator[str]:
    """What 2.6.3 keeps set aside for requests whose clients left, no step changes."""
    # LIF-9 says when it grows. Elsewhere it is 0, see LIF-5.
    before, after = step.before.orphaned, step.after.orphaned
    if before != after:
        yield f"{after} blocks set aside, before {before}"


# --- pausing ------------------------------------------------------------------------------------


@_of_pausing("SPY-PAU-1", witness=lambda _, step: step.happened("pause"))
def paused_keep_everything(_ctx: Context, step: Step) -> Iterator[str]:
    """A paused request keeps its tokens and its blocks."""
    # Compared before and after the step in which it sits out.
    before = by_id(step.before.admitted)
    for row in step.after.paused:
        old = before[row.id]
        if (row.computed, row.generated, row.blocks) != (old.computed, old.generated, old.blocks):
            yield f"request {row.id} changed while it was paused"


@_of_pausing("SPY-PAU-2", witness=lambda _, step: step.happened("pause"))
def pausing_needs_a_reason(ctx: Context, step: Step) -> Iterator[str]:
    """A request is paused only if the batch with it would exceed the limit in the next step."""
    # The batch that decoded and one of the paused, together, are over the limit.
    for row in step.after.paused if step.batch else ():
        lengths = [*(decoded.computed for decoded in step.batch), row.computed + 1]
        volume = volume_together(lengths, ctx.config.block_size)
        if volume <= ctx.config.max_batch_tkv_limit:
            yield f"request {row.id} is paused, volume with it {volume}"


@_of_pausing("SPY-PAU-3", witness=lambda _, step: step.happened("resume"))
def longest_paused_first(ctx: Context, step: Step) -> Iterator[str]:
    """Of the requests that fit the limit, the one that was paused longest decodes first; then the
    one that generated least, or most if so configured.
    """
    # A row that sits out is not before the first of the batch in that order.
    sign, size = -1 if ctx.config.long_output_first else 1, ctx.config.block_size

    def rank(row: Sequence) -> tuple[int, int]:
        return (-row.waited_steps, sign * row.generated)

    rows = by_id((*step.before.decoding, *step.before.paused))
    first = min((rank(rows[id_]) for id_ in ids(step.batch) if id_ in rows), default=None)
    for row in step.after.paused if step.batch else ():
        fits = volume_together([row.computed + 1], size) <= ctx.config.max_batch_tkv_limit
        if first is not None and fits and rank(rows[row.id]) < first:
            yield f"request {row.id} sits out, waited {rows[row.id].waited_steps} steps"


@_of_pausing("SPY-PAU-4", witness=lambda _, step: step.refusal == "SPY-PAU-4")
def paused_before_prefills(_ctx: Context, step: Step) -> Iterator[str]:
    """While one request is paused and another runs, no prefill is scheduled."""
    # If none runs, the release prefers a new request to the paused ones.
    if step.chunk is not None and step.before.paused and step.before.running:
        yield f"chunk of {step.chunk.id} with {len(step.before.paused)} paused"


@eventually("SPY-PAU-5", release("decode pausing"), applies=lambda config: config.may_pause)
@witness(lambda _, step: step.happened("resume"))
def paused_is_resumed(state: State, request_id: str) -> bool:
    """A paused request decodes again or leaves."""
    # Whatever else arrives.
    return request_id not in ids(state.paused)


@of_step(
    "SPY-PAU-6",
    release("last-chunk constraints with pausing off"),
    applies=lambda config: config.may_pause and not config.pausing,
)
@witness(lambda ctx, step: len(step.batch) > 1 and step.refusal == "SPY-VOL-3")
def admission_alone_keeps_the_limit(_ctx: Context, step: Step) -> Iterator[str]:
    """With pausing switched off no request is ever paused: the admission rule alone keeps the
    limit.
    """
    # The release pauses even then, which hides an admission that was too generous.
    for event in step.happened("pause"):
        yield f"request {event.id} was paused, batch of {len(step.before.decoding)}"


@_of_pausing("SPY-PAU-7", witness=lambda _, step: len(step.after.paused) > 1)
def rows_are_tried_in_order(ctx: Context, step: Step) -> Iterator[str]:
    """The rows are tried in the order of priority, of equal ones the paused first and then as they
    stood: each decodes if the limit holds with it and those before it that do, else it is paused;
    so the paused stand, and so those that are resumed come behind the batch.
    """
    # Where none is paused before or after, all rows decode, and SPY-VOL-1 says that they may.
    before, after = step.before, step.after
    if not judges_rows(step) or not (before.paused or after.paused):
        return
    sign = -1 if ctx.config.long_output_first else 1
    decode: list[Sequence] = []
    sit_out: list[str] = []
    for row in sorted(
        (*before.paused, *before.decoding),
        key=lambda row: (-row.waited_steps, sign * row.generated),
    ):
        lengths = [decoding.computed + 1 for decoding in (*decode, row)]
        if volume_together(lengths, ctx.config.block_size) <= ctx.config.max_batch_tkv_limit:
            decode.append(row)
        else:
            sit_out.append(row.id)
    was_paused = ids(before.paused)
    resumed = [row.id for row in step.batch if row.id in was_paused]
    if resumed != [row.id for row in decode if row.id in was_paused]:
        yield f"resumed {resumed}, due are {[row.id for row in decode]} in this order"
    if [row.id for row in after.paused] != sit_out:
        yield f"paused {[row.id for row in after.paused]}, due are {sit_out}"


@of_step("SPY-PAU-8", release("decode pausing"), given=continued)
@witness(lambda _, step: any(row.waited_steps for row in step.after.paused))
def steps_sat_out_are_counted(_ctx: Context, step: Step, rows: Continued) -> Iterator[str]:
    """Of a paused request it is counted how many steps it has sat out, that in which it was paused
    and those in which others decoded or were paused; of any other none.
    """
    # An idle step in which none fits the limit, and all are paused already, counts nothing.
    paused = ids(step.after.paused)
    more = int(is_decode(step) or bool(paused - ids(step.before.paused)))
    for before, after in rows:
        due = before.waited_steps + more if after.id in paused else 0
        if after.waited_steps != due:
            yield f"request {after.id}: {after.waited_steps} steps sat out, due are {due}"


# --- preemption -----------------------------------------------------------------------------------


@_of_preemption("SPY-PRE-1", witness=lambda _, step: step.happened("preempt"))
def last_admitted_is_preempted(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are preempted only if blocks are lacking, the last admitted first."""
    # The prefilling request was admitted last; then the front of the batch. Each but the last that
    # is preempted gives back too few blocks for those that are left.
    victims = [event.id for event in step.happened("preempt")]
    if not victims:
        return
    before, size = step.before, ctx.config.block_size
    order = [row.id for row in (before.prefilling, *before.decoding) if row is not None]
    if victims != order[: len(victims)]:
        yield f"preempted {victims} of {order}"
    books, left = FreeList.of(before.pool, before.present), before.decoding
    for victim in victims:
        needed = sum(row.computed % size == 0 for row in left)
        if needed <= len(books.free):
            yield f"preempted {victim} of {victims}, {needed} blocks needed"
        books.put(books.give_back(victim), ())
        left = tuple(row for row in left if row.id != victim)


@_of_preemption("SPY-PRE-2")
@witness(lambda _, step: any(row.generated for row in step.after.waiting))
def preempted_starts_again(_ctx: Context, step: Step) -> Iterator[str]:
    """A preempted request waits first in the queue, keeps its tokens and computes all again."""
    # Its next prefill covers the prompt and what it had generated.
    victims = [event.id for event in step.happened("preempt")]
    front = step.after.waiting[: len(victims)]
    if sorted(row.id for row in front) != sorted(victims):
        yield f"preempted {victims}, first in the queue are {[row.id for row in front]}"
    tokens = {row.id: row.generated for row in step.before.admitted}
    for row in front:
        if row.computed or row.blocks or row.generated != tokens.get(row.id):
            yield f"request {row.id} waits with {row.computed} tokens and {len(row.blocks)} blocks"
