"""One scheduler step: the decisions of either strategy, then their results.

Source: vllm-v0, "General Scheduling Strategy", "Optimized Prefill & Decode Scheduling" and
"Detailed Breakdown of schedule".
"""

from collections.abc import Iterable

from attrs import evolve

from reference.core.run import Run
from reference.vllm_v0 import block_manager
from reference.vllm_v0.block_manager import EngineEnds
from reference.vllm_v0.decisions import Decisions, Environment
from reference.vllm_v0.preemption import (
    keeps_swapped_out,
    preempt_by_priority,
    sort_running,
    sort_waiting,
)
from reference.vllm_v0.queues import schedule_prefills, schedule_running, schedule_swapped
from reference.vllm_v0.results import accessed, aged, by_request, work_in
from reference.vllm_v0.tokens import Partial, samples
from reference.vllm_v0.transitions import compressed
from spec.vllm_v0.config import (
    Scheduling,
)
from spec.vllm_v0.records import Context, Group, State, Step
from spec.vllm_v0.variants import Strategy


def scheduler_step(
    ctx: Context, state: State, env: Environment, index: int = 0, time: float = 0
) -> Step:
    """What the scheduler does next, and the state that it leaves; `time` is only noted."""
    run = Decisions(ctx, state, env=env)
    try:
        if not state.failure:
            schedule(run)
        planned, order = run.state, batch_order(run)
        rows = {group.id: group for group in planned.running}
        sampling = tuple(id_ for id_ in order if samples(ctx, rows[id_], run.scheduled[id_]))
        results = Run(ctx, planned)
        sampled, forked = work_in(results, run, order, sampling)
    except EngineEnds as end:
        dead = evolve(state, failure=end.reason)
        return Step(
            index=index, time=time, before=state, planned=dead, after=dead, budget=run.spent()
        )
    return Step(
        index=index,
        time=time,
        before=state,
        planned=planned,
        after=aged(ctx, compressed(ctx, results.state), bool(run.chunked)),
        scheduled={id_: run.scheduled[id_] for id_ in order},
        prefills=tuple(id_ for id_ in order if id_ in run.chunked),
        sampling=sampling,
        budget=run.spent(),
        admitted=tuple(run.new),
        swapped_in=tuple(run.swapped_in),
        preempted=tuple(run.preempted),
        swapped_out=tuple(run.swapped_out),
        by_priority=tuple(run.by_priority),
        ignored=(*run.ignored, *run.infeasible),
        swaps_out=run.swaps_out,
        swaps_in=run.swaps_in,
        copies=run.copies,
        lookahead_slots=_reported_lookahead(run),
        is_async=ctx.config.async_output and all(ctx.requests[id_].n == 1 for id_ in order),
        refusal=run.refusal,
        forked=forked,
        sampled=sampled,
        outputs=by_request(ctx, order, sampled),
        finished=tuple(id_ for id_ in order if id_ in results.ids_of("finish")),
        events=(*run.events, *results.events),
    )


def schedule(run: Decisions) -> None:
    """The decisions of a step (vllm-v0, "Deciding Which Scheduling Strategy to Use")."""
    # both strategies leave the queues in their final order
    (schedule_chunked_prefill if run.config.chunked_prefill else schedule_default)(run)
    # what was scheduled counts as in the cache from now on, and is the last that was used
    computed = block_manager.mark_computed(run.ctx, run.state, run.scheduled)
    run.state = compressed(run.ctx, accessed(run.ctx, computed, run.scheduled))


def schedule_default(run: Decisions) -> None:
    """Prefills, else decodes and swapped groups; `combined`: one after the other in one step.

    Source: vllm-v0, "General Scheduling Strategy", whose example has them in one step.
    """
    exclusive = run.config.strategy is Strategy.EXCLUSIVE
    # the most urgent stand in front
    if run.config.scheduling is Scheduling.PRIORITY and not run.config.choices.sorts_late:
        sort_waiting(run)
        sort_running(run)
    # running sequences take their places before any prompt does
    for group in run.state.running:
        run.count(group)
    # prefills, where no swapped group goes before them
    schedule_prefills(run, share=None)
    if not run.new and run.config.scheduling is Scheduling.PRIORITY:
        preempt_by_priority(run)
    # decodes, and swapped groups where there was memory for all decodes
    if not exclusive or not run.new:
        schedule_running(run, share=None)
        if not run.preempts and not keeps_swapped_out(run):
            schedule_swapped(run)
    held_to_limits(run)


