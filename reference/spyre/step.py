"""One scheduler step: the transitions that the priority rules pick, in their order.

Source: spyre, "Priority rules". A step is a prefill of one chunk if a request may have it, else
a decode of the whole batch, else idle.
"""

from collections.abc import Iterable

from attrs import define, evolve, field

from reference.core.run import Run
from reference.spyre import transitions
from reference.spyre.admission import Refusal, lacks_worst_case, prefill_refusal, width_of
from reference.spyre.transitions import Ends
from spec.core.blocks import block_count
from spec.core.records import DECODE, IDLE, PREFILL
from spec.spyre.padding import max_tkv, volume
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import (
    Sequence,
    State,
    is_remembered_alike,
    line_length,
    past_after,
    remembered,
)


@define
class SpyreRun(Run[Context, State]):
    """A step under way; what it has computed so far has the names of `Step`."""

    kind: str = IDLE
    scheduled: dict[str, int] = field(factory=dict)
    tkv: int = 0
    chunk: Chunk | None = None
    batch: tuple[Sequence, ...] = ()
    outputs: dict[str, tuple[int]] = field(factory=dict)


def scheduler_step(ctx: Context, state: State, ends: Ends, index: int = 0, time: float = 0) -> Step:
    """The next scheduler step and the state after it.

    `ends`: whether a request that just sampled thereby sampled the end of sequence. `index` and
    `time` (simulated units) are those of the step and are only noted.

    Raises:
        GuardError: a transition is taken where its guard does not hold.
    """
    run = SpyreRun(ctx, state)
    candidate, refusal = choose_prefill(ctx, state)
    if candidate is not None and candidate.id in state.compiling:  # only in 2.6.3
        run.take(transitions.hold_up, candidate)
        candidate, refusal = None, refusal or "SPY-STR-1"
    if state.unencoded:
        run.take(transitions.encode)
    if candidate is not None:
        _prefill_step(run, candidate, ends)
    elif state.decoding or state.paused:
        _decode_step(run, ends)
    return Step(
        index=index,
        time=time,
        kind=run.kind,
        before=state,
        after=_at_rest(ctx, run.state, run.kind, run.tkv),
        scheduled=run.scheduled,
        tkv=run.tkv,
        volume=volume(len(run.batch) if run.chunk is None else 1, run.tkv),
        chunk=run.chunk,
        batch=run.batch,
        outputs=run.outputs,
        finished=run.ids_of("finish"),
        refusal=refusal,
        events=run.events,
    )


def choose_prefill(ctx: Context, state: State) -> tuple[Sequence | None, Refusal]:
    """The request whose chunk is next, or None, and the first rule that refused a request.

    First come, first served looks at the head of the queue only; overtaking goes on to the next
    unless blocks are lacking (as 2.6.3 does). By width, it is the narrowest only.
    """
    if state.prefilling is not None:
        refusal = prefill_refusal(ctx, state, state.prefilling)
        return (state.prefilling, None) if refusal is None else (None, refusal)
    first_refusal: Refusal = None
    for sequence in in_line(ctx, state):
        refusal = prefill_refusal(ctx, state, sequence)
        if refusal is None:
            return sequence, first_refusal
        first_refusal = first_refusal or refusal
        if not ctx.config.queue.steps_over(refusal):
            break
    return None, first_refusal


def in_line(ctx: Context, state: State) -> Iterable[Sequence]:
    """The waiting requests in the order in which they are judged.

    One whose grammar is not ready or whose images are not encoded is passed over.
    """
    line = state.waiting[: line_length(ctx.config, state.cohort, len(state.waiting))]
    if state.compiling or state.without_images:
        line = [row for row in line if not is_passed_over(ctx, state, row)]
    if not ctx.config.queue.is_by_width:
        return line
    return tuple(sorted(line, key=lambda row: width_of(ctx, row)))


def is_passed_over(ctx: Context, state: State, row: Sequence) -> bool:
    """True if a waiting request counts as one that has not arrived.

    In 2.6.3 one whose grammar is not ready does not, nor one that lacks images and blocks.
    """
    account = ctx.config.account
    if row.id in state.without_images:
        return not (account.stops_at_images and lacks_worst_case(ctx, state, row))
    return row.id in state.compiling and not account.holds_for_grammars


