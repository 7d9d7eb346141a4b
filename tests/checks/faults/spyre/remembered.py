"""Faults of fields kept between steps, of queue orders, and of actions between two steps."""

from collections.abc import Callable
from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.spyre import machine, step, transitions
from reference.spyre.step import SpyreRun
from spec.spyre.records import Context
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.faults.patches import (
    Wrong,
    backwards,
    changed,
    each,
    first,
    first_to_back,
    kept,
    last_to_front,
    plus,
    result,
)
from tests.checks.faults.spyre.table import fault

# --- between two steps ----------------------------------------------------------------------------


def after_abort(**fields: Any) -> Wrong:
    """An abort that also changes these fields: to a value, or by a function of the old one."""

    def wrong(right: Wrong, *given: Any, **how: Any) -> Any:
        return result(**fields)(lambda *args: right(*args, **how), *given)

    return wrong


fault(transitions, "abort", on="layout", rules="LIF-9")(
    after_abort(last_kind="idle"),
    "abort forgets the kind: when a client goes away the kind of the last step is forgotten",
)
fault(transitions, "abort", on="shipped", rules="LIF-9")(
    after_abort(last_tkv=0),
    "abort forgets the tkv: when a client goes away the tkv of the last step is forgotten",
)
fault(transitions, "arrive", on="layout", rules="LIF-9")(
    result(last_kind="idle"), "arrival forgets the kind: an arrival counts as an idle step"
)
fault(transitions, "abort", on="layout", rules="LIF-9, LIF-7")(
    after_abort(decoding=backwards),
    "abort turns the batch round: when a client goes away the others change their places",
)
fault(transitions, "abort", on="pausing", rules="LIF-9, LIF-7")(
    after_abort(paused=each(waited_steps=0)),
    "abort forgets the waiting: when a client goes away the paused start to wait again",
)


@fault(transitions, "abort", on="pausing", rules="LIF-9")
def abort_resumes(right: Wrong, *given: Any, **how: Any) -> Any:
    """When a client goes away the first of the paused goes back to the batch, behind the others."""
    after = right(*given, **how)
    return evolve(after, decoding=(*after.decoding, *after.paused[:1]), paused=after.paused[1:])


fault(transitions, "abort", on="layout", rules="LIF-9")(
    after_abort(finished=frozenset()),
    "abort forgets the finished: when a client goes away it is forgotten which requests finished",
)
fault(transitions, "abort", on="eviction", rules="LIF-9")(
    lambda right, *given, **how: forgets_contents(right(*given, **how)),
    "abort clears the cache: when a client goes away no free block can be found any more",
)


def forgets_contents(state: State) -> State:
    """The state without the contents of its free blocks."""
    free = [block for block in state.pool.free if block in state.pool.keys]
    return evolve(state, pool=block_pool.evict(state.pool, free))


@fault(transitions, "abort", on="released", rules="LIF-9")
def abort_keeps_twice(right: Wrong, ctx: Context, state: State, name: str, **how: Any) -> Any:
    """In 2.6.3, twice the blocks stay set aside for a request whose client goes away."""
    after = right(ctx, state, name, **how)
    return evolve(after, orphaned=2 * after.orphaned - state.orphaned)


fault(transitions, "arrive", on="released", rules="LIF-9")(
    result(orphaned=0), "arrival gives back: an arrival gives back what was set aside for leavers"
)

# --- what a step remembers ------------------------------------------------------------------------


fault(machine, "scheduler_step", of="step", on="layout", rules="LIF-10")(
    lambda right, *given: finished_dropped(right(*given)),
    "finished forgotten: a step forgets a request that finished before it",
)


def finished_dropped(taken: Any) -> Any:
    """The step, after which only those are known as finished that finished in it."""
    return evolve(taken, after=evolve(taken.after, finished=frozenset(taken.finished)))


fault(step, "_at_rest", of="step", on="exact, not interleaved", rules="SPY-PRI-12")(
    kept("last_kind"), "kind kept: the kind of the last step is that of the first"
)
fault(step, "_at_rest", of="step", on="pausing", rules="SPY-VOL-5")(
    kept("last_tkv"), "tkv kept: with pausing the tkv of the last step is not remembered"
)
fault(step, "_at_rest", of="step", on="layout", rules="SPY-VOL-5")(
    lambda right, ctx, state, kind, tkv: evolve(right(ctx, state, kind, tkv), last_tkv=tkv),
    "tkv remembered for none: a tkv is remembered where no condition looks at it",
)


@fault(step, "_at_rest", of="step", on="shipped", rules="SPY-VOL-5")
def tkv_is_stale(right: Wrong, ctx: Context, state: State, kind: str, tkv: int) -> Any:
    """A prefill step leaves the tkv of the decode step before it."""
    after = right(ctx, state, kind, tkv)
    return evolve(after, last_tkv=state.last_tkv) if kind == "prefill" else after


