"""States and steps of the scheduler as the records that rules judge.

The engine keeps arrays; rules, traces and comparisons use `spec.spyre.state.State` and
`spec.spyre.records.Step`. An observer makes these records; unchanged parts of a state are shared
with the state before. A scheduler without an observer has no cost for this.
"""

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from engine.core import observing
from engine.core.observing import (
    PoolObserver,
    QueueObserver,
    ended_requests,
    with_new_names,
)
from engine.core.scheduler import Ends
from engine.spyre.scheduler import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan, Scheduler
from engine.spyre.scheduler.prefill import with_block_table
from engine.spyre.scheduler.requests import Batch, RequestState
from spec.core.records import Event
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import volume
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence, State, is_remembered_alike, remembered

Rows = tuple[Sequence, ...]


# --- a step -------------------------------------------------------------------------------------


class StepObserver(observing.StepObserver["Observer"]):
    """Records the steps of one scheduler: call `begin` before each step and `end` after it."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(Observer(scheduler))
        self._config = scheduler.state.config
        self._after: State = self._before
        self._left_at = self._observer.moment()
        self._names: tuple[str, ...] = ()
        self._one_each: dict[str, int] = {}  # of these names

    def begin(self) -> State:
        """The state before the step; made again only after a change by a client or a new device."""
        if self._observer.moment() != self._left_at:
            self._after = self._observer.state()
            self._left_at = self._observer.moment()
        self._before = self._after
        return self._after

    def end(
        self,
        plan: Plan,
        outcome: Outcome,
        index: int,
        time: float,
        ends: Ends = None,
        aborted: tuple[str, ...] = (),
    ) -> Step:
        """The record of the last step, after its plan was applied.

        `ends`: ids of requests that sample end-of-sequence, if the environment decides that.
        `aborted`: ids of requests that were aborted since the step before.
        """
        chunk: Chunk | None = None
        scheduled: dict[str, int] = {}
        batch: Rows = ()
        events: Iterator[Event] = iter(())
        match plan:
            case PrefillPlan():
                chunk = with_block_table(self._config, plan.chunk, plan.table, plan.hit_blocks)
                scheduled = {chunk.id: chunk.end - chunk.start}
                events = _prefill_events(self._config, self._before, plan, outcome)
            case DecodePlan():
                batch = self._observer.rows(plan.rows)
                if outcome.sampled is not self._names:
                    self._names, self._one_each = outcome.sampled, dict.fromkeys(outcome.sampled, 1)
                scheduled = self._one_each
                events = _decode_events(self._config, self._before, batch, plan, outcome)
            case IdlePlan():
                events = _pauses(plan)
        self._after = self._observer.state()
        self._left_at = self._observer.moment()
        return Step(
            index=index,
            time=time,
            kind=plan.kind,
            before=self._before,
            after=self._after,
            scheduled=scheduled,
            tkv=outcome.tkv,
            volume=int(volume(len(scheduled), outcome.tkv)),
            chunk=chunk,
            batch=batch,
            outputs={name: tuple(tokens) for name, tokens in outcome.outputs.items()},
            ended=ended_requests(outcome, ends),
            finished=outcome.finished,
            aborted=aborted,
            refusal=plan.refusal,
            events=(*(Event("encode", name, "SPY-ENC-2") for name in plan.given), *events),
        )


def _prefill_events(
    config: SpyreConfig, before: State, plan: PrefillPlan, outcome: Outcome
) -> Iterator[Event]:
    """The events of a prefill step in order."""
    chunk, name = plan.chunk, plan.chunk.id
    computed = chunk.cached_tokens if before.prefilling is None else before.prefilling.computed
    if plan.is_new:
        yield Event("admit", name, "SPY-ADM-1")
        if plan.held:
            yield Event("prefix_hit", name, "SPY-PFX-3", (), plan.held)
        if config.reservation:
            yield Event("reserve", name, "SPY-RES-2", 0, plan.promised)
    if plan.new_blocks:
        yield Event("allocate", name, "SPY-CHK-1", plan.held, plan.new_blocks)
    yield Event("chunk", name, "SPY-CHK-3", computed, chunk.end)
    if chunk.is_last:
        yield Event("join", name, "SPY-CHK-4")
    yield from _finishes(outcome)


def _finishes(outcome: Outcome) -> Iterator[Event]:
    return (Event("finish", name, "LIF-3") for name in outcome.finished)


def _decode_events(
    config: SpyreConfig,
    before: State,
    batch: Rows,
    plan: DecodePlan,
    outcome: Outcome,
) -> Iterator[Event]:
    """The events of a decode step in order."""
    yield from (Event("resume", request.id, "SPY-PAU-3") for request in plan.resumed)
    yield from _pauses(plan)
    yield from (Event("preempt", victim.id, "SPY-PRE-1") for victim in plan.preempted)
    if plan.left_padding is not None:
        yield from _jumps(config, before, batch)
    for row, block in zip(plan.growing, plan.new_blocks, strict=True):
        grown = batch[row]
        yield Event("allocate", grown.id, "SPY-DEC-5", grown.blocks[:-1], (block,))
    yield Event("decode", "", "SPY-DEC-1")
    yield from _finishes(outcome)


def _pauses(plan: DecodePlan | IdlePlan) -> Iterator[Event]:
    return (Event("pause", request.id, "SPY-PAU-2") for request in plan.newly_paused)


def _jumps(config: SpyreConfig, before: State, batch: Rows) -> Iterator[Event]:
    """Events of rows whose left padding changed. Source: spyre, "tkv jumping"."""
    old_rows = {row.id: row for row in (*before.decoding, *before.paused)}
    pairs = [(old_rows[row.id], row) for row in batch]
    a_row_grew = any(
        old.computed % config.block_size == 0
        and old.computed > old.prefill_len
        and old.left_padding == new.left_padding == 0
        for old, new in pairs
    )
    for old, new in pairs:
        if new.left_padding > old.left_padding:
            rule = "SPY-TKV-4" if a_row_grew else "SPY-TKV-7"
            yield Event("jump_tkv", new.id, rule, old.tkv, new.tkv)
        elif new.left_padding < old.left_padding:
            rule = "SPY-TKV-3" if old.computed % config.block_size == 0 else "SPY-TKV-5"
            yield Event("jump_tkv", new.id, rule, old.tkv, new.tkv)


# --- the state ----------------------------------------------------------------------------------


@frozen
class _Seen:
    """A batch with the records of its rows, as of `steps_to_full`."""

    batch: Batch
    steps_to_full: int
    rows: Rows


class Observer:
    """Makes state records of one scheduler; only the last observer of a scheduler works."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler.state
        self._pool = PoolObserver(self._scheduler.blocks)
        self._queue = QueueObserver(self._scheduler.queue, row_of)
        self._decoding = self._paused = _Seen(Batch.empty(), 0, ())
        self._state: State | None = None

    def state(self) -> State:
        """The scheduler's state; the same object as last time if nothing has changed."""
        now = self._scheduler
        self._decoding = _seen_again(self._decoding, now.decoding)
        self._paused = _seen_again(self._paused, now.paused)
        last = self._state
        self._state = State(
            pool=self._pool.pool(),
            waiting=self._queue.rows(),
            prefilling=None if now.prefilling is None else row_of(now.prefilling),
            decoding=self._decoding.rows,
            paused=self._paused.rows,
            finished=with_new_names(last.finished if last else frozenset(), now.finished),
            aborted=with_new_names(last.aborted if last else frozenset(), now.aborted),
            compiling=frozenset(now.awaited.compiling),
            unencoded=frozenset(now.awaited.unencoded),
            encoding=frozenset(now.awaited.encoding),
            cohort=now.queue.cohort,
            **remembered(now.past),
        )
        if last is not None and _is_same(last, self._state):
            self._state = last
        return self._state

    def moment(self) -> tuple[Any, ...]:
        """A value that changes if a request arrives or leaves, or the device is replaced.

        The queue counts its changes, admitted requests hold blocks, and a new device resets `past`.
        Grammars and images come with requests and become ready.
        """
        now = self._scheduler
        return now.queue.changes, now.awaited.counts(), now.past, self._pool.has_changed

    def rows(self, batch: Batch) -> Rows:
        """Records of the batch that has just decoded; the next state shares them."""
        self._decoding = _seen_again(self._decoding, batch)
        return self._decoding.rows


