"""Rules of steps in flight: which are, what is awaited of them, and whose results count.

Source: vLLM 0.28.0, `EngineCore.step_with_batch_queue` and `AsyncScheduler`.
"""

from collections.abc import Iterator, Mapping, Set

from spec.core.judging import ids
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Context, Flight, GivenBack, State, Step
from spec.vllm_v1.rules.counting import awaited, waits_for_stages
from spec.vllm_v1.rules.registry import always, by_id, code, of_step, witness

_QUEUE, _ASYNC = code("step_with_batch_queue"), code("AsyncScheduler")


def _flies(config: VllmV1Config) -> bool:
    return config.steps_in_flight > 0


@always("V1-ASY-1", _QUEUE, witness=lambda _, step: step.after.flights)
def so_many_in_flight(ctx: Context, state: State) -> Iterator[str]:
    """Between two steps at most steps_in_flight steps are in flight."""
    # Also those that compute nothing.
    if len(state.flights) > ctx.config.steps_in_flight:
        yield f"{len(state.flights)} in flight, {ctx.config.steps_in_flight} allowed"


@of_step("V1-ASY-2", _QUEUE, applies=_flies)
@witness(lambda _, step: step.scheduled and step.results_of)
def first_in_first_out(ctx: Context, step: Step) -> Iterator[str]:
    """Each step is in flight with what it schedules and samples, until its results come: the oldest
    first, each once, and only where too many are in flight or nothing is left to plan.
    """
    # No step is planned where no request is present or under transfer, and none that has left is to
    # be reported. What a step gives back at its end is V1-ASY-7's. A victim gets nothing of what is
    # to be sent, nor does one that read what was not there.
    victims = {*step.preempted} if ctx.config.sends else set()
    flights = [_without(flight, victims) for flight in step.before.flights]
    if _takes_off(step):
        rows = by_id(step.planned.running)
        ends = {id_: rows[id_].computed + count for id_, count in step.scheduled.items()}
        due = {id_: rows[id_].tokens + rows[id_].placeholders for id_ in ends}
        samples = tuple(id_ for id_ in ends if ends[id_] >= due[id_])
        padded = tuple(id_ for id_ in step.drafts if id_ in step.admitted)
        flights.append(Flight(step.scheduled, samples, step.drafts, padded, step.external))
    has_room = len(flights) <= ctx.config.steps_in_flight
    planned = step.planned
    may_wait = not flights or (has_room and (step.scheduled or planned.present or planned.draining))
    landed = [] if may_wait else [flights.pop(0)]
    if landed != ([] if step.results_of is None else [_without(step.results_of)]):
        yield f"results of {step.results_of}, expected {landed}"
    left = [_without(flight, {*step.failed_loads}) for flight in flights]
    if [_without(flight) for flight in step.after.flights] != left:
        yield f"in flight {list(step.after.flights)}, expected {left}"


def _takes_off(step: Step) -> bool:
    before = step.before
    return bool(before.present or before.unreported or before.draining)


def _without(flight: Flight, unawaited: Set[str] = frozenset()) -> Flight:
    """The flight without what it gives back, and without samples for these requests."""
    samples = tuple(id_ for id_ in flight.samples if id_ not in unawaited)
    return Flight(flight.scheduled, samples, flight.drafts, flight.padded, flight.external)


@always(
    "V1-ASY-3", _ASYNC, witness=lambda _, step: any(row.placeholders for row in step.after.running)
)
def awaited_tokens_are_in_flight(_ctx: Context, state: State) -> Iterator[str]:
    """A running request awaits of each step in flight that samples for it a token, and the drafts
    that it verifies, and no other.
    """
    # A request that was preempted awaits none: it has lost what these steps computed.
    due = {
        row.id: sum(
            1 + flight.drafts.get(row.id, 0) for flight in state.flights if row.id in flight.samples
        )
        for row in state.running
    }
    for row in (*state.present, *state.draining):
        if row.placeholders != due.get(row.id, 0):
            yield f"{row.id} awaits {row.placeholders} tokens, {due.get(row.id, 0)} are in flight"


def _discards(_ctx: Context, step: Step) -> bool:
    left = step.after.finished | step.after.aborted
    return step.results_of is not None and not left.isdisjoint(step.results_of.samples)


@of_step("V1-ASY-4", _QUEUE, witness=_discards, applies=_flies)
def late_results_are_discarded(_ctx: Context, step: Step) -> Iterator[str]:
    """The results for a request that has left before they come change nothing: it gets no token and
    neither finishes nor comes back.
    """
    # Its end was seen, or its client left, while the step was in flight.
    named = set() if step.results_of is None else {*step.results_of.scheduled}
    late = named - (ids(step.planned.present) - step.leavers)
    touched = late & ({*step.outputs, *step.finished} | ids(step.after.present))
    if touched:
        yield f"{sorted(touched)} had left"