fault(transitions, "cohort_after_admission", of="admit", on="exact, aligned", rules="SPY-PRI-9")(
    lambda right, config, cohort, waiting: right(config, cohort, waiting) + (cohort > 0),
    "cohort not reduced: a request of the cohort that is admitted is counted still",
)
fault(transitions, "cohort_after_admission", of="admit", on="layout", rules="SPY-PRI-15")(
    lambda _right, _config, _cohort, waiting: waiting - 1,
    "cohort for all: also without the aligned queue those that wait are a cohort",
)

# --- the records of requests ----------------------------------------------------------------------

fault(transitions, "resume", on="pausing", rules="SPY-PAU-8")(
    lambda right, ctx, state, row: (
        evolve(right(ctx, state, row)[0], decoding=(*right(ctx, state, row)[0].decoding[:-1], row)),
        right(ctx, state, row)[1],
    ),
    "waiting kept: a request that decodes again keeps the count of the steps that it sat out",
)
fault(
    transitions,
    "with_prefix_hit",
    of="prefix_hit",
    on="shared prefix",
    rules="SPY-PFX-11, SPY-PFX-5, SPY-CHK-3, SPY-CHK-5, SPY-ADM-4",
)(result(hit_blocks=plus(-1)), "hits miscounted: a block of the prefix hit is not counted")
fault(transitions, "join", on="layout", rules="SPY-CHK-6")(
    result(decoding=first(prefill_len=plus(1))),
    "prefill longer: a request that joins takes its first token for a part of its prefill",
)
fault(transitions, "join", on="layout", rules="SPY-TKV-9")(
    result(decoding=first(left_padding=2)),
    "joins padded: a request that joins has the padding of a step that it was not in",
)
fault(transitions, "join", on="preemption", rules="SPY-RES-5")(
    result(decoding=first(reserved=1)),
    "promise without reservation: a request that joins is promised a block",
)
fault(machine, "scheduler_step", of="step", on="released", rules="SPY-RES-6")(
    lambda right, *given: evolve(taken := right(*given), after=evolve(taken.after, orphaned=0)),
    "step gives back: a step gives back what was set aside for requests whose clients left",
)


@fault(machine, "scheduler_step", of="decode", on="layout", rules="LIF-11")
def padding_forgotten(right: Wrong, *given: Any) -> Any:
    """The rows forget their padding once they have decoded."""
    taken = right(*given)
    return evolve(taken, after=changed(decoding=each(left_padding=0))(taken.after))


fault(transitions, "extend", on="layout", rules="BLK-11, BLK-4")(
    result(decoding=each(blocks=backwards)),
    "tables turned round: a step that hands out a block turns the tables of the rows round",
)
fault(transitions, "register", of="chunk", on="dialogue", rules="BLK-12")(
    lambda right, pool, blocks, keys: first_found(right(pool, blocks, keys), blocks),
    "newest found first: of two blocks with the same content the newer is found",
)


def first_found(pool: Any, blocks: Any) -> Any:
    """The pool, in which these blocks are found before others with the same content."""
    cached = dict(pool.cached)
    for block in blocks:
        key = pool.keys[block]
        cached[key] = (block, *(holder for holder in cached[key] if holder != block))
    return evolve(pool, cached=type(pool.cached)(cached))


@fault(transitions, "chunk", on="exact, longer blocks", rules="SPY-CHK-7")
def chunk_counts_its_padding(right: Wrong, ctx: Context, state: State) -> Any:
    """A first chunk that is not the last counts one token less than it computed."""
    moved, planned, events = right(ctx, state)
    if planned.is_last or moved.prefilling.computed % ctx.config.block_size == 1:
        return moved, planned, events
    row = evolve(moved.prefilling, computed=moved.prefilling.computed - 1)
    return evolve(moved, prefilling=row), planned, events


