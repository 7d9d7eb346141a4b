"""Rules of progress: the engine goes on, capacity is used, all requests leave, none starves.

Source: vllm-v0, "What the Scheduler Achieves" and the sections named at each rule.
"""

from collections.abc import Iterator

from spec.vllm_v0.records import Context, State, Step
from spec.vllm_v0.rules.counting import (
    fits,
    is_passed_over,
    is_too_long,
    looked_at,
    room_for_prompts,
    running_decodes,
)
from spec.vllm_v0.rules.registry import (
    always,
    code,
    eventually,
    ids,
    is_documented,
    of_step,
    text,
    victims,
    witness,
)

_ACHIEVES = text("What the Scheduler Achieves")
_ASYNC = text("`_allow_async_output_proc` - Allowing Asynchronous Postprocessing")


@always("V0-PRG-1", code("assertions of the engine"), witness=lambda _, step: step.finished)
def the_engine_goes_on(_ctx: Context, state: State) -> Iterator[str]:
    """Nothing ends the engine."""
    # Neither an assertion nor a shortage.
    if state.failure:
        yield state.failure


@of_step("V0-PRG-2", _ACHIEVES, witness=lambda _, step: step.scheduled)
def no_idle_step(_ctx: Context, step: Step) -> Iterator[str]:
    """No step is idle while a request is pending: something is scheduled, gives way or is ended, or
    at least the queues are put in another order.
    """
    # Unless the engine ends.
    acts = step.scheduled or victims(step) or step.ignored or step.after.failure
    sorts = ids(step.before.present) != ids(step.after.present)
    if step.before.present and not acts and not sorts:
        yield f"nothing runs of {[group.id for group in step.before.present]}"


@eventually("V0-PRG-3", _ACHIEVES, witness=lambda _, step: step.finished)
def all_requests_leave(state: State, request_id: str) -> bool:
    """Every request that arrives finishes, is aborted or is ignored: none is preempted and admitted
    again for ever.
    """
    # Whatever else arrives; unless the engine has ended.
    return request_id not in ids(state.present) or bool(state.failure)


@of_step(
    "V0-PRG-4",
    text("`_schedule_running`, Why It's Needed"),
    applies=lambda config: config.chunked_prefill or is_documented(config),
)
@witness(lambda _, step: running_decodes(step) and step.before.waiting)
def decodes_do_not_starve(_ctx: Context, step: Step) -> Iterator[str]:
    """Prompts do not keep decoding requests from their tokens: in every step each of them is given
    some, or gives way.
    """
    # The text claims it of running requests under whichever strategy.
    starved = [group.id for group in running_decodes(step) if group.id not in step.scheduled]
    starved = [id_ for id_ in starved if id_ not in victims(step)]
    if starved and step.prefills:
        yield f"{starved} are given nothing, prompts are {list(step.prefills)}"


@of_step("V0-PRG-5", text("`_schedule_prefills()`"), applies=is_documented)
@witness(lambda _, step: len(step.planned.waiting) > 1)
def small_are_not_blocked_by_long(ctx: Context, step: Step) -> Iterator[str]:
    """Long requests do not block smaller ones: none waits behind others that would fit itself."""
    # Judged by what the step left, which is no more than when it was looked at.
    swapped_first = not ctx.config.chunked_prefill and bool(step.before.swapped)
    if swapped_first or step.after.failure or ctx.config.delay_factor:
        return
    room = room_for_prompts(ctx, step)
    waiting = [group for group in looked_at(ctx, step) if group.id not in step.admitted]
    for group in waiting[1:]:
        limited = is_passed_over(ctx, step, group) or is_too_long(ctx.config, group.tokens)
        if not limited and fits(ctx, group, room):
            yield f"{group.id} waits behind {waiting[0].id}, {room} is left"


@eventually("V0-PRG-6", _ACHIEVES, witness=lambda _, step: step.admitted)
def waiting_requests_are_served(state: State, request_id: str) -> bool:
    """Waiting requests are processed fairly: none is stuck in the queue for ever."""
    # Whatever else arrives; unless the engine has ended.
    return request_id not in ids(state.waiting) or bool(state.failure)


@of_step("V0-PRG-7", _ASYNC, witness=lambda _, step: step.scheduled and step.is_async)
def async_for_single_sequences_only(ctx: Context, step: Step) -> Iterator[str]:
    """Output is processed asynchronously only where it is configured and every request of the batch
    has one sequence, and there always.
    """
    # As many as it asks for, not as many as are left.
    single = all(ctx.requests[id_].n == 1 for id_ in step.scheduled)
    if step.scheduled and step.is_async != (ctx.config.async_output and single):
        yield f"asynchronous {step.is_async}, batch {list(step.scheduled)}"
