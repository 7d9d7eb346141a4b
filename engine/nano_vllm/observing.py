"""States and steps of the scheduler as the records that rules judge."""

from collections.abc import Iterable, Iterator, Mapping

from engine.core import observing
from engine.core.decoding import RequestState
from engine.core.observing import (
    PoolObserver,
    QueueObserver,
    ended_requests,
    with_new_names,
)
from engine.core.scheduler import Ends, Outcome
from engine.nano_vllm.plan import DecodePlan, Plan, PrefillPlan
from engine.nano_vllm.scheduler import Scheduler
from spec.core.records import Event
from spec.nano_vllm.records import Sequence, State, Step


class StepObserver(observing.StepObserver["Observer"]):
    """Records the steps of one scheduler: call `begin` before each step and `end` after it."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(Observer(scheduler))
        self._block_size = scheduler.state.config.block_size

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
        if isinstance(plan, PrefillPlan):
            rows = [admission.request for admission in plan.admissions]
            cached = [len(admission.hits) * self._block_size for admission in plan.admissions]
            scheduled = {
                row.id: row.prefill_len - start for row, start in zip(rows, cached, strict=True)
            }
            events = _prefill_events(plan, scheduled)
        else:
            rows, scheduled = [*plan.batch.rows], dict.fromkeys(outcome.sampled, 1)
            events = _decode_events(plan, self._before)
        return Step(
            index=index,
            time=time,
            kind=plan.kind,
            before=self._before,
            batch=self._observer.rows(rows),
            after=self._observer.state(),
            scheduled=scheduled,
            outputs={name: tuple(tokens) for name, tokens in outcome.outputs.items()},
            ended=ended_requests(outcome, ends),
            finished=outcome.finished,
            aborted=aborted,
            refusal=plan.refusal,
            events=(*events, *(Event("finish", name, "NANO-LIF-3") for name in outcome.finished)),
        )


def _prefill_events(plan: PrefillPlan, scheduled: Mapping[str, int]) -> Iterator[Event]:
    """The events of a prefill step in order."""
    for admission in plan.admissions:
        name = admission.request.id
        yield Event("admit", name, "NANO-ADM-4")
        if admission.hits:
            yield Event("prefix_hit", name, "NANO-PFX-5", (), admission.hits)
        if admission.fresh:
            yield Event("allocate", name, "NANO-ADM-2", admission.hits, admission.fresh)
    for admission in plan.admissions:
        name, end = admission.request.id, admission.request.prefill_len
        yield Event("prefill", name, "NANO-LIF-9", end - scheduled[name], end)


def _decode_events(plan: DecodePlan, before: State) -> Iterator[Event]:
    """The events of a decode step in order."""
    if plan.moves:
        tables = {row.id: row.blocks for row in before.running}
    for row, block in plan.moves:
        if block is None:
            yield Event("preempt", row.id, "NANO-PRE-2")
        else:
            yield Event("allocate", row.id, "NANO-DEC-3", tables[row.id], (block,))
    if plan.batch.rows:
        yield Event("decode", "", "NANO-LIF-9")


class Observer:
    """Makes state records of one scheduler; only the last observer of a scheduler works."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler.state
        self._pool = PoolObserver(self._scheduler.blocks)
        self._queue = QueueObserver(self._scheduler.queue, _waiting_row)
        self._records: dict[RequestState, Sequence] = {}
        self._seen: tuple[int, list[RequestState], tuple[Sequence, ...]] = 0, [], ()
        self._state: State | None = None

    def state(self) -> State:
        """The scheduler's state; the same object as last time if nothing has changed."""
        now, last = self._scheduler, self._state
        running = self.rows(now.running.rows)
        state = State(
            pool=self._pool.pool(),
            waiting=self._queue.rows(),
            running=last.running if last is not None and last.running == running else running,
            finished=with_new_names(last.finished if last else frozenset(), now.finished),
            aborted=with_new_names(last.aborted if last else frozenset(), now.aborted),
        )
        if last is None or running is not last.running:
            self._records = dict(zip(now.running.rows, running, strict=True))
        self._state = last if last is not None and _is_same(last, state) else state
        return self._state

    def rows(self, requests: Iterable[RequestState]) -> tuple[Sequence, ...]:
        """Records of these rows; unchanged rows share their last record."""
        # Tokens and blocks of a row change only in a decode step.
        steps, (last, seen, rows), now = self._scheduler.running.steps, self._seen, [*requests]
        if steps != last or now != seen:
            rows = tuple(map(self._row, now))
            self._seen = steps, now, rows
        return rows

    def _row(self, request: RequestState) -> Sequence:
        computed, record = self._scheduler.running.computed(request), self._records.get(request)
        if record is None or record.computed != computed or record.blocks is not request.blocks:
            record = self._records[request] = Sequence(
                request.id,
                request.prefill_len,
                computed,
                computed - request.request.prompt_len + 1,
                request.blocks,
                request.hit_blocks,
            )
        return record


def _waiting_row(request: RequestState) -> Sequence:
    length = request.prefill_len
    return Sequence(request.id, length, generated=length - request.request.prompt_len)


def _is_same(state: State, other: State) -> bool:
    """True if both consist of the same objects, which is cheaper than comparing their contents."""
    return (
        state.pool is other.pool
        and state.waiting is other.waiting
        and state.running is other.running
        and state.finished is other.finished
        and state.aborted is other.aborted
    )
