"""Obligations about admission = exact for every batch size at once, in the solver.

The rows are any number of rows; the formulas that the machine runs are run on them as they are
(`checks.proofs.any_rows`). Taken for granted are two things that are true of any finite number of
rows: the largest number is that of some row and none is larger, and a count is no larger than
another unless some row is counted in the one and not in the other.

1. In a step as many rows are alive as at the first end from there on (PRV-ANY-1), and its max-tkv
   is at most the peak of the rows that the rule makes of that end (PRV-ANY-2).
2. So its volume is at most the number that the rule compares with the limit: `exact` is *sound*
   (PRV-ANY-3). That a step has rows and tokens at all is PRV-ANY-4.
3. The peak that the rule makes of an end is attained in some step until then (PRV-ANY-5), in
   which no fewer rows are alive than at the end (PRV-ANY-6). So a number over the limit is a step
   over the limit: `exact` is *tight* (PRV-ANY-7).

The letter stands for the block: A for the product's, B for every block size.
"""

from functools import partial
from itertools import permutations

from checks.proofs.any_rows import instantiated_rows, row_where_not, row_with_largest
from checks.proofs.registry import Positive, Statement, cite
from checks.proofs.spyre.definitions import (
    ANY,
    AnyBatch,
    AnyLives,
    alive_count,
    alive_rows,
    batch_scenario,
    batch_tkv,
    cite_tkv,
    have_tokens,
    some_alive,
    step_tokens,
    step_volume,
)
from checks.proofs.spyre.rows import REAL_BLOCK, last_full_step
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, Truth, maximum, negate, select
from spec.core.rows import Row, Rows, any_of, each_of
from spec.spyre.admission import exact_volume_holds, peak_volume_until, rows_until
from spec.spyre.padding import (
    batch_width_blocks,
    last_block_offset,
    longest,
    max_tkv,
    peak_tkv,
    reaches_block_end,
)

# --- words of the claims --------------------------------------------------------------------------


def first_end(lives: Rows, step: Number) -> Row:
    """A row that ends first among those that decode in this step, as an instance."""
    return row_with_largest(alive_rows(lives, step), lambda life: -life.steps)


def peak_until(lives: Rows, steps: Number, block_size: Number) -> Number:
    """The peak that the rule makes of an end."""
    return peak_tkv(rows_until(lives, steps), steps, block_size)


def identity(number: Number) -> Number:
    """The number itself."""
    return number


# --- sound ----------------------------------------------------------------------------------------

_of_the_volume = partial(obligation, where="admission=exact", rules=["SPY-VOL-1", "SPY-VOL-4"])


@_of_the_volume("PRV-ANY-1", bounds=f"{ANY}, every step", is_step=True)
def the_first_end_has_the_living(lives: AnyLives, step: Positive) -> Statement:
    """In a step as many rows are alive as at the first end from there on."""
    rows = lives.rows
    given = [some_alive(rows, step)]
    end = first_end(rows, step)
    return Statement(
        [alive_count(rows, step) == alive_count(rows, end.steps), end.steps >= step],
        given,
        rows=rows,
    )


def no_step_exceeds_the_peak(lives: AnyLives, step: Positive, block_size: Positive) -> Statement:
    """No step has a larger max-tkv than the peak that the rule makes of the first end from there
    on.
    """
    rows = lives.rows
    given = [have_tokens(rows), some_alive(rows, step)]
    end, now = first_end(rows, step), step_tokens(rows, step)
    alive, until = alive_rows(rows, step), rows_until(rows, end.steps)
    final = each_of(until, lambda length: length + end.steps)
    # The longest and the furthest row of the step, and the longest of those until the end.
    widest_and_furthest = [
        row_with_largest(alive, lambda life: life.length + step),
        row_with_largest(alive, lambda life: last_block_offset(life.length + step, block_size)),
    ]
    row_with_largest(until, identity)
    row_with_largest(final, identity)
    known = [
        cite("PRV-PEAK-1B", row=row.length, step=step, steps=end.steps, block_size=block_size)
        for row in widest_and_furthest
    ]
    widest, wider = longest(now), longest(final)
    known += [
        cite("PRV-PEAK-1C", longest=widest, longer=wider, block_size=block_size),
        cite("PRV-DEC-5", row=widest, block_size=block_size),
        cite("PRV-DEC-5", row=wider, block_size=block_size),
    ]
    return Statement(
        max_tkv(now, block_size) <= peak_until(rows, end.steps, block_size),
        given,
        known,
        rows=rows,
    )


