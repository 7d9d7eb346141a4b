"""One scheduler step: which transitions the priority rules pick, in order.

Source: spyre, "Priority rules". A step is a prefill of one chunk if somebody may have it, else
a decode of the whole batch, else idle.
"""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from reference.spyre import transitions
from reference.spyre.admission import Refusal, prefill_refusal
from reference.spyre.transitions import Ends
from spec.core.blocks import block_count
from spec.core.records import DECODE, IDLE, PREFILL, Event
from spec.spyre.config import Admission, Queue
from spec.spyre.padding import max_tkv, volume
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence, State


def scheduler_step(ctx: Context, state: State, ends: Ends, index: int = 0, time: float = 0) -> Step:
    """What the scheduler does next, and the state that it leaves.

    `ends` tells, of a request that just sampled, whether that was the end of sequence. `index`
    and `time` (simulated units) are those of the step and are only noted.
    """
    candidate, refusal = choose_prefill(ctx, state)
    if candidate is not None:
        done = _prefill_step(ctx, state, candidate, ends)
    elif state.decoding or state.paused:
        done = _decode_step(ctx, state, ends)
    else:
        done = {"kind": IDLE, "after": evolve(state, last_kind=IDLE, last_tkv=0)}
    return Step(index=index, time=time, before=state, refusal=refusal, **done)


def choose_prefill(ctx: Context, state: State) -> tuple[Sequence | None, Refusal]:
    """The request whose chunk is next, or nobody and the first rule that refused somebody.

    First come, first served looks at the head of the queue only; overtaking goes on to the next
    unless blocks are lacking (as 2.6.3 does).
    """
    if state.prefilling is not None:
        refusal = prefill_refusal(ctx, state, state.prefilling)
        return (state.prefilling, None) if refusal is None else (None, refusal)
    first_refusal: Refusal = None
    for sequence in state.waiting:
        refusal = prefill_refusal(ctx, state, sequence)
        if refusal is None:
            return sequence, first_refusal
        first_refusal = first_refusal or refusal
        if ctx.config.queue is Queue.FCFS or refusal == "SPY-RES-1":
            break
    return None, first_refusal


def _prefill_step(ctx: Context, state: State, candidate: Sequence, ends: Ends) -> dict[str, Any]:
    """One chunk of one request; its last chunk yields a token."""
    state, events = _admitted(ctx, state, candidate)
    state, chunk, more = transitions.chunk(ctx, state)
    events += more
    outputs: Mapping[str, list[int]] = {}
    finished: tuple[str, ...] = ()
    if chunk.is_last:
        state, more = transitions.join(ctx, state)
        outputs = _outputs(ctx, state.decoding[:1])
        events += more
        state, more = transitions.finish(
            ctx, state, lambda row: row.id == candidate.id and ends(row)
        )
        events += more
        finished = tuple(event.id for event in more)
    tkv = candidate.prefill_len
    return {
        "kind": PREFILL,
        "after": _rest(ctx, state, PREFILL, tkv),
        "scheduled": {candidate.id: chunk.end - chunk.start},
        "tkv": tkv,
        "volume": volume(1, tkv),
        "chunk": chunk,
        "outputs": outputs,
        "finished": finished,
        "events": events,
    }


def _admitted(ctx: Context, state: State, candidate: Sequence) -> tuple[State, tuple[Event, ...]]:
    """The state with the candidate in the prefill slot, and how it came there."""
    if candidate is state.prefilling:
        return state, ()
    state, events = transitions.admit(ctx, state, candidate)
    state, more = transitions.prefix_hit(ctx, state)
    events += more
    if ctx.config.reservation:
        state, more = transitions.reserve(ctx, state)
        events += more
    return state, events


def _decode_step(ctx: Context, state: State, ends: Ends) -> dict[str, Any]:
    """One token of every request in the batch, as far as limit and pool allow."""
    events: tuple[Event, ...] = ()
    if ctx.config.may_pause:
        state, events = _paused_or_resumed(ctx, state)
    state, more = _with_blocks(ctx, state)
    events += more
    for transition in (transitions.pad, transitions.extend, transitions.decode):
        state, more = transition(ctx, state)
        events += more
    batch = state.decoding
    tkv = max_tkv([row.computed for row in batch], ctx.config.block_size)
    state, more = transitions.finish(ctx, state, ends)
    return {
        "kind": DECODE,
        "after": _rest(ctx, state, DECODE, tkv),
        "scheduled": {row.id: 1 for row in batch},
        "tkv": tkv,
        "volume": volume(len(batch), tkv),
        "batch": batch,
        "outputs": _outputs(ctx, batch),
        "finished": tuple(event.id for event in more),
        "events": events + more,
    }


def _rest(ctx: Context, state: State, kind: str, tkv: int) -> State:
    """The state between steps; the step's tkv is kept only for the rule that looks at it."""
    kept = tkv if ctx.config.admission is Admission.SHIPPED else 0
    return evolve(state, last_kind=kind, last_tkv=kept)


def _outputs(ctx: Context, rows: tuple[Sequence, ...]) -> dict[str, list[int]]:
    """The token that each row sampled last."""
    return {row.id: [ctx.requests[row.id].output_token(row.generated - 1)] for row in rows}


def _paused_or_resumed(ctx: Context, state: State) -> tuple[State, tuple[Event, ...]]:
    """Who decodes in this step under the volume limit: longest paused first.

    Then fewest generated first, or most with `long_output_first`; ties as they were queued.
    Source: sendnn-inference 2.6.3, decode pausing.
    """
    sign = -1 if ctx.config.long_output_first else 1
    order = sorted(
        (*state.paused, *state.decoding),
        key=lambda row: (-row.waited_steps, sign * row.generated),
    )
    kept: list[Sequence] = []
    benched: list[Sequence] = []
    for row in order:
        (kept if _fits_limit(ctx, [*kept, row]) else benched).append(row)
    events: tuple[Event, ...] = ()
    for row in (row for row in kept if row in state.paused):
        state, more = transitions.resume(ctx, state, row)
        events += more
    for row in (row for row in benched if row in state.decoding):
        state, more = transitions.pause(ctx, state, row)
        events += more
    return transitions.sit_out(ctx, state, [row.id for row in benched]), events


def _fits_limit(ctx: Context, rows: list[Sequence]) -> bool:
    """True if the next decode step of these rows keeps the volume limit."""
    tkv = max_tkv([row.computed + 1 for row in rows], ctx.config.block_size)
    return int(volume(len(rows), tkv)) <= ctx.config.max_batch_tkv_limit


def _with_blocks(ctx: Context, state: State) -> tuple[State, tuple[Event, ...]]:
    """Enough free blocks for every row's next token, if need be by preempting the last admitted.

    A prefill in progress was admitted last of all; then the front of the batch.
    """
    events: tuple[Event, ...] = ()
    while _blocks_lacking(ctx, state) > 0:
        victim = state.prefilling or state.decoding[0]
        state, more = transitions.preempt(ctx, state, victim)
        events += more
    return state, events


def _blocks_lacking(ctx: Context, state: State) -> int:
    """Blocks that the batch's next tokens need beyond the free ones."""
    size = ctx.config.block_size
    needed = sum(
        int(block_count(row.computed + 1, size)) - len(row.blocks) for row in state.decoding
    )
    return needed - len(state.pool.free)
