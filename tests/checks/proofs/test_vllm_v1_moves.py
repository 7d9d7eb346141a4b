"""vLLM V1's reference makes the moves that its proofs speak of, or what was proven is stale."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import zip_longest
from random import Random
from typing import Any

import pytest
from attrs import evolve, frozen

from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.proofs.links import RUNS, reachable_edges
from checks.proofs.vllm_v1.moves import LINK, large_case
from reference.core.guards import GuardError
from reference.vllm_v1 import kv_cache, step, transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.transitions import Plan
from spec.core.blocks import BlockPool
from spec.vllm_v1.config import Scheduling
from spec.vllm_v1.records import Context, Sequence, State, Step
from tests.checks.faults.patches import (
    Wrong,
    always,
    changed,
    depending,
    first_to_back,
    kept,
    last_to_front,
    own_row,
    plus,
    result,
    with_config,
)
from tests.checks.faults.planting import Planted

MANY = 20  # rows from which on some of the changes show


@pytest.mark.thorough
def test_random_runs_reach_what_small_instances_do_not() -> None:
    runs = [right_run(number) for number in range(RUNS)]
    steps = [step for _, run in runs for step in run]
    rows = [max(len(step.scheduled) for step in run) for _, run in runs]
    refusals = {step.refusal for step in steps}

    assert sum(most >= MANY for most in rows) >= RUNS // 2
    assert sum(any(step.preempted for step in run) for _, run in runs) >= RUNS // 2
    assert {"V1-BUD-1", "V1-SEQ-1", "V1-KV-1", "V1-PRE-4", "V1-CHK-2"} <= refusals
    assert any(not step.planned.pool.free for step in steps)
    assert any(sum(step.scheduled.values()) > 1_000 for step in steps)
    assert any(row.computed > 2_000 for step in steps for row in step.after.running)
    assert any(step.accepted.get(name) for step in steps for name in step.drafts)
    assert any(step.happened("prefix_hit") for step in steps)
    assert any(step.happened("load") for step in steps)


# --- a reference that does something else ---------------------------------------------------------


@frozen
class Change:
    """A change to the reference, and the move by which it is noticed first."""

    planted: Planted
    move: str


CHANGES: list[Change] = []


def change(place: Any, attribute: str, move: str, name: str = "") -> Callable[[Wrong], Wrong]:
    """Register a wrong function in the place of `attribute`; it is given the right one first."""

    def register(wrong: Wrong) -> Wrong:
        title = name or wrong.__name__.replace("_", " ")
        CHANGES.append(Change(Planted(title, "", place, attribute, wrong), move))
        return wrong

    return register


@cache
def right_run(number: int) -> tuple[Case, list[Step]]:
    """A random run of the unchanged reference."""
    case = large_case(Random(f"vllm-v1 {number}"))
    return case, list(served(case))


def changes_a_run(planted: Planted) -> bool:
    """True if the changed reference takes other steps in a random run or on an instance."""
    for number in range(RUNS):
        case, steps = right_run(number)
        with pytest.MonkeyPatch.context() as patched:
            planted.plant(patched)
            if _differ(steps, _steps(case)):
                return True
    return any(
        _changes_an_instance(planted, instance) for instance in machine_of("vllm-v1").instances
    )


def _steps(case: Case) -> Iterator[Any]:
    try:
        yield from served(case)
    except GuardError as error:
        yield error


def _changes_an_instance(planted: Planted, instance: Instance[Any]) -> bool:
    right = [*_edges(instance)]
    with pytest.MonkeyPatch.context() as patched:
        planted.plant(patched)
        return _differ(right, _edges(instance))


def _edges(instance: Instance[Any]) -> Iterator[Any]:
    try:
        for edge in reachable_edges(instance):
            yield edge.before, edge.after, edge.step
    except GuardError as error:
        yield error


def _differ(right: Iterable[Any], found: Iterable[Any]) -> bool:
    return any(expected != other for expected, other in zip_longest(right, found))


# the budget


change(transitions, "catch_up", "the budget", "turns never reduce the budget")(kept("budget"))
change(transitions, "preempt", "the budget", "a victim's tokens are not given back")(kept("budget"))
change(step, "Plan", "the budget", "a token more than the budget")(
    lambda right, state, budget, *given, **more: right(state, budget + 1, *given, **more)
)
change(transitions, "preempt", "the budget", "a victim's tokens are given back twice")(
    depending(lambda _ctx, plan, victim: changed(budget=plus(plan.scheduled.get(victim.id, 0))))
)
change(step, "running_tokens", "the budget", "turns ignore the threshold")(
    lambda right, *given: right(*given[:3], 0, *given[4:])
)
change(step, "waiting_tokens", "the budget", "admissions ignore the threshold")(
    lambda right, tokens, computed, _threshold, left: right(tokens, computed, 0, left)
)
change(step, "running_tokens", "the budget", "turns verify no drafts")(
    lambda right, tokens, _drafts, *given: right(tokens, 0, *given)
)
change(step, "running_tokens", "the budget", "beyond 500 tokens the threshold is one more")(
    lambda right, tokens, drafts, computed, threshold, *given: right(
        tokens, drafts, computed, threshold + (threshold > 0 and computed > 500), *given
    )
)
change(step, "waiting_tokens", "the budget", "an admission of over 1,000 tokens gets one less")(
    lambda right, *given: right(*given) - (right(*given) > 1_000)
)


@change(transitions, "catch_up", "the budget")
def from_twenty_rows_on_turns_are_free(right: Wrong, ctx: Context, plan: Plan, *given: Any) -> Plan:
    after: Plan = right(ctx, plan, *given)
    return evolve(after, budget=plan.budget) if len(plan.scheduled) >= MANY else after


@change(step, "schedule_running", "the budget")
def from_twenty_rows_on_the_last_gets_no_turn(right: Wrong, ctx: Context, plan: Plan) -> Plan:
    running = plan.state.running
    if len(running) < MANY:
        return right(ctx, plan)  # type: ignore[no-any-return]
    done: Plan = right(ctx, evolve(plan, state=evolve(plan.state, running=running[:-1])))
    state = evolve(done.state, running=(*done.state.running, running[-1]))
    return evolve(done, state=state)


# blocks


change(kv_cache, "slots_end", "blocks of a turn", "slots without the lookahead")(
    lambda right, end, _lookahead, most: right(end, 0, most)
)
change(kv_cache, "slots_end", "blocks of a turn", "beyond 1,000 tokens a block too many")(
    lambda right, end, lookahead, most: right(end, lookahead + 16 * (end > 1_000), most)
)


@change(kv_cache, "missing_blocks", "blocks of a turn")
def beyond_1000_tokens_a_block_too_few(right: Wrong, end: int, held: int, size: int) -> int:
    missing: int = right(end, held, size)
    return missing - (missing > 0 and end > 1_000 and end % size != 0)


@change(step, "schedule_running", "blocks of a turn")
def from_twenty_rows_on_a_block_too_many(right: Wrong, ctx: Context, plan: Plan) -> Plan:
    more = ctx.config.num_lookahead_tokens + ctx.config.block_size
    if len(plan.state.running) >= MANY:
        ctx = with_config(ctx, num_lookahead_tokens=more)
    return right(ctx, plan)  # type: ignore[no-any-return]


@change(kv_cache, "free", "the pool")
def of_many_blocks_one_is_never_free_again(
    right: Wrong, ctx: Context, pool: BlockPool, blocks: tuple[int, ...]
) -> BlockPool:
    kept_back = len(blocks) > 12
    return right(ctx, pool, blocks[kept_back:])  # type: ignore[no-any-return]


change(transitions, "preempt", "the pool", "a victim keeps its blocks")(
    depending(
        lambda _ctx, _plan, row: changed(state=changed(waiting=own_row(row.id, blocks=row.blocks)))
    )
)

# the victim


change(step, "choose_victim", "blocks of a turn", "the first of the queue gives way")(
    lambda _right, _ctx, state: state.running[0]
)


@change(step, "choose_victim", "blocks of a turn")
def the_first_of_equal_priority_gives_way(right: Wrong, ctx: Context, state: State) -> Sequence:
    if ctx.config.scheduling is Scheduling.FCFS:
        return right(ctx, state)  # type: ignore[no-any-return]
    return max(state.running, key=lambda row: ctx.requests[row.id].priority)


@change(step, "_make_room", "blocks of a turn")
def from_twenty_rows_on_one_more_gives_way(
    right: Wrong, ctx: Context, plan: Plan, row: Sequence, new: int
) -> Plan:
    done: Plan = right(ctx, plan, row, new)
    is_many = len(done.state.running) >= MANY
    last = done.state.running[-1] if is_many else row
    if done.preempted == plan.preempted or last.id == row.id:
        return done
    return transitions.preempt(ctx, done, last)


# who is admitted


@change(step, "_waiting_unless_preempted", "who is admitted")
def requests_are_admitted_after_a_preemption(_right: Wrong, ctx: Context, plan: Plan) -> Plan:
    done = step.schedule_waiting(ctx, evolve(plan, preempted=()))
    return evolve(done, preempted=plan.preempted)


@change(kv_cache, "fits_at_admission", "who is admitted")
def whole_prompt_blocks_are_not_requested(right: Wrong, ctx: Context, *given: Any) -> bool:
    return right(with_config(ctx, reserve_full_prompt=False), *given)  # type: ignore[no-any-return]


change(kv_cache, "blocks_spoken_for", "who is admitted", "loads take the blocks of others")(
    always(0)
)


@change(step, "schedule_waiting", "who is admitted")
def one_more_runs_than_configured(right: Wrong, ctx: Context, plan: Plan) -> Plan:
    more = ctx.config.max_num_seqs + 1
    return right(with_config(ctx, max_num_seqs=more), plan)  # type: ignore[no-any-return]


@change(step, "schedule_waiting", "who is admitted")
def a_prompt_is_cut_in_spite_of_the_configuration(right: Wrong, ctx: Context, plan: Plan) -> Plan:
    return right(with_config(ctx, chunked_prefill=True), plan)  # type: ignore[no-any-return]


change(step, "_padding", "the budget", "a fresh request is not filled up")(always(0))


@change(step, "next_in_queue", "the budget")
def from_twenty_rows_on_the_last_is_admitted_first(
    right: Wrong, ctx: Context, state: State
) -> Sequence | None:
    if len(state.running) < MANY or not state.waiting:
        return right(ctx, state)  # type: ignore[no-any-return]
    return state.waiting[-1]


@change(kv_cache, "computed_with", "the budget")
def hits_count_twice(right: Wrong, ctx: Context, row: Sequence, demand: Demand) -> int:
    twice = right(ctx, row, demand) + len(demand.hits) * ctx.config.block_size
    return int(min(twice, row.tokens - 1)) if demand.hits else int(right(ctx, row, demand))


@change(kv_cache, "computed_with", "the budget")
def of_many_hits_one_counts_twice(right: Wrong, ctx: Context, row: Sequence, demand: Demand) -> int:
    computed: int = right(ctx, row, demand)
    more = computed + ctx.config.block_size
    return more if len(demand.hits) > 3 and more < row.tokens else computed


# progress


change(transitions, "rolled_back", "progress", "rejected drafts stay computed")(
    lambda _right, computed, _drafts, _accepted: computed
)
change(transitions, "rolled_back", "progress", "of three rejected drafts one stays computed")(
    lambda right, computed, drafts, accepted: (
        right(computed, drafts, accepted) + (drafts - accepted == 3)
    )
)
change(transitions, "propose", "progress", "no drafts are proposed")(
    lambda right, ctx, state, id_, _drafts: right(ctx, state, id_, 0)
)
change(transitions, "compute", "progress", "no request is ever in its prefill")(
    result(running=lambda rows: tuple(evolve(row, prefilling=False) for row in rows))
)


@change(step, "_sample", "progress")
def answers_of_sixty_tokens_end_one_late(
    right: Wrong, results: Any, plan: Plan, row: Sequence, environment: Any
) -> None:
    if row.generated >= 59:
        environment = evolve(environment, ends=lambda _row: False)
    right(results, plan, row, environment)


# the queues


change(transitions, "arrive", "between steps", "a newcomer goes to the front")(
    result(waiting=last_to_front)
)
change(transitions, "preempt", "the plan", "a victim goes to the end of the queue")(
    result(state=changed(waiting=first_to_back))
)
change(transitions, "rank", "between steps", "the queue's order is that of arrivals")(
    lambda _right, _ctx, row: (0, row.arrival)
)


@change(transitions, "queued", "between steps")
def in_a_long_queue_priorities_are_ignored(
    right: Wrong, ctx: Context, queue: transitions.Queue
) -> transitions.Queue:
    return queue if len(queue) > 10 else right(ctx, queue)


FAST = (
    "turns never reduce the budget",
    "the first of the queue gives way",
    "a newcomer goes to the front",
)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            change,
            id=change.planted.name,
            marks=[] if change.planted.name in FAST else [pytest.mark.thorough],
        )
        for change in CHANGES
    ],
)
def test_a_changed_reference_makes_the_evidence_stale(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changes_a_run(change.planted)
    change.planted.plant(monkeypatch)

    assert f": {change.move}: " in str(LINK.stale())
