"""Launch planned steps, and apply the results of the oldest step in flight once they come.

Source: vLLM 0.28.0, `EngineCore.step_with_batch_queue` and `AsyncScheduler`.
"""

from engine.core.tensors import Tensor
from engine.vllm_v1 import apply
from engine.vllm_v1.flights import Flight
from engine.vllm_v1.plan import Admission, Plan, Turn
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.results import Outcome, Results
from engine.vllm_v1.state import SchedulerState


def results_due(state: SchedulerState, plan: Plan) -> Plan | None:
    """The step whose results come once this plan is launched, as the device does it; or None.

    They are waited for where too many steps are in flight, or no request is left to plan for.
    """
    count = len(state.flights) + _takes_off(state)
    if not count or (count <= state.config.steps_in_flight and _has_work(state)):
        return None
    return state.flights[0].settled() if state.flights else plan


def launch_and_land(
    state: SchedulerState, plan: Plan, due: Plan | None, tokens: Tensor, results: Results
) -> Outcome:
    """Launch the plan; then the results of the oldest step in flight come, if they are due.

    `tokens`: those that `due` samples.
    """
    takes_off, outcome = _takes_off(state), Outcome()
    if plan.encoder is not None:
        state.encoder = plan.encoder
    apply.decide_all(state, plan)
    if takes_off:
        _launch(state, plan)
    apply.let_go(state, results, outcome, plan.turns)
    if due is not None:
        _land(state, due, tokens, results, outcome)
    return outcome


def _has_work(state: SchedulerState) -> bool:
    return bool(len(state.queue) or state.admitted)


def _takes_off(state: SchedulerState) -> bool:
    """True if a step is planned at all, maybe one without tokens."""
    return _has_work(state) or bool(state.noted.unreported)


def _launch(state: SchedulerState, plan: Plan) -> None:
    """The step is in flight: its tokens count as computed, and what it samples is awaited.

    Each row that samples verifies as many drafts next as may be proposed: which they are is known
    where they are computed.
    """
    for turn in plan.turns:
        apply.compute(turn)
        if turn.samples:
            turn.row.placeholders += turn.samples
            turn.row.drafts = state.config.num_speculative_tokens
    state.flights.append(Flight.of(plan))


def _land(
    state: SchedulerState, due: Plan, tokens: Tensor, results: Results, outcome: Outcome
) -> None:
    """Work in the results of the oldest step in flight."""
    flight = outcome.results_of = state.flights.pop(0)
    for _, table in flight.frees:
        state.blocks.release(table)
    _lose_loads(state, due, results, outcome)
    sampled, leaving = apply.Sampled(state, results, outcome), list[RequestState]()
    samples = tokens.tolist()
    wanted = {*flight.awaited} - outcome.undone.keys()
    running = {*state.running.members}
    for turn in due.turns:
        own, samples = samples[: turn.samples], samples[turn.samples :]
        if turn.row in running and not turn.samples:
            state.encoder.pass_by(turn.row, turn.row.computed - turn.row.placeholders)
        row = turn.row if turn.row in running else state.find(turn.row.id)
        if row is None or row.id not in wanted:
            continue
        is_over = sampled.add(turn, own) if row is turn.row else sampled.add_late(row, turn, own)
        if is_over:
            leaving.append(row)
    sampled.write()
    sampled.register()
    outcome.finished = apply.finish(state, leaving)


def _lose_loads(state: SchedulerState, due: Plan, results: Results, outcome: Outcome) -> None:
    """Loads of the step were lost: the rows that read their blocks, in it or since, go back."""
    first = dict[RequestState, Turn]()  # of each row, its first turn in flight
    for plan in (due, *(flight.plan for flight in state.flights)):
        for turn in plan.turns:
            first.setdefault(turn.row, turn)
    running = [*state.running.members]
    loading = [turn for turn in due.turns if isinstance(turn, Admission) and turn.row in running]
    missing = apply.lose_loads(state, loading, results, outcome)
    for row in running:
        valid = missing.valid_tokens(first[row]) if row in first else None
        if valid is not None:
            apply.compute_again(state, first[row], valid, outcome)
