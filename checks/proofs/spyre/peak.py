"""Obligations about `peak_tkv`: it is the largest max-tkv of a batch over its steps.

Source: spyre, "Volumetric Constraint"; the formula is ours, of admission = exact.

How it holds for every batch size. Two rows stand for a batch (PRV-MON-1A), so no step exceeds the
peak of two of its rows (PRV-PEAK-1E), and the peak of a batch is that of some row with the longest
(PRV-PEAK-1F). It is attained where theirs is (PRV-PEAK-3B), as further rows never lower a max-tkv
(PRV-MON-1B).
"""

from collections.abc import Sequence
from functools import partial

from checks.proofs.registry import Integer, Positive, Statement
from checks.proofs.spyre.rows import (
    block_size_for,
    block_sizes_for,
    fills_or_only_rises,
    fills_or_stays_in_its_block,
    is_full_in_its_last_full_step,
    is_full_no_later,
    is_no_wider,
    last_full_step,
    later,
    longest_fits,
    max_tkv_lies_in_the_last_block,
    positive,
    rows_of,
    without_one,
)
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, Truth, every, implies, maximum, negate, some
from spec.core.blocks import block_count
from spec.spyre.padding import batch_width_blocks, max_tkv, peak_tkv

_of_a_row = partial(
    obligation, bounds="every row, every number of steps, every block size", rules=["SPY-VOL-4"]
)
_of_any_batch = partial(obligation, rules=["SPY-VOL-4", "SPY-VOL-1"])


@_of_a_row("PRV-PEAK-1A")
def row_fills_a_block_or_stays_in_it(
    row: Positive, step: Positive, steps: Number, block_size: Positive
) -> Statement:
    """Until the last step a row fills a block, or it gets no new one."""
    # A new block begins behind a full one.
    return Statement(fills_or_stays_in_its_block(row, step, steps, block_size), [step <= steps])


@_of_a_row("PRV-PEAK-1B")
def row_fills_a_block_or_only_rises(
    row: Positive, step: Positive, steps: Number, block_size: Positive
) -> Statement:
    """Until the last step a row fills a block, or it reaches no further into its block than in the
    last step.
    """
    # An offset falls only behind a full block.
    numbers = row, step, steps, block_size
    known = [fills_or_stays_in_its_block(*numbers)]  # PRV-PEAK-1A
    return Statement(fills_or_only_rises(*numbers), [step <= steps], known)


@_of_any_batch("PRV-PEAK-1C", bounds="every batch size (the longest row decides), every block size")
def shorter_batch_is_no_wider(longest: Positive, longer: Number, block_size: Positive) -> Statement:
    """A batch whose longest row is no longer is as wide, or at least a block narrower."""
    # Such are the batch at an earlier step, and the batch without a row.
    return Statement(is_no_wider([longest], [longer], block_size), [longest <= longer])


@_of_any_batch("PRV-PEAK-1D", bounds="every batch size, every block size")
def max_tkv_is_within_the_width(
    longest: Number, furthest: Positive, block_size: Positive
) -> Statement:
    """Max-tkv lies in the last block of the batch (the longest and the furthest row stand for
    it).
    """
    batch = [longest, furthest]
    return Statement(max_tkv_lies_in_the_last_block(batch, block_size), [longest >= furthest])


def _no_step_exceeds_the_peak(
    batch: Sequence[Number], step: Number, steps: Number, block_size: Number, *given: Truth
) -> Statement:
    """What is known of the rows at a step, and that the step does not exceed the peak."""
    now, final = later(batch, step), later(batch, steps)
    return Statement(
        max_tkv(now, block_size) <= peak_tkv(batch, steps, block_size),
        given=[*positive(block_size, *batch, step), step <= steps, *given],
        known=[
            *(fills_or_only_rises(row, step, steps, block_size) for row in batch),  # 1B
            is_no_wider(now, final, block_size),  # 1C
            *(max_tkv_lies_in_the_last_block(one, block_size) for one in (now, final)),  # 1D
            longest_fits(now, block_size),
        ],
    )


@_of_a_row("PRV-PEAK-1E", bounds="every pair of rows, every number of steps, every block size")
def no_step_of_two_rows_exceeds_the_peak(
    longest: Number, row: Number, step: Number, steps: Number, block_size: Number
) -> Statement:
    """No step of the longest row and another exceeds their peak (put together from 1B to 1D)."""
    # So no row of any batch does, next to the batch's longest.
    return _no_step_exceeds_the_peak([longest, row], step, steps, block_size, longest >= row)


