"""Faults of leaving and standing back: finish, abort, preempt, pause, resume, sit out."""

from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.spyre import machine, step, transitions
from reference.spyre.step import SpyreRun
from reference.spyre.transitions import Moved
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.faults.patches import (
    Wrong,
    always,
    changed,
    configured,
    depending,
    each,
    first,
    first_to_back,
    kept,
    last,
    last_to_front,
    plus,
    result,
    with_config,
)
from tests.checks.faults.spyre.table import fault


def with_max_tokens(max_tokens: Any) -> Wrong:
    """The right function for requests with another `max_tokens`."""

    def wrong(right: Wrong, ctx: Context, *given: Any) -> Any:
        others = {
            request.id: changed(max_tokens=max_tokens)(request) for request in ctx.requests.values()
        }
        return right(evolve(ctx, requests=others), *given)

    return wrong


# --- finish --------------------------------------------------------------------------------------

fault(transitions, "finish", on="layout", rules="LIF-3")(
    with_max_tokens(lambda _max_tokens: 99),
    "never at max tokens: only the end of sequence ends a request, max_tokens does not",
)
fault(transitions, "finish", on="layout", rules="BLK-2, BLK-4, BLK-6")(
    kept("pool"), "finished keeps blocks: a finished request gives no block back"
)
fault(transitions, "finish", on="layout", rules="LIF-3")(
    lambda right, *given: (right(*given)[0], right(*given)[1] * 2),
    "finishes twice: a request is reported finished twice",
)
fault(transitions, "finish", on="layout", rules="LIF-3, LIF-2, BLK-4, SPY-DEC-7, LIF-10")(
    lambda right, *given: (right(*given)[0], ()),
    "finishes silently: a request leaves without being reported finished",
)
fault(transitions, "finish", on="layout", rules="LIF-1, BLK-2, SPY-DEC-7, LIF-3")(
    kept("decoding"), "finishes and stays: a finished request stays in the batch"
)
fault(transitions, "finish", on="layout", rules="LIF-3")(
    with_max_tokens(plus(-1)), "finishes a token early: a request ends a token before max_tokens"
)


fault(transitions, "finish", on="exact", rules="LIF-3")(
    lambda right, ctx, state, _ends: right(ctx, state, always(False)),
    "end ignored: a request goes on behind the end of sequence that it sampled",
)


# --- abort ---------------------------------------------------------------------------------------

fault(transitions, "abort", on="layout", rules="BLK-2, BLK-6, BLK-10, LIF-9")(
    kept("pool"), "aborted keeps blocks: a request whose client goes away gives no block back"
)
fault(transitions, "abort", on="layout", rules="LIF-1, BLK-2, LIF-7, LIF-9")(
    kept("prefilling"),
    "aborted keeps the slot: a request whose client goes away during its prefill keeps the slot",
)
fault(transitions, "abort", on="pausing", rules="LIF-1, BLK-2, LIF-7, LIF-9")(
    kept("paused"), "aborted stays paused: a request whose client goes away stays among the paused"
)
fault(transitions, "abort", on="layout", rules="LIF-7, LIF-9")(
    kept("aborted"), "abort not noted: a request whose client goes away leaves without a trace"
)
fault(transitions, "abort", on="layout", rules="LIF-7, LIF-9")(
    result(waiting=()),
    "abort clears the queue: when a client goes away all that wait are forgotten",
)


fault(transitions, "abort", on="exact, aligned", rules="SPY-PRI-10, LIF-9")(
    lambda right, ctx, state, name, **how: evolve(
        right(ctx, state, name, **how), cohort=state.cohort
    ),
    "counted still: a request that goes away stays in the count of the cohort",
)


@fault(transitions, "abort", on="layout", rules="BLK-10")
def aborted_head_first(right: Wrong, ctx: Context, state: State, request_id: str) -> Any:
    """The blocks of a request whose client goes away are given back head first."""
    table = next(request.blocks for request in state.present if request.id == request_id)
    pool = block_pool.release(state.pool, table[::-1])
    return evolve(right(ctx, state, request_id), pool=pool)


# --- preempt -------------------------------------------------------------------------------------

fault(transitions, "preempt", on="preemption", rules="SPY-PRE-1")(
    lambda right, ctx, state, _victim: right(ctx, state, state.decoding[-1]),
    "first admitted preempted: the request that was admitted first is preempted",
)


@fault(transitions, "preempt", on="preemption", rules="SPY-PRE-1")
def one_victim_too_many(right: Wrong, ctx: Context, state: State, victim: Row) -> Moved:
    """With the last admitted request the next one is preempted, too."""
    moved, events = right(ctx, state, victim)
    if len(moved.decoding) < 2:
        return moved, events
    moved, more = right(ctx, moved, moved.decoding[0])
    return moved, (*events, *more)


@fault(step, "blocks_lacking", of="preempt", on="preemption", rules="SPY-PRE-1")
def preempted_too_early(right: Wrong, ctx: Context, state: State) -> Any:
    """A row is preempted although the free blocks just suffice."""
    needs = any(row.computed % ctx.config.block_size == 0 for row in state.decoding)
    return right(ctx, state) + needs


