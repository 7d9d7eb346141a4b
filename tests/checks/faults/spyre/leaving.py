"""Faults of leaving and standing back: finish, abort, preempt, pause, resume, sit out."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.core.run import Run
from reference.spyre import machine, step, transitions
from reference.spyre.transitions import Ends, Moved
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.faults.planting import Right
from tests.checks.faults.spyre.table import fault, with_config

Paused = Run[Context, State]

# --- finish --------------------------------------------------------------------------------------


@fault(transitions, "finish", on="layout", caught_by="LIF-3")
def never_at_max_tokens(right: Right, ctx: Context, state: State, ends: Ends) -> Any:
    """Only the end of sequence ends a request, max_tokens does not."""
    unlimited = {one.id: evolve(one, max_tokens=99) for one in ctx.requests.values()}
    return right(evolve(ctx, requests=unlimited), state, ends)


@fault(transitions, "finish", on="layout", caught_by="BLK-2, BLK-4, BLK-6")
def finished_keeps_blocks(right: Right, ctx: Context, state: State, ends: Ends) -> Moved:
    """A finished request gives no block back."""
    moved, events = right(ctx, state, ends)
    return evolve(moved, pool=state.pool), events


@fault(transitions, "finish", on="layout", caught_by="LIF-3")
def finishes_twice(right: Right, ctx: Context, state: State, ends: Ends) -> Moved:
    """A request is reported finished twice."""
    moved, events = right(ctx, state, ends)
    return moved, events + events


@fault(transitions, "finish", on="layout", caught_by="LIF-3, LIF-2, BLK-4, SPY-DEC-7")
def finishes_silently(right: Right, ctx: Context, state: State, ends: Ends) -> Moved:
    """A request leaves without being reported finished."""
    moved, _events = right(ctx, state, ends)
    return moved, ()


@fault(transitions, "finish", on="layout", caught_by="LIF-1, BLK-2, SPY-DEC-7")
def finishes_and_stays(right: Right, ctx: Context, state: State, ends: Ends) -> Moved:
    """A finished request stays in the batch."""
    moved, events = right(ctx, state, ends)
    return evolve(moved, decoding=state.decoding), events


@fault(transitions, "finish", on="layout", caught_by="LIF-3")
def finishes_a_token_early(right: Right, ctx: Context, state: State, ends: Ends) -> Any:
    """A request ends a token before max_tokens."""
    shorter = {one.id: evolve(one, max_tokens=one.max_tokens - 1) for one in ctx.requests.values()}
    return right(evolve(ctx, requests=shorter), state, ends)


# --- abort ---------------------------------------------------------------------------------------


@fault(transitions, "abort", on="layout", caught_by="BLK-2, BLK-6, BLK-10")
def aborted_keeps_blocks(right: Right, ctx: Context, state: State, request_id: str) -> Any:
    """A request whose client goes away gives no block back."""
    return evolve(right(ctx, state, request_id), pool=state.pool)


@fault(transitions, "abort", on="layout", caught_by="LIF-1, BLK-2, LIF-7")
def aborted_keeps_the_slot(right: Right, ctx: Context, state: State, request_id: str) -> Any:
    """A request whose client goes away during its prefill keeps the slot."""
    return evolve(right(ctx, state, request_id), prefilling=state.prefilling)


@fault(transitions, "abort", on="pausing", caught_by="LIF-1, BLK-2, LIF-7")
def aborted_stays_paused(right: Right, ctx: Context, state: State, request_id: str) -> Any:
    """A request whose client goes away while it is paused stays among the paused."""
    return evolve(right(ctx, state, request_id), paused=state.paused)


@fault(transitions, "abort", on="layout", caught_by="LIF-7")
def abort_not_noted(right: Right, ctx: Context, state: State, request_id: str) -> Any:
    """A request whose client goes away leaves without a trace."""
    return evolve(right(ctx, state, request_id), aborted=state.aborted)


@fault(transitions, "abort", on="layout", caught_by="LIF-7")
def abort_clears_the_queue(right: Right, ctx: Context, state: State, request_id: str) -> Any:
    """When a client goes away all that wait are forgotten."""
    return evolve(right(ctx, state, request_id), waiting=())


@fault(transitions, "abort", on="layout", caught_by="BLK-10")
def aborted_head_first(right: Right, ctx: Context, state: State, request_id: str) -> Any:
    """The blocks of a request whose client goes away are given back head first."""
    table = next(one.blocks for one in state.present if one.id == request_id)
    pool = block_pool.release(state.pool, table[::-1])
    return evolve(right(ctx, state, request_id), pool=pool)


# --- preempt -------------------------------------------------------------------------------------


@fault(transitions, "preempt", on="preemption", caught_by="SPY-PRE-1")
def first_admitted_preempted(right: Right, ctx: Context, state: State, _victim: Row) -> Any:
    """The request that was admitted first is preempted."""
    return right(ctx, state, state.decoding[-1])


@fault(step, "blocks_lacking", of="preempt", on="preemption", caught_by="SPY-PRE-1")
def preempted_too_early(right: Right, ctx: Context, state: State) -> Any:
    """Somebody is preempted although the free blocks just suffice."""
    needs = any(row.computed % ctx.config.block_size == 0 for row in state.decoding)
    return right(ctx, state) + needs


@fault(transitions, "preempt", on="preemption", caught_by="SPY-PRE-2, LIF-5, BLK-2, BLK-8")
def preempted_keeps_blocks(right: Right, ctx: Context, state: State, victim: Row) -> Moved:
    """A preempted request keeps its block table."""
    moved, events = right(ctx, state, victim)
    first, *others = moved.waiting
    return evolve(moved, waiting=(evolve(first, blocks=victim.blocks), *others)), events


@fault(transitions, "preempt", on="preemption", caught_by="SPY-PRE-2, LIF-4, LIF-8")
def preempted_loses_its_answer(right: Right, ctx: Context, state: State, victim: Row) -> Moved:
    """A preempted request forgets what it had generated."""
    moved, events = right(ctx, state, victim)
    first, *others = moved.waiting
    return evolve(moved, waiting=(evolve(first, generated=0), *others)), events


@fault(transitions, "preempt", on="preemption", caught_by="SPY-PRE-2")
def preempted_goes_to_the_back(right: Right, ctx: Context, state: State, victim: Row) -> Moved:
    """A preempted request waits behind all others."""
    moved, events = right(ctx, state, victim)
    first, *others = moved.waiting
    return evolve(moved, waiting=(*others, first)), events


@fault(transitions, "preempt", on="preemption", caught_by="LIF-8")
def preempted_computes_its_prompt_only(
    right: Right, ctx: Context, state: State, victim: Row
) -> Moved:
    """A preempted request does not compute again what it had generated."""
    moved, events = right(ctx, state, victim)
    first, *others = moved.waiting
    prompt_only = evolve(first, prefill_len=ctx.requests[first.id].prompt_len)
    return evolve(moved, waiting=(prompt_only, *others)), events


@fault(step, "_prefill_step", of="preempt", on="preemption", caught_by="BLK-9, SPY-PRE-1")
def preempted_for_a_prefill(right: Right, ctx: Context, step: Step, *rest: Any) -> Any:
    """A prefill takes its blocks from the front of the batch."""
    if not step.before.decoding:
        return right(ctx, step, *rest)
    return _after_preempting_the_front(right, ctx, step, *rest)


def _after_preempting_the_front(right: Right, ctx: Context, step: Step, *rest: Any) -> Step:
    unreserved = with_config(ctx, reservation=False)
    state, events = transitions.preempt(unreserved, step.before, step.before.decoding[0])
    done: Step = right(ctx, evolve(step, before=state), *rest)
    return evolve(done, before=step.before, events=events + done.events)


@fault(step, "_decode_step", of="preempt", on="dry pool", caught_by="SPY-RES-3")
def preempted_despite_the_promise(right: Right, ctx: Context, step: Step, *rest: Any) -> Any:
    """When blocks get scarce, somebody is preempted although all were set aside."""
    if len(step.before.pool.free) > 2 or len(step.before.decoding) < 2:
        return right(ctx, step, *rest)
    return _after_preempting_the_front(right, ctx, step, *rest)


# --- pause, resume, sit_out ----------------------------------------------------------------------


@fault(transitions, "pause", on="pausing", caught_by="SPY-PAU-1, SPY-RES-2, BLK-4, BLK-8")
def paused_loses_blocks(right: Right, ctx: Context, state: State, row: Row) -> Moved:
    """A paused request gives its blocks back."""
    moved, events = right(ctx, state, row)
    *others, last = moved.paused
    pool = block_pool.release(moved.pool, row.blocks)
    return evolve(moved, pool=pool, paused=(*others, evolve(last, blocks=()))), events


@fault(step, "fits_limit", of="pause", on="pausing", caught_by="SPY-PAU-2")
def paused_without_reason(right: Right, ctx: Context, rows: list[Row]) -> Any:
    """The volume limit is compared with `<` where `<=` is meant."""
    limit = ctx.config.max_batch_tkv_limit - 1
    return right(with_config(ctx, max_batch_tkv_limit=limit), rows)


@fault(step, "fits_limit", of="pause", on="pausing", caught_by="SPY-VOL-1")
def nobody_paused(_right: Right, _ctx: Context, _rows: list[Row]) -> bool:
    """Decode steps do not look at the volume limit."""
    return True


@fault(step, "_pause_and_resume", of="pause", on="pausing", caught_by="SPY-PAU-3")
def longest_answer_first(right: Right, run: Paused) -> None:
    """Who generated most decodes first although the configuration says least."""
    ctx, run.ctx = run.ctx, with_config(run.ctx, long_output_first=True)
    right(run)
    run.ctx = ctx


@fault(
    step,
    "_pause_and_resume",
    of="resume",
    on="pausing",
    caught_by="SPY-PAU-3, SPY-PAU-2, guard SPY-DEC-2",
)
def never_resumed(right: Right, run: Paused) -> None:
    """The paused are not looked at any more."""
    paused, run.state = run.state.paused, evolve(run.state, paused=())
    right(run)
    run.state = evolve(run.state, paused=(*paused, *run.state.paused))


@fault(machine, "scheduler_step", of="resume", on="pausing", caught_by="SPY-PRI-4")
def idle_with_the_paused(right: Right, ctx: Context, state: State, *rest: Any) -> Any:
    """When only paused requests are left, nobody is resumed and nothing is computed."""
    if state.present != state.paused:
        return right(ctx, state, *rest)
    idle: Step = right(ctx, evolve(state, paused=()), *rest)
    return evolve(idle, before=state, after=evolve(idle.after, paused=state.paused))


@fault(step, "_pause_and_resume", of="resume", on="pausing", caught_by="SPY-PAU-3")
def waiting_counts_for_nothing(right: Right, run: Paused) -> None:
    """How long somebody was paused does not count."""
    fresh = tuple(evolve(row, waited_steps=0) for row in run.state.paused)
    run.state = evolve(run.state, paused=fresh)
    right(run)


@fault(transitions, "resume", on="pausing", caught_by="SPY-DEC-1, SPY-TKV-1, LIF-8")
def resumed_a_token_back(right: Right, ctx: Context, state: State, row: Row) -> Moved:
    """A resumed request computes its last token again."""
    moved, events = right(ctx, state, row)
    *others, last = moved.decoding
    return evolve(moved, decoding=(*others, evolve(last, computed=last.computed - 1))), events


@fault(transitions, "sit_out", on="pausing", caught_by="SPY-PAU-1, LIF-4, LIF-8")
def sitting_out_costs_a_token(
    right: Right, ctx: Context, state: State, order: Sequence[str]
) -> State:
    """A paused request loses a token in every step that it sits out."""
    moved: State = right(ctx, state, order)
    rows = tuple(evolve(row, generated=row.generated - 1) for row in moved.paused)
    return evolve(moved, paused=rows)


@fault(transitions, "sit_out", on="pausing", caught_by="LIF-2, BLK-2, BLK-6")
def sitting_out_forgets(right: Right, ctx: Context, state: State, order: Sequence[str]) -> Any:
    """Whoever sits out is forgotten."""
    return evolve(right(ctx, state, order), paused=())


@fault(transitions, "sit_out", on="pausing", caught_by="SPY-PAU-3")
def waiting_not_counted(_right: Right, _ctx: Context, state: State, _order: Sequence[str]) -> Any:
    """The steps that a paused request sits out are not counted."""
    return state


@fault(transitions, "resume", on="pausing", caught_by="SPY-DEC-7")
def resumed_in_front(right: Right, ctx: Context, state: State, row: Row) -> Moved:
    """A resumed request goes before the batch."""
    moved, events = right(ctx, state, row)
    *others, last = moved.decoding
    return evolve(moved, decoding=(last, *others)), events