def is_admitted(batch: AnyBatch, limit: Number, block_size: Number) -> Truth:
    """The rule admits the candidate."""
    return exact_volume_holds(batch.decoding, batch.candidate, limit, block_size)


def exact_is_sound(
    batch: AnyBatch, limit: Positive, step: Positive, block_size: Positive, case: str
) -> Statement:
    """If `exact` admits a request, no step of the worst case exceeds the limit."""
    # Where no row is alive any more there is no step.
    lives = batch.lives
    given = [*batch.given, is_admitted(batch, limit, block_size), some_alive(lives, step)]
    end = first_end(lives, step)
    now = step_tokens(lives, step)
    rows, tkv = alive_count(lives, step), max_tkv(now, block_size)
    lived, peak = alive_count(lives, end.steps), peak_until(lives, end.steps, block_size)
    any_lives = AnyLives(lives)
    known = [
        cite("PRV-ANY-1", lives=any_lives, step=step),
        cite(f"PRV-ANY-2{case}", lives=any_lives, step=step, block_size=block_size),
        cite("PRV-ANY-4", lives=any_lives, step=step, block_size=block_size),
        cite("PRV-EXA-3", rows=rows, more=lived, peak=tkv, tkv=peak),
        cite("PRV-DEF-1", batch=batch),
        cite("PRV-DEF-2", rows=rows, tkv=tkv),
        cite_tkv(lives, step, block_size),
    ]
    return Statement(
        step_volume(lives, step, block_size) <= limit,
        given,
        known,
        rows=lives,
        words=("all",),
        opaque=[
            tkv,
            batch_tkv(now, block_size),
            *(peak_until(lives, life.steps, block_size) for life in instantiated_rows(lives)),
        ],
    )


@_of_the_volume("PRV-ANY-4", bounds=f"{ANY}, every step", is_step=True)
def a_step_has_rows_and_tokens(lives: AnyLives, step: Positive, block_size: Positive) -> Statement:
    """A step in which some row is alive has a row or more, and a max-tkv of one or more."""
    rows = lives.rows
    given = [have_tokens(rows), some_alive(rows, step)]
    now = step_tokens(rows, step)
    row_with_largest(now, identity)
    row_with_largest(now, lambda length: last_block_offset(length, block_size))
    known = [cite("PRV-DEC-5", row=longest(now), block_size=block_size)]
    return Statement(
        [alive_count(rows, step) >= 1, max_tkv(now, block_size) >= 1], given, known, rows=rows
    )


# --- tight ----------------------------------------------------------------------------------------


def first_step_at_width(lengths: Rows, steps: Number, block_size: Number) -> Number:
    """The first step in which the rows are as wide as in the last."""
    width = batch_width_blocks(each_of(lengths, lambda length: length + steps), block_size)
    return maximum((width - 1) * block_size + 1 - longest(lengths), 1)


def filling(lives: Rows, steps: Number, block_size: Number) -> tuple[Truth, Number]:
    """Whether a row until this end is full at the final width, and such a row if there is one."""
    until = rows_until(lives, steps)
    first = first_step_at_width(until, steps, block_size)

    def fills(length: Number) -> Truth:
        return reaches_block_end(length + first, length + steps, block_size)

    return any_of(until, fills), row_where_not(until, lambda length: negate(fills(length)))


def peak_step(lives: Rows, steps: Number, block_size: Number) -> Number:
    """A step in which the peak that the rule makes of an end is attained: one in which a row is
    full at the final width, if there is any, else the end.
    """
    some_fill, row = filling(lives, steps, block_size)
    return select(some_fill, last_full_step(row, steps, block_size), steps)


