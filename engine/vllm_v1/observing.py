"""States and steps of the scheduler as the records that rules judge."""

from collections.abc import Collection, Iterator, Mapping

from engine.core import observing
from engine.core.observing import (
    PoolObserver,
    QueueObserver,
    RankedObserver,
    ended_requests,
    with_new_names,
)
from engine.core.scheduler import Ends
from engine.core.sharing import DerivedMap
from engine.vllm_v1.encoder import EncoderCache
from engine.vllm_v1.flights import Flight
from engine.vllm_v1.plan import (
    Admission,
    GiveBack,
    GroupBlocks,
    LoadStart,
    Move,
    Plan,
    Preemption,
    Promotion,
    Turn,
)
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.results import Outcome
from engine.vllm_v1.scheduler import Scheduler
from spec.core.records import Event
from spec.vllm_v1 import records
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Lookups, Sequence, State, Statistics, Step

_NOTHING_ENCODED = records.EncoderCache()


class StepObserver(observing.StepObserver["Observer"]):
    """Watches one scheduler step by step: call `begin` before each step and `end` after it."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(Observer(scheduler))
        self._config = scheduler.state.config
        self._planned: State = self._before
        self._with_grammar: set[str] = set()
        scheduler.state.planned = self._see_planned

    def _see_planned(self) -> None:
        """Note the state between the decisions and the results."""
        self._planned = self._observer.state()
        self._with_grammar = self._observer.with_grammar()

    def _asking_grammars(self, scheduled: Mapping[str, int]) -> set[str]:
        """The requests with a grammar that sample."""
        if not self._with_grammar:
            return set()
        rows = (row for row in self._planned.running if row.id in self._with_grammar)
        return {
            row.id
            for row in rows
            if row.computed + scheduled.get(row.id, 0) >= row.tokens + row.placeholders
        }

    def end(
        self,
        plan: Plan,
        outcome: Outcome,
        index: int,
        time: float,
        ends: Ends = None,
        aborted: tuple[str, ...] = (),
    ) -> Step:
        """The step that began last and has been applied.

        `ends`: requests that sample the end of sequence, where the environment decided so.
        `aborted`: requests whose clients went away since the step before.
        """
        before, planned, after = self._before, self._planned, self._observer.state()
        turns = {turn.row.id: turn for turn in plan.turns}
        batch = plan.batch.ids if plan.batch is not None else ()
        admissions = [turn for turn in plan.turns if isinstance(turn, Admission)]
        asking = _asking(plan)
        resumed = [move for move in asking if move.row.id in before.preempted]
        scheduled = dict.fromkeys(batch, 1) | {name: turn.new for name, turn in turns.items()}
        masked, flight = self._asking_grammars(scheduled), outcome.results_of
        in_flight = self._config.steps_in_flight > 0
        events = _late_results(outcome, planned) if in_flight else _results(outcome, turns)
        return Step(
            index=index,
            time=time,
            before=before,
            planned=planned,
            after=after,
            scheduled=scheduled,
            drafts={name: turn.drafts for name, turn in turns.items() if turn.drafts},
            admitted=tuple(turn.row.id for turn in admissions),
            external={turn.row.id: turn.external for turn in admissions if turn.external},
            preempted=tuple(row.id for row in plan.preempted),
            budget_left=plan.budget,
            refusal=plan.refusal,
            reported=tuple(sorted(before.unreported)),
            statistics=_statistics(after),
            lookups=_lookups([move for move in asking if move not in resumed], self._config),
            resumed_lookups=_lookups(resumed, self._config),
            masked=tuple(name for name in scheduled if name in masked),
            encoded=tuple((turn.row.id, turn.encoded) for turn in plan.turns if turn.encoded),
            evicted=tuple(plan.evicted),
            outputs={name: tuple(tokens) for name, tokens in outcome.outputs.items()},
            ended=ended_requests(outcome, ends),
            accepted=outcome.accepted,
            proposed=outcome.proposed,
            failed_loads=tuple(outcome.undone),
            finished=outcome.finished,
            aborted=aborted,
            events=(*_decisions(plan, before), *events),
            results_of=None if flight is None else _flight(flight),
        )


def _asking(plan: Plan) -> list[Admission | LoadStart]:
    """The requests that begin; one that holds blocks has loaded and asks nothing."""
    moves = (move for move in plan.moves if isinstance(move, Admission | LoadStart))
    return [move for move in moves if not move.held]


def _lookups(asking: Collection[Admission | LoadStart], config: VllmV1Config) -> Lookups:
    """What these requests ask the caches for, and find."""
    tokens = {
        move.row: move.tokens if isinstance(move, Admission) else move.row.tokens for move in asking
    }
    asked = sum(tokens.values())
    of_cache = sum(count for row, count in tokens.items() if row.request.reads_cache)
    found = sum(len(move.hits) for move in asking) * config.block_size
    connects = config.connector is not Connector.NONE
    return Lookups(
        asked=config.prefix_caching * of_cache,
        found=found,
        asked_external=connects * (asked - found),
        found_external=sum(move.external for move in asking),
    )


def _statistics(state: State) -> Statistics:
    usage = 1 - len(state.pool.free) / state.pool.size
    return Statistics(len(state.queued), len(state.running), usage)


# --- events ---------------------------------------------------------------------------------------


def _decisions(plan: Plan, before: State) -> Iterator[Event]:
    """Events of the decisions, in order."""
    if plan.batch is not None:
        grown = {growth.row.id: growth for growth in plan.grown}
        for row in before.running:
            if row.id in grown:
                growth = grown[row.id]
                yield Event("allocate", row.id, "V1-KV-8", growth.held, growth.fresh)
            yield Event("catch_up", row.id, "V1-BUD-3", row.computed, 1)
    for move in plan.moves:
        yield from _move(move)


def _move(move: Move) -> Iterator[Event]:
    match move:
        case Admission(row=row):
            yield from _taken(move)
            yield Event("admit", row.id, "V1-ORD-2", move.computed, move.new)
            yield from _encoded(move)
        case Turn():
            yield from _turn(move)
            yield from _encoded(move)
        case GiveBack(row=row):
            for number, blocks in enumerate(move.given, start=1):
                if blocks:
                    yield Event("give_back", row.id, "V1-GRP-2", number, blocks)
        case Preemption(row=row):
            yield Event("preempt", row.id, "V1-PRE-1")
        case Promotion(row=row):
            yield Event("promote", row.id, "V1-EXT-3")
        case LoadStart(row=row):
            yield from _taken(move)
            yield Event("load", row.id, "V1-EXT-2", move.external, move.computed)


def _encoded(turn: Turn) -> Iterator[Event]:
    if turn.encoded:
        yield Event("encode", turn.row.id, "V1-ENC-1", (), turn.encoded)


def _taken(move: Admission | LoadStart) -> Iterator[Event]:
    """Hits and new blocks."""
    if move.hits:
        yield Event("prefix_hit", move.row.id, "V1-KV-4", (), move.hits)
    further = move.further
    for number, blocks in enumerate(further.hits if further else (), start=1):
        if blocks:
            yield Event("hit_in_group", move.row.id, "V1-GRP-5", number, blocks)
    if move.fresh:
        yield Event("allocate", move.row.id, "V1-KV-8", move.held, move.fresh)
    yield from _fresh_in_groups(move.row, further)


def _fresh_in_groups(row: RequestState, further: GroupBlocks | None) -> Iterator[Event]:
    """The new blocks in the groups of layers beside the first."""
    for number, blocks in enumerate(further.fresh if further else (), start=1):
        if blocks:
            yield Event("allocate_in_group", row.id, "V1-GRP-11", number, blocks)


def _turn(turn: Turn) -> Iterator[Event]:
    """The blocks of a running row, and its tokens."""
    if turn.fresh:
        yield Event("allocate", turn.row.id, "V1-KV-8", turn.held, turn.fresh)
    yield from _fresh_in_groups(turn.row, turn.further)
    yield Event("catch_up", turn.row.id, "V1-BUD-3", turn.computed, turn.new)


def _results(outcome: Outcome, turns: Mapping[str, Turn]) -> Iterator[Event]:
    """Events of the results: lost loads and leavers first."""
    yield from _lost_loads(outcome, turns)
    for name in outcome.leavers:
        yield Event("leave", name, "V1-LIF-2")
    finished = [name for name in outcome.finished if name not in turns]
    for name in finished:
        yield Event("finish", name, "V1-LIF-4")
    for name, turn in turns.items():
        if name in outcome.undone:
            yield Event("undo", name, "V1-EXT-4", *outcome.undone[name])
        if name in outcome.accepted:
            yield Event("rollback", name, "V1-SPC-2", turn.drafts, outcome.accepted[name])
        if name in outcome.finished:
            yield Event("finish", name, "V1-LIF-4")


def _late_results(outcome: Outcome, planned: State) -> Iterator[Event]:
    """Events where steps are in flight: those who leave, then the results of the oldest, if due.

    Who does not run any more has nothing to roll back.
    """
    for name in outcome.leavers:
        yield Event("leave", name, "V1-LIF-2")
    turns = () if outcome.results_of is None else outcome.results_of.plan.turns
    by_name = {turn.row.id: turn for turn in turns}
    yield from _lost_loads(outcome, by_name)
    for name, (computed, valid) in outcome.undone.items():
        yield Event("undo", name, "V1-EXT-4", computed, valid)
    running = {row.id for row in planned.running}
    for name, turn in by_name.items():
        if name in outcome.accepted and name in running:
            yield Event("rollback", name, "V1-SPC-2", turn.drafts, outcome.accepted[name])
        if name in outcome.finished:
            yield Event("finish", name, "V1-LIF-4")


def _lost_loads(outcome: Outcome, turns: Mapping[str, Turn]) -> Iterator[Event]:
    for name in outcome.lost:
        turn = turns[name]
        brought = turn.external if isinstance(turn, Admission) else 0
        yield Event("lose_load", name, "V1-EXT-4", brought)


# --- states ---------------------------------------------------------------------------------------


class Observer:
    """Watches one scheduler; a scheduler has one observer at a time, the last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = state = scheduler.state
        self._pool = PoolObserver(state.blocks)
        watching = RankedObserver if state.by_priority else QueueObserver
        self._queue: QueueObserver[RequestState, Sequence] = watching(state.queue, self._row)
        self._records: dict[RequestState, Sequence] = {}
        self._state: State | None = None

    def state(self) -> State:
        """The scheduler at rest; the same object as last time if nothing has changed."""
        now, last = self._scheduler, self._state
        others = (*now.running.rows, *now.skipped, *now.draining)
        self._records = {row: self._described(row) for row in others}
        running, skipped, draining = (
            tuple(self._records[row] for row in rows)
            for rows in (now.running.rows, now.skipped, now.draining)
        )
        state = State(
            pool=self._pool.pool(),
            waiting=self._queue.rows(),
            skipped=skipped,
            running=running,
            draining=draining,
            finished=with_new_names(last.finished if last else frozenset(), now.finished),
            aborted=with_new_names(last.aborted if last else frozenset(), now.aborted),
            unreported=frozenset(now.noted.unreported),
            unanswered=now.unanswered,
            compiling=frozenset(now.noted.compiling),
            awaited=frozenset(now.noted.awaited),
            early=frozenset(now.noted.early),
            preempted=frozenset(now.noted.preempted),
            lost=with_new_names(last.lost if last else frozenset(), now.lost),
            flights=tuple(map(_flight, now.flights)),
            encoder=_encoder(now.encoder),
        )
        self._state = last if last is not None and _is_same(last, state) else state
        return self._state

    def with_grammar(self) -> set[str]:
        """The running requests with a grammar."""
        return {row.id for row in self._scheduler.running.rows if row.request.grammar}

    def _described(self, request: RequestState) -> Sequence:
        """The record of a request that does not wait; the same object if unchanged."""
        record, running = self._records.get(request), self._scheduler.running
        if (
            record is not None
            and record.computed == running.computed(request)
            and record.blocks is request.blocks
            and record.drafts == request.drafts
            and record.placeholders == request.placeholders
            and record.tokens == running.tokens(request)
            and record.prefilling == request.prefilling
            and record.load is request.load
            and record.sending == request.sending
            and record.tables is request.tables
        ):
            return record
        return self._row(request)

    def _row(self, request: RequestState) -> Sequence:
        running = self._scheduler.running
        length = request.request.prompt_len
        return Sequence(
            id=request.id,
            prompt_len=length,
            arrival=request.arrival,
            computed=running.computed(request),
            generated=running.tokens(request) - length,
            drafts=request.drafts,
            placeholders=request.placeholders,
            blocks=request.blocks,
            prefilling=request.prefilling,
            load=request.load,
            sending=request.sending,
            tables=request.tables,
            junction=request.junction,
            grown_from=request.grown_from,
        )


