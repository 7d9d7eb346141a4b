"""Obligations about `peak_tkv`: it is the largest max-tkv of a batch over its steps.

Source: spyre, "Volumetric Constraint"; the formula is ours, of admission = exact.

How it holds for every batch size. Two rows stand for a batch (PRV-MON-1A), so no step exceeds the
peak of two of its rows (PRV-PEAK-1E), and the peak of a batch is that of some row with the longest
(PRV-PEAK-1F). It is attained where theirs is (PRV-PEAK-3B), as further rows never lower a max-tkv
(PRV-MON-1B).
"""

from collections.abc import Sequence
from functools import partial

from checks.proofs.registry import Integer, Positive, Statement, cite
from checks.proofs.spyre.rows import (
    LETTERS,
    block_size_choice,
    block_size_words,
    cite_layout,
    cite_width,
    fills_or_only_rises,
    fills_or_stays_in_its_block,
    is_full_in_its_last_full_step,
    is_full_no_later,
    is_no_wider,
    last_full_step,
    later,
    make_rows,
    max_tkv_lies_in_the_last_block,
    positive,
    without_one,
)
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, Truth, every, implies, maximum, negate, some
from spec.spyre.padding import batch_width_blocks, max_tkv, peak_tkv

EXACT = "admission=exact"
_of_the_rule = partial(obligation, where=EXACT, rules=["SPY-VOL-4"], is_step=True)
_of_a_row = partial(_of_the_rule, bounds="every row, every number of steps, every block size")


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
    known = [cite("PRV-PEAK-1A", row=row, step=step, steps=steps, block_size=block_size)]
    return Statement(fills_or_only_rises(*numbers), [step <= steps], known)


@_of_the_rule("PRV-PEAK-1C", bounds="every batch size (the longest row decides), every block size")
def shorter_batch_is_no_wider(longest: Positive, longer: Number, block_size: Positive) -> Statement:
    """A batch whose longest row is no longer is as wide, or at least a block narrower."""
    # Such are the batch at an earlier step, and the batch without a row.
    return Statement(is_no_wider([longest], [longer], block_size), [longest <= longer])


@_of_the_rule("PRV-PEAK-1D", bounds="every batch size, every block size")
def max_tkv_is_within_the_width(
    longest: Positive, furthest: Positive, block_size: Positive
) -> Statement:
    """Max-tkv lies in the last block of the batch (the longest and the furthest row stand for
    it).
    """
    batch = [longest, furthest]
    return Statement(max_tkv_lies_in_the_last_block(batch, block_size))


def _no_step_exceeds_the_peak(
    batch: Sequence[Number], step: Number, steps: Number, block_size: Number, *given: Truth
) -> Statement:
    """The statement that a step does not exceed the peak, with facts about its rows."""
    now, final = later(batch, step), later(batch, steps)
    own = {"step": step, "steps": steps, "block_size": block_size}
    return Statement(
        max_tkv(now, block_size) <= peak_tkv(batch, steps, block_size),
        given=[*positive(*batch, step), step <= steps, *given],
        known=[
            *(cite("PRV-PEAK-1B", row=row, **own) for row in batch),
            *cite_width(now, final, block_size),
            *cite_layout(now, block_size),
        ],
    )


@_of_a_row("PRV-PEAK-1E", bounds="every pair of rows, every number of steps, every block size")
def no_step_of_two_rows_exceeds_the_peak(
    longest: Number, row: Number, step: Number, steps: Number, block_size: Positive
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
    peak, *peaks = (peak_tkv(rows, steps, block_size) for rows in ([*batch, newcomer], batch, pair))
    final = later([*batch, newcomer], steps)
    return Statement(
        peak == maximum(*peaks),
        given=[longest >= row for row in (newcomer, *others)],
        known=cite_layout(final, block_size),
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


def _peak_is_an_upper_bound(
    integer: Integer, rows: int, step: Positive, steps: Number, block_size: Positive
) -> Statement:
    """Head-on for {rows} rows: no step exceeds the peak."""
    return _no_step_exceeds_the_peak(make_rows(integer, rows), step, steps, block_size)


def _peak_is_attained(
    integer: Integer, rows: int, steps: Positive, block_size: Positive
) -> Statement:
    """Head-on for {rows} rows: the peak is attained, in the last step or in the last one in which a
    row fills its block.
    """
    # There if the batch has its final width then, else in the last step.
    batch = make_rows(integer, rows)
    final = later(batch, steps)
    width, peak = batch_width_blocks(final, block_size), peak_tkv(batch, steps, block_size)
    known = cite_layout(final, block_size)
    wide, claims = [], []
    for row in batch:
        step = last_full_step(row, steps, block_size)
        now = later(batch, step)
        wide.append(every([step >= 1, batch_width_blocks(now, block_size) == width]))
        own = {"fewer_steps": steps, "steps": steps, "block_size": block_size}
        known.append(cite("PRV-PEAK-1G", row=row, **own))
        known += [*cite_width(now, final, block_size), *cite_layout(now, block_size)]
        attained = every([step <= steps, max_tkv(now, block_size) == peak])
        claims.append(implies(wide[-1], attained))
    claims.append(implies(negate(some(wide)), max_tkv(final, block_size) == peak))
    return Statement(claims, positive(*batch), known)


def _peak_of_less_is_no_higher(
    integer: Integer, rows: int, fewer_steps: Positive, steps: Number, block_size: Positive
) -> Statement:
    """Head-on for {rows} rows: with a row fewer or fewer steps the peak is no higher."""
    # All rows for fewer steps; all but one, any of them, for fewer steps or as many.
    batch = make_rows(integer, rows)
    smaller = [batch, *(without_one(batch) if rows > 1 else [])]
    peaks = [peak_tkv(some_rows, fewer_steps, block_size) for some_rows in smaller]
    final, earlier = later(batch, steps), later(batch, fewer_steps)
    known = [*cite_layout(final, block_size), *cite_layout(earlier, block_size)]
    for row in batch:
        own = {"row": row, "steps": steps, "block_size": block_size}
        known.append(cite("PRV-PEAK-1B", step=fewer_steps, **own))
        known.append(cite("PRV-PEAK-1G", fewer_steps=fewer_steps, **own))
    for some_rows in smaller:
        known += cite_width(later(some_rows, fewer_steps), final, block_size)
    peak = peak_tkv(batch, steps, block_size)
    return Statement(
        [lower <= peak for lower in peaks], [*positive(*batch), fewer_steps <= steps], known
    )


for _count, _letter in enumerate(LETTERS, start=1):
    for _number, _statement, _most in (
        (2, _peak_is_an_upper_bound, 4),
        (3, _peak_is_attained, 2),
        (4, _peak_of_less_is_no_higher, 2),
    ):
        _of_the_rule(
            f"PRV-PEAK-{_number}{_letter}",
            bounds=f"every batch of {_count} rows, every number of steps, "
            f"{block_size_words(_count, _most)}",
            rows=_count,
            **block_size_choice(_count, _most),
        )(_statement)