fault(transitions, "preempt", on="preemption", rules="SPY-PRE-2, LIF-5, BLK-2, BLK-8, SPY-PRI-13")(
    depending(lambda _ctx, _state, row: changed(waiting=first(blocks=row.blocks))),
    "preempted keeps blocks: a preempted request keeps its block table",
)
fault(transitions, "preempt", on="preemption", rules="SPY-PRE-2, LIF-4, LIF-8, SPY-PRI-13")(
    result(waiting=first(generated=0)),
    "preempted loses its answer: a preempted request forgets what it had generated",
)
fault(transitions, "preempt", on="preemption", rules="SPY-PRE-2, SPY-PRI-13")(
    result(waiting=first_to_back),
    "preempted goes to the back: a preempted request waits behind all others",
)


@fault(transitions, "preempt", on="preemption", rules="LIF-8, SPY-PRI-13")
def preempted_computes_its_prompt_only(
    right: Wrong, ctx: Context, state: State, victim: Row
) -> Moved:
    """A preempted request does not compute again what it had generated."""
    moved, events = right(ctx, state, victim)
    first, *others = moved.waiting
    prompt_only = evolve(first, prefill_len=ctx.requests[first.id].prompt_len)
    return evolve(moved, waiting=(prompt_only, *others)), events


@fault(step, "_prefill_step", of="preempt", on="preemption", rules="BLK-9, SPY-PRE-1")
def preempted_for_a_prefill(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """A prefill takes its blocks from the front of the batch."""
    if run.state.decoding:
        run.take(transitions.preempt, run.state.decoding[0])
    right(run, *given)


@fault(step, "_decode_step", of="preempt", on="dry pool", rules="SPY-RES-3")
def preempted_despite_the_promise(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """When blocks get scarce, a row is preempted although all were set aside."""
    if len(run.state.pool.free) <= 2 and len(run.state.decoding) > 1:
        ctx, run.ctx = run.ctx, with_config(run.ctx, reservation=False)
        run.take(transitions.preempt, run.state.decoding[0])
        run.ctx = ctx
    right(run, *given)


# --- pause, resume, sit_out ----------------------------------------------------------------------


fault(transitions, "pause", on="pausing", rules="SPY-PAU-1, SPY-RES-2, BLK-4, BLK-8, BLK-11")(
    depending(
        lambda _ctx, _state, row: changed(
            pool=lambda pool: block_pool.release(pool, row.blocks), paused=last(blocks=())
        )
    ),
    "paused loses blocks: a paused request gives its blocks back",
)
fault(step, "fits_limit", of="pause", on="pausing", rules="SPY-PAU-2, SPY-PAU-7")(
    configured(max_batch_tkv_limit=plus(-1)),
    "paused without reason: the volume limit is compared with `<` where `<=` is meant",
)
fault(step, "fits_limit", of="pause", on="pausing", rules="SPY-VOL-1")(
    always(True), "none paused: decode steps do not look at the volume limit"
)


@fault(step, "_pause_and_resume", of="pause", on="pausing", rules="SPY-PAU-3, SPY-PAU-7")
def longest_answer_first(right: Wrong, run: SpyreRun) -> None:
    """The longest answer decodes first although the configuration says the shortest."""
    ctx, run.ctx = run.ctx, with_config(run.ctx, long_output_first=True)
    right(run)
    run.ctx = ctx


@fault(
    step,
    "_pause_and_resume",
    of="resume",
    on="pausing",
    rules="SPY-PAU-3, SPY-PAU-2, SPY-PAU-7, SPY-PAU-8, SPY-PRI-4",
)
def never_resumed(right: Wrong, run: SpyreRun) -> None:
    """The paused are not looked at any more."""
    paused, run.state = run.state.paused, evolve(run.state, paused=())
    right(run)
    run.state = evolve(run.state, paused=(*paused, *run.state.paused))


@fault(machine, "scheduler_step", of="resume", on="pausing", rules="SPY-PRI-4, SPY-PAU-7")
def idle_with_the_paused(right: Wrong, ctx: Context, state: State, *rest: Any) -> Any:
    """When only paused requests are left, none is resumed and nothing is computed."""
    if state.present != state.paused:
        return right(ctx, state, *rest)
    idle: Step = right(ctx, evolve(state, paused=()), *rest)
    return evolve(idle, before=state, after=evolve(idle.after, paused=state.paused))


@fault(
    step, "_pause_and_resume", of="resume", on="pausing", rules="SPY-PAU-3, SPY-PAU-7, SPY-PAU-8"
)
def waiting_counts_for_nothing(right: Wrong, run: SpyreRun) -> None:
    """How long a request was paused does not count."""
    fresh = tuple(evolve(row, waited_steps=0) for row in run.state.paused)
    run.state = evolve(run.state, paused=fresh)
    right(run)


fault(transitions, "resume", on="pausing", rules="SPY-DEC-1, SPY-TKV-1, LIF-8")(
    result(decoding=last(computed=plus(-1))),
    "resumed a token back: a resumed request computes its last token again",
)
fault(transitions, "sit_out", on="pausing", rules="SPY-PAU-1, LIF-4, LIF-8")(
    result(paused=each(generated=plus(-1))),
    "sitting out costs a token: a paused request loses a token in every step that it sits out",
)
fault(transitions, "sit_out", on="pausing", rules="LIF-2, BLK-2, BLK-6")(
    result(paused=()), "sitting out forgets: a request that sits out is forgotten"
)
fault(transitions, "sit_out", on="pausing", rules="SPY-PAU-8")(
    lambda _right, _ctx, state, _order: state,
    "waiting not counted: the steps that a paused request sits out are not counted",
)
fault(transitions, "resume", on="pausing", rules="SPY-DEC-7")(
    result(decoding=last_to_front), "resumed in front: a resumed request goes before the batch"
)