def _prefill_step(run: SpyreRun, candidate: Sequence, ends: Ends) -> None:
    """One chunk of one request; its last chunk yields a token."""
    run.kind, run.tkv = PREFILL, candidate.prefill_len
    # admission: the prefill slot, the cached blocks, the blocks set aside
    if candidate is not run.state.prefilling:
        run.take(transitions.admit, candidate)
        run.take(transitions.prefix_hit)
        if run.ctx.config.reservation:
            run.take(transitions.reserve)
    # chunk
    run.chunk = chunk = run.make(transitions.chunk)
    run.scheduled = {candidate.id: chunk.end - chunk.start}
    # the last chunk: the first token, a row of the batch, perhaps already the end
    if chunk.is_last:
        run.take(transitions.join)
        run.outputs = _outputs(run.ctx, run.state.decoding[:1])
        run.take(transitions.finish, lambda row: row.id == candidate.id and ends(row))


def _decode_step(run: SpyreRun, ends: Ends) -> None:
    """One token of every request in the batch, as far as limit and pool allow, if of any."""
    # the volume limit: the rows that fit decode, the others sit out
    if run.ctx.config.may_pause:
        _pause_and_resume(run)
        if not run.state.decoding:
            return
    run.kind = DECODE
    # blocks: enough free ones for every row's next token
    while blocks_lacking(run.ctx, run.state) > 0:
        run.take(transitions.preempt, last_admitted(run.state))
    # the rectangular batch, a token of every row
    run.take(transitions.pad)
    run.take(transitions.extend)
    run.take(transitions.decode)
    run.batch = run.state.decoding
    run.scheduled = {row.id: 1 for row in run.batch}
    run.tkv = max_tkv([row.computed for row in run.batch], run.ctx.config.block_size)
    run.outputs = _outputs(run.ctx, run.batch)
    # leaving
    run.take(transitions.finish, ends)


def _at_rest(ctx: Context, state: State, kind: str, tkv: int) -> State:
    """The state between steps, with what is remembered of this one."""
    past = past_after(ctx.config, kind, tkv)
    if state.behind:
        state = evolve(state, behind=0)
    return state if is_remembered_alike(past, state) else evolve(state, **remembered(past))


def _outputs(ctx: Context, rows: tuple[Sequence, ...]) -> dict[str, tuple[int]]:
    """The token that each row sampled last."""
    return {row.id: (ctx.requests[row.id].output_token(row.generated - 1),) for row in rows}


# --- the volume limit -----------------------------------------------------------------------


def _pause_and_resume(run: SpyreRun) -> None:
    """The rows within the limit decode, longest paused first; the others are paused."""
    within, beyond = rows_within_limit(run.ctx, run.state)
    paused = {row.id for row in run.state.paused}
    if not within and all(row.id in paused for row in beyond):
        return  # an idle step that changes nothing
    for row in within:
        if row.id in paused:
            run.take(transitions.resume, row)
    for row in beyond:
        if row.id not in paused:
            run.take(transitions.pause, row)
    run.state = transitions.sit_out(run.ctx, run.state, [row.id for row in beyond])


def rows_within_limit(ctx: Context, state: State) -> tuple[list[Sequence], list[Sequence]]:
    """The rows that decode under the volume limit, and those that do not, in order of priority.

    Longest paused first; then fewest generated first, or most with `long_output_first`; ties as
    they were queued. Source: sendnn-inference 2.6.3, decode pausing.
    """
    sign = -1 if ctx.config.long_output_first else 1
    within: list[Sequence] = []
    beyond: list[Sequence] = []
    for row in sorted(
        (*state.paused, *state.decoding),
        key=lambda row: (-row.waited_steps, sign * row.generated),
    ):
        (within if fits_limit(ctx, [*within, row]) else beyond).append(row)
    return within, beyond


def fits_limit(ctx: Context, rows: list[Sequence]) -> bool:
    """True if the next decode step of these rows keeps the volume limit."""
    tkv = max_tkv([row.computed + 1 for row in rows], ctx.config.block_size)
    return int(volume(len(rows), tkv)) <= ctx.config.max_batch_tkv_limit


# --- blocks ---------------------------------------------------------------------------------


def last_admitted(state: State) -> Sequence:
    """The request that is preempted first: the prefill in progress, then the front of the batch."""
    return state.prefilling or state.decoding[0]


def blocks_lacking(ctx: Context, state: State) -> int:
    """Blocks that the batch's next tokens need beyond the free ones."""
    size = ctx.config.block_size
    needed = sum(
        int(block_count(row.computed + 1, size)) - len(row.blocks) for row in state.decoding
    )
    return needed - len(state.pool.free)