def schedule_chunked_prefill(run: Decisions) -> None:
    """Decodes and prompts under way, then swapped groups, then new prompts.

    Source: vllm-v0, "Optimized Prefill & Decode Scheduling".
    """
    share = Partial.of(run.ctx, run.state)
    # running sequences take their places
    if not run.config.choices.counts_scheduled_only:
        for group in run.state.running:
            run.count(group)
    # decodes and prompts under way, in queue order
    schedule_running(run, share)
    # swapped groups, where no running one had to give way, then new prompts
    if run.config.choices.fills_gaps or all_decode(run):
        if not run.preempts:
            schedule_swapped(run)
        schedule_prefills(run, share)
    held_to_limits(run)
    # decodes first, then prompts, those that end in this step before the others
    back = _those(run, run.swapped_in, prefill=False)
    back_prompts = _those(run, run.swapped_in, prefill=True)
    decodes, prompts = (_those(run, run.running, prefill=it) for it in (False, True))
    stalled = [group.id for group in run.state.running if group.is_prefill]
    stalled = [id_ for id_ in stalled if id_ not in run.scheduled]
    unfinished = finishing_first(run, [*stalled, *back_prompts, *prompts, *run.new])
    order = [*back, *decodes, *unfinished]
    if run.config.choices.finishing_first_under_way:
        order = [*back, *back_prompts, *decodes, *finishing_first(run, prompts), *run.new]
    run.state = evolve(run.state, running=_requeued(run.state, order))


def all_decode(run: Decisions) -> bool:
    """True if no decoding group lacks a part of the budget."""
    return all(group.is_prefill or group.id in run.scheduled for group in run.state.running)


def finishing_first(run: Decisions, prefills: list[str]) -> list[str]:
    """Prompts that end in this step, then the others (vllm-v0, "Prioritizing Prefill Completion").

    [B, A, C] becomes [A, C, B] if A and C end.
    """
    missing = {group.id: group.tokens - group.computed for group in run.state.running}

    def goes_on(request_id: str) -> bool:
        return missing[request_id] != run.scheduled.get(request_id)

    return sorted(prefills, key=goes_on)


def _those(run: Decisions, ids: Iterable[str], *, prefill: bool) -> list[str]:
    return [id_ for id_ in ids if (id_ in run.chunked) == prefill]


def _requeued(state: State, ids: Iterable[str]) -> tuple[Group, ...]:
    """Running groups that were not scheduled, then the others in the order of `ids`."""
    rows = {group.id: group for group in state.running}
    scheduled = [rows.pop(id_) for id_ in ids]
    return (*rows.values(), *scheduled)


def batch_order(run: Decisions) -> list[str]:
    """The groups as the model gets them: those that compute a prompt first.

    Where any is for an adapter, they are in the order of these ("LoRA requests", vLLM 0.9.2).
    """
    prompts = (*run.new, *_those(run, run.running, prefill=True))
    swapped = _those(run, run.swapped_in, prefill=True)
    decodes = _those(run, run.running, prefill=False)
    order = [*prompts, *swapped, *decodes, *_those(run, run.swapped_in, prefill=False)]
    adapters = {id_: run.ctx.requests[id_].lora for id_ in order}
    if not (run.config.max_loras and any(adapters.values())):
        return order
    return sorted(order, key=lambda id_: (id_ not in run.chunked, adapters[id_], id_))


def _reported_lookahead(run: Decisions) -> int:
    """Lookahead slots of the step as the workers get them: none if all compute prompts."""
    config = run.config
    if not run.scheduled:
        return 0
    all_prompts = len(run.chunked) == len(run.scheduled)
    if config.chunked_prefill:
        return 0 if all_prompts and not config.is_multi_step else config.num_lookahead_slots
    return 0 if all_prompts else config.num_lookahead_slots


def held_to_limits(run: Decisions) -> None:
    """The engine ends where more is scheduled than may be ("Ensures no overcommitment").

    Raises:
        EngineEnds: more tokens or sequences than the budget has.
    """
    if not run.budget.admits(0, 0):
        raise EngineEnds("more is scheduled than the budget allows")
