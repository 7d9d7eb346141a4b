"""One scheduler step: `schedule()`, the sampled tokens, and `postprocess()`.

Source: nano-vllm, chapter 6. Admitted sequences are prefilled if there are any; else the whole
running queue decodes, as far as sequence limit and blocks allow. With `prefill=first_chunked` the
first sequence of a prefill step may compute a part of its tokens.
"""

from attrs import evolve, frozen

from reference.core.run import Run
from reference.nano_vllm import transitions
from reference.nano_vllm.block_manager import cached_blocks, can_allocate, can_append
from reference.nano_vllm.transitions import Ends
from spec.core.records import DECODE, IDLE, PREFILL, Event
from spec.nano_vllm.config import Hashing, Prefill, SequenceLimit
from spec.nano_vllm.formulas import counted_tokens, is_cut, within_budget
from spec.nano_vllm.records import Context, Sequence, State, Step

Refusal = str | None  # the rule that ended the admissions


@frozen
class Schedule:
    """The decisions of `schedule()`; the batch is not computed yet.

    `count`: of a prefill step the sequences that it admitted, the last of running; else those in
    the batch, the first of running. `decoded_first`: admitted ones that are in no prefill. `cut`:
    tokens of its prefill that the front of waiting computes, alone, if it is cut; else 0.
    """

    state: State
    is_prefill: bool
    count: int
    events: tuple[Event, ...] = ()
    refusal: Refusal = None
    decoded_first: frozenset[str] = frozenset()
    cut: int = 0

    @property
    def batch(self) -> tuple[Sequence, ...]:
        """The batch in the order in which it is handed to the runner."""
        return self.rows_of(self.state)

    def rows_of(self, state: State) -> tuple[Sequence, ...]:
        """The rows of the batch in another state with the same queues."""
        running = state.running
        if self.cut:
            return tuple(state.waiting[:1])
        if not self.is_prefill:
            return running[: self.count]
        admitted = running[len(running) - self.count :]
        return tuple(row for row in admitted if row.id not in self.decoded_first)

    def end_of(self, row: Sequence) -> int:
        """The tokens of a row of the batch that are computed after the step."""
        if self.cut or not self.is_prefill:
            return row.computed + (self.cut or 1)
        return row.prefill_len


def scheduler_step(ctx: Context, state: State, ends: Ends, index: int = 0, time: float = 0) -> Step:
    """The next scheduler step and the state after it.

    `ends`: whether a sequence that just sampled thereby sampled the end of sequence. `index` and
    `time` (simulated units) are those of the step and are only noted. The step's `batch` holds the
    rows of a prefill step, too.

    Raises:
        GuardError: a transition is taken where its guard does not hold.
    """
    planned = schedule(ctx, state)
    step = Step(
        index=index,
        time=time,
        kind=IDLE,
        before=state,
        after=planned.state,
        refusal=planned.refusal,
        events=planned.events,
    )
    return _computed(ctx, step, planned, ends) if planned.batch else step


def schedule(ctx: Context, state: State) -> Schedule:
    """The whole logic: prefill all that can be admitted, else decode ("The Entire Logic")."""
    admitted = _admissions(ctx, state)
    return admitted if admitted.batch else _decode_batch(ctx, admitted)


def _admissions(ctx: Context, state: State) -> Schedule:
    """Admit from the front of waiting until a gate refuses or a prefill is cut; none is skipped."""
    run, count, batched, cut = Run(ctx, state), 0, 0, 0
    refusal: Refusal = None
    decoded_first: set[str] = set()
    while run.state.waiting and not cut:
        in_batch = count - len(decoded_first)
        refusal = admission_refusal(ctx, run.state, in_batch, batched)
        if refusal is not None:
            break
        sequence, room = run.state.waiting[0], ctx.config.max_num_batched_tokens - batched
        missing = sequence.prefill_len - _cached(ctx, run.state, sequence)
        if is_cut(missing, room, ctx.config.prefill):
            run.take(transitions.begin)
            cut = room
            continue
        run.take(transitions.admit)
        newest = run.state.running[-1]
        count += 1
        if transitions.is_decoded_first(ctx, newest):
            decoded_first.add(newest.id)
        else:
            batched += newest.prefill_len - newest.computed
    return Schedule(run.state, True, count, run.events, refusal, frozenset(decoded_first), cut)