def row_of(request: RequestState) -> Sequence:
    """The record of a request that waits or prefills."""
    return Sequence(
        request.id,
        prefill_len=request.prefill_len,
        computed=request.computed,
        generated=request.prefill_len - request.request.prompt_len,
        blocks=request.blocks,
        reserved=request.reserved,
        hit_blocks=request.hit_blocks,
    )


def batch_rows(batch: Batch) -> Rows:
    """Records of the rows of a batch, in batch order."""
    columns = (batch.computed, batch.generated(), batch.left_padding, batch.waited_steps)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Sequence(
            member.id,
            member.prefill_len,
            computed,
            generated,
            left_padding,
            member.blocks,
            member.reserved,
            member.hit_blocks,
            waited_steps,
        )
        for member, (computed, generated, left_padding, waited_steps) in zip(
            batch.members, values, strict=True
        )
    )


def _seen_again(seen: _Seen, batch: Batch) -> _Seen:
    """The batch with the records of its rows; made again only if the batch has changed."""
    if seen.batch is batch and seen.steps_to_full == batch.steps_to_full:
        return seen
    return _Seen(batch, batch.steps_to_full, batch_rows(batch))


def _is_same(state: State, other: State) -> bool:
    """True if both consist of the same objects, which is cheaper than comparing their contents."""
    return (
        state.pool is other.pool
        and state.waiting is other.waiting
        and state.prefilling == other.prefilling
        and state.decoding is other.decoding
        and state.paused is other.paused
        and state.finished is other.finished
        and state.aborted is other.aborted
        and state.compiling == other.compiling
        and state.unencoded == other.unencoded
        and state.encoding == other.encoding
        and state.cohort == other.cohort
        and is_remembered_alike(state, other)
    )