def _encoder(cache: EncoderCache) -> records.EncoderCache:
    """The encoder cache as the rules see it."""
    if not (cache.held or cache.evictable or cache.taken):
        return _NOTHING_ENCODED
    return records.EncoderCache(
        tuple(sorted((content, tuple(sorted(ids))) for content, ids in cache.held.items())),
        tuple(cache.evictable),
        tuple(sorted((name, tuple(sorted(spans))) for name, spans in cache.taken.items())),
    )


def _flight(flight: Flight) -> records.Flight:
    """A step in flight as the rules see it."""
    turns = flight.plan.turns
    admissions = [turn for turn in turns if isinstance(turn, Admission)]
    drafts = {turn.row.id: turn.drafts for turn in turns if turn.drafts}
    external = {turn.row.id: turn.external for turn in admissions if turn.external}
    return records.Flight(
        DerivedMap.of({}, {turn.row.id: turn.new for turn in turns}),
        tuple(flight.awaited),
        DerivedMap.of({}, drafts),
        tuple(turn.row.id for turn in admissions if turn.drafts),
        DerivedMap.of({}, external),
        tuple(records.GivenBack(*table) for table in flight.frees),
    )


def _is_same(state: State, other: State) -> bool:
    """True if both have equal parts; those that are shared cost nothing to compare."""
    return (
        state.pool is other.pool
        and state.waiting is other.waiting
        and state.finished is other.finished
        and state.aborted is other.aborted
        and state.lost is other.lost
        and state.unreported == other.unreported
        and state.unanswered == other.unanswered
        and state.compiling == other.compiling
        and state.awaited == other.awaited
        and state.early == other.early
        and state.preempted == other.preempted
        and state.skipped == other.skipped
        and state.running == other.running
        and state.draining == other.draining
        and state.flights == other.flights
        and state.encoder == other.encoder
    )