def _cached(ctx: Context, state: State, sequence: Sequence) -> int:
    """The tokens of a waiting sequence that need no prefill: those computed, else those found."""
    if sequence.blocks:
        return sequence.computed
    return len(cached_blocks(ctx, state.pool, sequence)) * ctx.config.block_size


def admission_refusal(ctx: Context, state: State, count: int, batched: int) -> Refusal:
    """The gate that keeps the front of waiting from the prefill step ("Admission Checks").

    `count`: sequences that the step has in its batch; `batched`: tokens that they compute.
    """
    config, sequence = ctx.config, state.waiting[0]
    limited = count if config.sequence_limit is SequenceLimit.BATCH else len(state.running)
    if limited >= config.max_num_seqs:
        return "NANO-ADM-3"
    counted = counted_tokens(sequence.prefill_len, _cached(ctx, state, sequence), config.token_gate)
    is_first = config.prefill is Prefill.FIRST_CHUNKED and not count  # cut, if need be
    if not is_first and not within_budget(batched, counted, config.max_num_batched_tokens):
        return "NANO-ADM-1"
    has_blocks = bool(sequence.blocks) or can_allocate(ctx, state.pool, sequence)
    return None if has_blocks else "NANO-ADM-2"


def _decode_batch(ctx: Context, admitted: Schedule) -> Schedule:
    """A slot for the newest token of each, from the front of running ("The Decode Path").

    What was admitted decodes, too, if nothing of it is to be prefilled. The batch stays in its
    place in front of running, which is where the text puts it back.
    """
    run, count = Run(ctx, admitted.state, admitted.events), 0
    while count < min(len(run.state.running), ctx.config.max_num_seqs):
        row = run.state.running[count]
        _make_room(run, row)
        if count < len(run.state.running):  # it was not itself the last one to be preempted
            run.take(transitions.append, row)
            count += 1
    return Schedule(run.state, False, count, run.events, admitted.refusal)


def _make_room(run: Run[Context, State], row: Sequence) -> None:
    """Preempt from the back of running until the row finds its slot, itself last of all."""
    while not can_append(run.ctx, run.state.pool, row):
        victim = run.state.running[-1]
        run.take(transitions.preempt, victim)
        if victim is row:
            break


def _computed(ctx: Context, step: Step, planned: Schedule, ends: Ends) -> Step:
    """The step with its batch computed."""
    run = Run(ctx, planned.state, planned.events)
    # the runner computes the batch and samples a token of each row whose prefill is not cut
    if planned.cut:
        run.take(transitions.chunk, planned.cut)
    else:
        run.take(transitions.prefill if planned.is_prefill else transitions.decode, planned.count)
    batch = planned.rows_of(run.state)
    sampled = () if planned.cut else batch
    # postprocess: what was computed is hashed, the rows that are done leave
    starts = {row.id: row.computed for row in planned.batch}
    if ctx.config.hashing is Hashing.COMPUTED:
        run.take(transitions.hash_computed, batch, starts)
    run.take(transitions.finish, sampled, ends)
    return evolve(
        step,
        kind=PREFILL if planned.is_prefill else DECODE,
        after=run.state,
        scheduled={row.id: row.computed - starts[row.id] for row in batch},
        batch=batch,
        outputs={
            row.id: (ctx.requests[row.id].output_token(row.generated - 1),) for row in sampled
        },
        finished=run.ids_of("finish"),
        events=run.events,
    )