def peak_is_attained(lives: AnyLives, steps: Positive, block_size: Positive) -> Statement:
    """The peak that the rule makes of an end is attained in some step until then, by the rows that
    decode in it.
    """
    rows = lives.rows
    given = [have_tokens(rows), any_of(rows, lambda life: life.steps == steps)]
    row_where_not(rows, lambda life: negate(life.steps == steps))
    until, step = rows_until(rows, steps), peak_step(rows, steps, block_size)
    final = each_of(until, lambda length: length + steps)
    # The row that the stand-ins are copies of, and the longest and the furthest until the end.
    row_with_largest(rows, lambda life: select(life.steps == steps, life.length, 0))
    row_with_largest(until, identity)
    row_with_largest(final, identity)
    row_with_largest(final, lambda length: last_block_offset(length, block_size))
    now = step_tokens(rows, step)
    (_, full), own = filling(rows, steps, block_size), {"steps": steps, "block_size": block_size}
    both = longest(now), longest(final)
    known = [
        cite("PRV-PEAK-1G", row=full, fewer_steps=steps, **own),
        *(cite("PRV-DEC-5", row=row, block_size=block_size) for row in both),
        *(
            cite("PRV-PEAK-1C", longest=length, longer=other, block_size=block_size)
            for length, other in permutations(both)
        ),
    ]
    tkv = max_tkv(now, block_size)
    return Statement(
        [step >= 1, step <= steps, tkv >= peak_until(rows, steps, block_size)],
        given,
        known,
        rows=rows,
    )


@_of_the_volume("PRV-ANY-6", bounds=f"{ANY}, every step", rules=["SPY-VOL-4"], is_step=True)
def earlier_steps_have_no_fewer_rows(lives: AnyLives, step: Number, steps: Number) -> Statement:
    """In an earlier step no fewer rows are alive."""
    rows = lives.rows
    claim = alive_count(rows, step) >= alive_count(rows, steps)
    return Statement(claim, [step <= steps], rows=rows)


def over_the_limit(lives: Rows, limit: Number, block_size: Number) -> Row:
    """A row at whose end the rule's number exceeds the limit, if there is one, as an instance."""
    return row_where_not(
        lives,
        lambda life: (
            select(life.steps > 0, peak_volume_until(lives, life.steps, block_size), 0) <= limit
        ),
    )


def exact_is_tight(batch: AnyBatch, limit: Positive, block_size: Positive, case: str) -> Statement:
    """If `exact` refuses a request, some step of the worst case exceeds the limit."""
    # The step in which the peak is attained of an end whose number is over the limit.
    lives = batch.lives
    given = [*batch.given, negate(is_admitted(batch, limit, block_size))]
    end = over_the_limit(lives, limit, block_size)
    step, any_lives = peak_step(lives, end.steps, block_size), AnyLives(lives)
    rows, peak = alive_count(lives, end.steps), peak_until(lives, end.steps, block_size)
    now = step_tokens(lives, step)
    more, tkv = alive_count(lives, step), max_tkv(now, block_size)
    known = [
        cite(f"PRV-ANY-5{case}", lives=any_lives, steps=end.steps, block_size=block_size),
        cite("PRV-ANY-6", lives=any_lives, step=step, steps=end.steps),
        cite("PRV-EXA-3", rows=rows, more=more, peak=peak, tkv=tkv),
        cite("PRV-DEF-1", batch=batch),
        cite("PRV-DEF-2", rows=more, tkv=tkv),
        cite_tkv(lives, step, block_size),
    ]
    return Statement(
        [step >= 1, step_volume(lives, step, block_size) > limit],
        given,
        known,
        rows=lives,
        words=("all",),
        opaque=[tkv, batch_tkv(now, block_size), peak],
    )


for _letter, _sizes in (("A", {"block_size": REAL_BLOCK}), ("B", {})):
    _blocks = f"block {REAL_BLOCK}" if _sizes else "every block size"
    _of_blocks = partial(_of_the_volume, bounds=f"{ANY}, every step, {_blocks}", **_sizes)
    _of_blocks(f"PRV-ANY-2{_letter}", is_step=True)(no_step_exceeds_the_peak)
    _of_blocks(f"PRV-ANY-3{_letter}", scenario=batch_scenario, case=_letter)(exact_is_sound)
    _of_blocks(f"PRV-ANY-5{_letter}", rules=["SPY-VOL-4"], is_step=True)(peak_is_attained)
    _of_blocks(f"PRV-ANY-7{_letter}", rules=["SPY-VOL-4"], case=_letter)(exact_is_tight)