@fault(step, "_decode_step", of="pause", on="exact", rules="SPY-DEC-1, SPY-PAU-8")
def paused_without_pausing(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """A row sits out although no request may be paused."""
    if len(run.state.decoding) > 1:
        run.take(transitions.pause, run.state.decoding[-1])
    right(run, *given)


# --- orders ---------------------------------------------------------------------------------------

fault(transitions, "sit_out", on="pausing", rules="SPY-PAU-7")(
    lambda right, ctx, state, order: right(ctx, state, order[::-1]),
    "paused turned round: the paused stand in the reverse of the order in which they go",
)


def by_rank(sign: int) -> Callable[[Row], tuple[int, int]]:
    """The order of priority; `sign` is -1 where the longest answer goes first."""
    return lambda row: (-row.waited_steps, sign * row.generated)


def in_other_order(reorder: Callable[[list[Row]], list[Row]]) -> Wrong:
    """Rows within the limit and beyond it, looked at in another order."""

    def wrong(_right: Wrong, ctx: Context, state: State) -> Any:
        sign = -1 if ctx.config.long_output_first else 1
        within: list[Row] = []
        beyond: list[Row] = []
        for row in sorted(reorder([*state.paused, *state.decoding]), key=by_rank(sign)):
            (within if step.fits_limit(ctx, [*within, row]) else beyond).append(row)
        return within, beyond

    return wrong


fault(step, "rows_within_limit", of="pause", on="pausing", rules="SPY-PAU-7")(
    in_other_order(lambda rows: rows[::-1]),
    "ties the other way: of rows alike the one that was queued last decodes",
)


@fault(step, "rows_within_limit", of="resume", on="pausing", rules="SPY-PAU-7")
def resumed_out_of_order(right: Wrong, ctx: Context, state: State) -> Any:
    """Rows that decode again are put behind the batch in the reverse of their order."""
    within, beyond = right(ctx, state)
    return within[::-1], beyond


@fault(step, "rows_within_limit", of="pause", on="pausing", rules="SPY-PAU-7")
def a_later_row_takes_the_place(right: Wrong, ctx: Context, state: State) -> Any:
    """Behind the first row, the others are tried from the last one on."""
    sign = -1 if ctx.config.long_output_first else 1
    head, *rest = sorted((*state.paused, *state.decoding), key=by_rank(sign))
    within, beyond = [head], list[Row]()
    for row in reversed(rest):
        (within if step.fits_limit(ctx, [*within, row]) else beyond).append(row)
    return within, beyond


@fault(step, "in_line", of="admit", on="released, four overtaking", rules="SPY-PRI-14")
def second_stepped_over(right: Wrong, ctx: Context, state: State) -> Any:
    """Where a request overtakes the head of the queue, it is the last that could."""
    head, *others = right(ctx, state) or (None,)
    return () if head is None else (head, *reversed(others))


@fault(step, "_decode_step", of="preempt", on="preemption", rules="SPY-PRI-13")
def preempted_in_other_order(right: Wrong, run: SpyreRun, *given: Any) -> None:
    """Of two requests that a step preempts, the first of them waits first."""
    right(run, *given)
    if len([event for event in run.events if event.transition == "preempt"]) == 2:
        first, other, *others = run.state.waiting
        run.state = evolve(run.state, waiting=(other, first, *others))


fault(transitions, "admit", on="layout", rules="SPY-PRI-13")(
    result(waiting=last_to_front),
    "admission turns the queue: when a request is admitted the last that waits goes to the front",
)
fault(transitions, "decode", on="layout", rules="SPY-DEC-7")(
    result(decoding=backwards), "decode turns the batch round: a step permutes its rows"
)


# --- the released plugin: reading = released, queue = overtaking, pausing -------------------------

fault(transitions, "abort", on="released", rules="LIF-9")(
    after_abort(last_kind="idle"),
    "released abort forgets the kind: in 2.6.3, an abort forgets the kind of the last step",
)
fault(transitions, "abort", on="released", rules="LIF-9")(
    lambda right, ctx, state, name, **_how: right(ctx, state, name, running=True),
    "released abort gives back: in 2.6.3, an abort between two steps gives back what was promised",
)
fault(step, "_at_rest", of="step", on="released, pausing", rules="SPY-VOL-5")(
    kept("last_tkv"),
    "released tkv is stale: in 2.6.3, the tkv of the last step is that of the first",
)
fault(transitions, "sit_out", on="released, pausing", rules="SPY-PAU-8")(
    result(paused=each(waited_steps=1)),
    "released waiting once: in 2.6.3, a row that sits out counts a single step for ever",
)
fault(transitions, "sit_out", on="released, pausing", rules="SPY-PAU-7")(
    lambda right, ctx, state, order: right(ctx, state, order[::-1]),
    "released paused turned round: in 2.6.3, the paused stand in the reverse of their order",
)
fault(step, "rows_within_limit", of="pause", on="released, pausing", rules="SPY-PAU-7")(
    in_other_order(lambda rows: rows[::-1]),
    "released ties the other way: in 2.6.3, of rows alike the one that was queued last decodes",
)
fault(step, "rows_within_limit", of="resume", on="released, pausing", rules="SPY-PAU-7")(
    resumed_out_of_order,
    "released resumed out of order: in 2.6.3, rows decode again in the reverse of their order",
)
fault(transitions, "counted_after", of="chunk", on="released", rules="SPY-CHK-7, BLK-8")(
    lambda _right, _ctx, _sequence, chunk: chunk.end,
    "released counts what is computed: in 2.6.3, only the tokens up to the chunk's end count",
)
fault(
    transitions,
    "with_prefix_hit",
    of="prefix_hit",
    on="released",
    rules="SPY-PFX-11, SPY-PFX-5, SPY-ADM-4",
)(
    result(hit_blocks=plus(1)),
    "released hits miscounted: in 2.6.3, a block too many is noted as hit",
)
fault(transitions, "admit", on="released, four overtaking", rules="SPY-PRI-13")(
    result(waiting=backwards),
    "released queue turned: in 2.6.3, an admission turns those that wait round",
)


@fault(machine, "scheduler_step", of="join", on="released, pausing", rules="SPY-DEC-7")
def released_joins_behind(right: Wrong, *given: Any) -> Any:
    """In 2.6.3, a request that joins stands behind the batch."""
    taken = right(*given)
    if not taken.happened("join") or taken.finished:
        return taken
    return evolve(taken, after=changed(decoding=first_to_back)(taken.after))