def _plans_last(ctx: Context, step: Step) -> bool:
    rows = [row for row in step.before.running if row.placeholders and row.id in step.scheduled]
    return any(row.generated + 2 == ctx.requests[row.id].max_tokens for row in rows)


@of_step("V1-ASY-5", _ASYNC, witness=_plans_last, applies=_flies)
def none_beyond_its_end(ctx: Context, step: Step) -> Iterator[str]:
    """No step is planned for a token beyond a request's max_tokens, one counted for each step that
    it awaits, nor computes its last token where there are no drafts.
    """
    # So the model length is kept, too. Of the drafts that it awaits none may be right.
    for row in step.planned.running:
        request, total = ctx.requests[row.id], row.generated + awaited(step.before, row.id)
        end = row.computed + step.scheduled.get(row.id, 0)
        is_beyond = row.id in step.scheduled and total >= request.max_tokens
        is_last = end >= request.prompt_len + request.max_tokens
        if is_beyond or (is_last and not ctx.config.num_speculative_tokens):
            yield f"{row.id} has and awaits {total} tokens, and computes to {end}"


@of_step("V1-ASY-7", code("deferred frees"), applies=_flies)
@witness(lambda _, step: any(flight.frees for flight in step.after.flights))
def written_blocks_are_free_later(ctx: Context, step: Step) -> Iterator[str]:
    """With a connector, blocks that a request gives back while a step in flight writes to them are
    free once all steps have their results that are in flight then; any others are free at once.
    """
    # A load into them is not ordered against what is in flight: it could be overwritten. What is
    # sent, or loads, is given back when that ends.
    writers = [(flight.scheduled, [*flight.frees]) for flight in step.before.flights]
    held = {row.id: row.blocks for row in step.before.running}
    for event in step.happened("allocate"):
        held[event.id] = held.get(event.id, ()) + event.after
    _note(ctx, writers, [GivenBack(id_, held[id_]) for id_ in step.preempted])
    if _takes_off(step):
        writers.append((step.scheduled, []))
    drains = ids(step.after.draining)
    gone = (event for event in step.happened("leave", "finish") if event.id not in drains)
    left = {row.id: row.blocks for row in step.planned.present}
    at_end = [GivenBack(event.id, left[event.id]) for event in gone]
    _note(ctx, writers, [table for table in at_end if table.id in step.leavers])
    landed = [] if step.results_of is None else writers.pop(0)[1]
    _note(ctx, writers, [table for table in at_end if table.id in step.finished])
    told = [] if step.results_of is None else [*step.results_of.frees]
    if told != landed:
        yield f"free with the results {told}, expected {landed}"
    later, due = [[*each.frees] for each in step.after.flights], [frees for _, frees in writers]
    if later != due:
        yield f"free later {later}, expected {due}"


@of_step("V1-ASY-8", _ASYNC, applies=lambda config: config.steps_in_flight > 1)
@witness(
    lambda ctx, step: any(
        waits_for_stages(ctx, step.before, row.id) for row in step.planned.running
    )
)
def stages_take_turns(ctx: Context, step: Step) -> Iterator[str]:
    """With as many steps in flight as a pipeline has stages, a request for which a step samples is
    given nothing until all other stages have had a step.
    """
    # The stages take turns, each with requests of its own.
    for id_ in step.scheduled:
        if waits_for_stages(ctx, step.before, id_):
            yield f"{id_} is given tokens, it has just sampled"


@of_step("V1-ASY-9", _ASYNC, applies=lambda config: config.steps_in_flight > 1)
@witness(lambda _, step: any(step.before.late))
def victims_wait_for_results(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that was preempted is not admitted while a step in flight computes its tokens."""
    # Else the request would sample the same token twice.
    for flight in step.before.flights:
        if early := {*step.admitted} & {*flight.scheduled}:
            yield f"{sorted(early)} admitted, tokens are in flight"


def _note(
    ctx: Context, writers: list[tuple[Mapping[str, int], list[GivenBack]]], given: list[GivenBack]
) -> None:
    """Add what is given back and written to by a step in flight to the last of those that write."""
    for table in given:
        writing = [frees for scheduled, frees in writers if scheduled]
        is_written = any(table.id in scheduled for scheduled, _ in writers)
        if ctx.config.connector is not Connector.NONE and table.blocks and is_written:
            writing[-1].append(table)