@_of_a_row("PRV-PEAK-1F", bounds="every batch size, every number of steps, every block size")
def peak_is_that_of_some_row_with_the_longest(
    longest: Number,
    newcomer: Positive,
    furthest: Positive,
    filling: Positive,
    steps: Positive,
    block_size: Positive,
) -> Statement:
    """With one more row the peak of a batch is what it was, or that row's with the longest if it is
    higher (step of the induction over the rows).
    """
    # Three rows stand for the batch so far: longest, furthest, and one that fills its block.
    others = [furthest, filling]
    batch, pair = [longest, *others], [longest, newcomer]
    everyone = [*batch, newcomer]
    joint, *apart = (max_tkv(later(one, steps), block_size) for one in (everyone, batch, pair))
    peak, *peaks = (peak_tkv(one, steps, block_size) for one in (everyone, batch, pair))
    return Statement(
        peak == maximum(*peaks),
        given=[longest >= row for row in (newcomer, *others)],
        known=[
            joint == maximum(*apart),  # PRV-DEC-7C
            *(
                batch_width_blocks(later(one, steps), block_size)
                == block_count(longest + steps, block_size)
                for one in (everyone, batch, pair)
            ),
            max_tkv_lies_in_the_last_block(later(batch, steps), block_size),  # 1D
            max_tkv_lies_in_the_last_block(later(pair, steps), block_size),
        ],
    )


@_of_a_row("PRV-PEAK-1G")
def last_full_step_is_the_last(
    row: Positive, fewer_steps: Positive, steps: Number, block_size: Positive
) -> Statement:
    """The last step in which a row fills its block is one of the steps or none, the row is full in
    it, and with more steps it is no earlier.
    """
    # It is the step at which the peak is attained if it is the full width.
    return Statement(
        [
            is_full_in_its_last_full_step(row, steps, block_size),
            is_full_no_later(row, fewer_steps, steps, block_size),
        ],
        given=[fewer_steps <= steps],
    )


# --- head-on, without the argument for every batch size ------------------------------------------


def _peak_is_an_upper_bound(integer: Integer, rows: int) -> Statement:
    """Head-on for {rows} rows: no step exceeds the peak."""
    batch, step, steps = rows_of(integer, rows), integer("step"), integer("steps")
    return _no_step_exceeds_the_peak(batch, step, steps, block_size_for(integer, rows))


def _peak_is_attained(integer: Integer, rows: int) -> Statement:
    """Head-on for {rows} rows: the peak is attained, in the last step or in the last one in which a
    row fills its block.
    """
    # There if the batch has its final width then, else in the last step.
    batch, steps = rows_of(integer, rows), integer("steps")
    block_size, final = block_size_for(integer, rows), later(batch, steps)
    width, peak = batch_width_blocks(final, block_size), peak_tkv(batch, steps, block_size)
    known = [max_tkv_lies_in_the_last_block(final, block_size)]
    wide, claims = [], []
    for row in batch:
        step = last_full_step(row, steps, block_size)
        now = later(batch, step)
        wide.append(every([step >= 1, batch_width_blocks(now, block_size) == width]))
        known.append(is_full_in_its_last_full_step(row, steps, block_size))
        known.append(implies(step >= 1, _facts_of_an_earlier_step(now, final, block_size)))
        attained = every([step <= steps, max_tkv(now, block_size) == peak])
        claims.append(implies(wide[-1], attained))
    claims.append(implies(negate(some(wide)), max_tkv(final, block_size) == peak))
    return Statement(claims, given=positive(block_size, *batch, steps), known=known)


def _facts_of_an_earlier_step(
    now: Sequence[Number], final: Sequence[Number], block_size: Number
) -> Truth:
    """PRV-PEAK-1C, 1D and PRV-DEC-5."""
    return every(
        [
            is_no_wider(now, final, block_size),
            max_tkv_lies_in_the_last_block(now, block_size),
            longest_fits(now, block_size),
        ]
    )


def _peak_of_less_is_no_higher(integer: Integer, rows: int) -> Statement:
    """Head-on for {rows} rows: with a row fewer or fewer steps the peak is no higher."""
    # All rows for fewer steps; all but one, any of them, for fewer steps or as many.
    batch, fewer, steps = rows_of(integer, rows), integer("fewer_steps"), integer("steps")
    block_size, final = block_size_for(integer, rows), later(batch, steps)
    smaller = [list(batch), *(without_one(batch) if rows > 1 else [])]
    peaks = [peak_tkv(some_rows, fewer, block_size) for some_rows in smaller]
    known = [max_tkv_lies_in_the_last_block(final, block_size)]
    for row in batch:
        known.append(fills_or_only_rises(row, fewer, steps, block_size))
        known.append(is_full_no_later(row, fewer, steps, block_size))
    earlier = [later(some_rows, fewer) for some_rows in smaller]
    known += [_facts_of_an_earlier_step(one, final, block_size) for one in earlier]
    peak = peak_tkv(batch, steps, block_size)
    return Statement(
        [one <= peak for one in peaks],
        given=[*positive(block_size, *batch, fewer), fewer <= steps],
        known=known,
    )


for _letter, _count in (("A", 1), ("B", 2), ("C", 3), ("D", 4)):
    _of_rows = partial(
        obligation,
        bounds=f"every batch of {_count} rows, every number of steps, {block_sizes_for(_count)}",
        rows=_count,
    )
    _of_rows(f"PRV-PEAK-2{_letter}", rules=["SPY-VOL-4"])(_peak_is_an_upper_bound)
    _of_rows(f"PRV-PEAK-3{_letter}", rules=["SPY-VOL-4"])(_peak_is_attained)
    _of_rows(f"PRV-PEAK-4{_letter}", rules=["SPY-VOL-1", "SPY-VOL-4"])(_peak_of_less_is_no_higher)
