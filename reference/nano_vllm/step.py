"""One scheduler step: `schedule()`, the model's answer, and what follows from it.

Source: nano-vllm, chapter 6. Admitted sequences are prefilled if there are any; else everybody
in the running queue decodes, as far as sequence limit and blocks allow.
"""

from typing import Any

from attrs import frozen

from reference.nano_vllm import transitions
from reference.nano_vllm.block_manager import cached_blocks, can_allocate, can_append
from reference.nano_vllm.transitions import Ends
from spec.core.records import DECODE, IDLE, PREFILL, Event
from spec.nano_vllm.config import SequenceLimit
from spec.nano_vllm.formulas import counted_tokens, within_budget
from spec.nano_vllm.records import Context, Sequence, State, Step

Refusal = str | None  # the rule that ended the admissions


@frozen
class Schedule:
    """What `schedule()` decided; the batch is not computed yet.

    `count`: sequences in the batch: the last of running in a prefill step, else the first.
    """

    state: State
    is_prefill: bool
    count: int
    events: tuple[Event, ...] = ()
    refusal: Refusal = None

    @property
    def batch(self) -> tuple[Sequence, ...]:
        """The batch in the order in which it is handed to the runner."""
        running = self.state.running
        return running[len(running) - self.count :] if self.is_prefill else running[: self.count]


def scheduler_step(ctx: Context, state: State, ends: Ends, index: int = 0, time: float = 0) -> Step:
    """What the scheduler does next, and the state that it leaves.

    `ends` tells, of a sequence that just sampled, whether that was the end of sequence. `index`
    and `time` (simulated units) are those of the step and are only noted. The step's `batch` holds
    the rows of a prefill step, too.
    """
    planned = schedule(ctx, state)
    if planned.count == 0:
        done: dict[str, Any] = {"kind": IDLE, "after": planned.state, "events": planned.events}
    else:
        done = _computed(ctx, planned, ends)
    return Step(index=index, time=time, before=state, refusal=planned.refusal, **done)


def schedule(ctx: Context, state: State) -> Schedule:
    """The whole logic: prefill whoever can be admitted, else decode ("The Entire Logic")."""
    admitted = _admissions(ctx, state)
    return admitted if admitted.count else _decode_batch(ctx, state, admitted.refusal)


def _admissions(ctx: Context, state: State) -> Schedule:
    """Admit from the front of waiting until a gate refuses; nobody is skipped."""
    events: tuple[Event, ...] = ()
    count = batched = 0
    refusal: Refusal = None
    while state.waiting:
        refusal = admission_refusal(ctx, state, count, batched)
        if refusal is not None:
            break
        state, more = transitions.admit(ctx, state)
        newest = state.running[-1]
        events, count = events + more, count + 1
        batched += newest.prefill_len - newest.computed
    return Schedule(state, True, count, events, refusal)


def admission_refusal(ctx: Context, state: State, count: int, batched: int) -> Refusal:
    """The gate that keeps the front of waiting from the prefill step ("Admission Checks").

    `count`: sequences that the step has admitted; `batched`: tokens that they compute.
    """
    config, sequence = ctx.config, state.waiting[0]
    limited = count if config.sequence_limit is SequenceLimit.BATCH else len(state.running)
    if limited >= config.max_num_seqs:
        return "NANO-ADM-3"
    cached = len(cached_blocks(ctx, state.pool, sequence)) * config.block_size
    counted = counted_tokens(sequence.prefill_len, cached, config.token_gate)
    if not within_budget(batched, counted, config.max_num_batched_tokens):
        return "NANO-ADM-1"
    return None if can_allocate(ctx, state.pool, sequence) else "NANO-ADM-2"


def _decode_batch(ctx: Context, state: State, refusal: Refusal) -> Schedule:
    """A slot for the newest token of each, from the front of running ("The Decode Path").

    The batch stays in its place in front of running, which is where the text puts it back.
    """
    events: tuple[Event, ...] = ()
    count = 0
    while count < min(len(state.running), ctx.config.max_num_seqs):
        row = state.running[count]
        state, more = _with_room(ctx, state, row)
        events += more
        if count < len(state.running):  # it was not itself the last one to be preempted
            state, more = transitions.append(ctx, state, row)
            events, count = events + more, count + 1
    return Schedule(state, False, count, events, refusal)


def _with_room(ctx: Context, state: State, row: Sequence) -> tuple[State, tuple[Event, ...]]:
    """Preempt from the back of running until the row finds its slot, itself last of all."""
    events: tuple[Event, ...] = ()
    while not can_append(ctx, state.pool, row):
        victim = state.running[-1]
        state, more = transitions.preempt(ctx, state, victim)
        events += more
        if victim is row:
            break
    return state, events


def _computed(ctx: Context, planned: Schedule, ends: Ends) -> dict[str, Any]:
    """The runner computes the batch, each row gets a token, and those that are done leave."""
    compute = transitions.prefill if planned.is_prefill else transitions.decode
    state, events = compute(ctx, planned.state, planned.count)
    before = planned.batch
    batch = Schedule(state, planned.is_prefill, planned.count).batch
    state, more = transitions.finish(ctx, state, batch, ends)
    return {
        "kind": PREFILL if planned.is_prefill else DECODE,
        "after": state,
        "scheduled": {
            row.id: done.computed - row.computed for row, done in zip(before, batch, strict=True)
        },
        "batch": batch,
        "outputs": {
            row.id: [ctx.requests[row.id].output_token(row.generated - 1)] for row in batch
        },
        "finished": tuple(event.id for event in more),
        "events": planned.events + events + more,
    }
