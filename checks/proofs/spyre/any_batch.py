"""Obligations about admission = exact for every batch size at once, in the solver.

The rows are any number of rows; the formulas that the machine runs are run on them as they are
(`checks.proofs.any_rows`). Taken for granted are two things that are true of any finite number of
rows: the largest number is that of some row and none is larger, and a count is no larger than
another unless some row is counted in the one and not in the other.

1. In a step as many rows are alive as at the first end from there on (PRV-ANY-1), and its max-tkv
   is at most the peak of the rows that the rule makes of that end (PRV-ANY-2).
2. So its volume is at most the number that the rule compares with the limit: `exact` is sound
   (PRV-ANY-3). That a step has rows and tokens at all is PRV-ANY-4.
"""

from functools import partial
from typing import Self

from attrs import frozen

from checks.proofs.any_rows import any_rows, row_where_not, row_with_largest, where
from checks.proofs.registry import Integer, Positive, Statement, cite
from checks.proofs.spyre.rows import REAL_BLOCK
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, Truth, negate
from spec.core.rows import Row, Rows, all_of, any_of, count_of, each_of
from spec.spyre.admission import (
    Life,
    Member,
    decode_lives,
    exact_volume_holds,
    rows_until,
)
from spec.spyre.padding import (
    last_block_offset,
    longest,
    max_tkv,
    peak_tkv,
    volume,
)

# --- words of the claims --------------------------------------------------------------------------


@frozen
class AnyLives:
    """Any number of rows, each by its tokens and the decode steps that it has to come."""

    rows: Rows

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Rows with any such numbers."""
        return cls(any_rows(integer, "row", Life, ("length", "steps")))


def have_tokens(lives: Rows) -> Truth:
    """Every row has a token."""
    return all_of(lives, lambda life: life.length >= 1)


def alive_in(lives: Rows, step: Number) -> Rows:
    """The rows that decode in this step."""
    return where(lives, lambda life: life.steps >= step)


def some_alive(lives: Rows, step: Number) -> Truth:
    """Some row decodes in this step; it is looked at."""
    row_where_not(lives, lambda life: negate(life.steps >= step))
    return any_of(lives, lambda life: life.steps >= step)


def alive_count(lives: Rows, step: Number) -> Number:
    """How many rows decode in this step."""
    return count_of(lives, lambda life: life.steps >= step)


def tokens_in(lives: Rows, step: Number) -> Rows:
    """The tokens of the rows that decode in this step, the step's own included."""
    return each_of(alive_in(lives, step), lambda life: life.length + step)


def volume_in(lives: Rows, step: Number, block_size: Number) -> Number:
    """Volume of a step of the worst case, by the rows that decode in it."""
    return volume(alive_count(lives, step), max_tkv(tokens_in(lives, step), block_size))


def first_end(lives: Rows, step: Number) -> Row:
    """Of the rows that decode in this step one that ends first; it is looked at."""
    return row_with_largest(alive_in(lives, step), lambda life: -life.steps)


def peak_until(lives: Rows, steps: Number, block_size: Number) -> Number:
    """The peak that the rule makes of an end."""
    return peak_tkv(rows_until(lives, steps), steps, block_size)


def identity(number: Number) -> Number:
    """The number itself."""
    return number


# --- sound ----------------------------------------------------------------------------------------

_of_the_volume = partial(obligation, rules=["SPY-VOL-1", "SPY-VOL-4"])
ANY = "every batch size, every length"


@_of_the_volume("PRV-ANY-1", bounds=f"{ANY}, every step")
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
    end, now = first_end(rows, step), tokens_in(rows, step)
    alive, until = alive_in(rows, step), rows_until(rows, end.steps)
    final = each_of(until, lambda length: length + end.steps)
    # The longest and the furthest row of the step, and the longest of those until the end.
    looked_at = [
        row_with_largest(alive, lambda life: life.length + step),
        row_with_largest(alive, lambda life: last_block_offset(life.length + step, block_size)),
    ]
    row_with_largest(until, identity)
    row_with_largest(final, identity)
    known = [
        cite("PRV-PEAK-1B", row=row.length, step=step, steps=end.steps, block_size=block_size)
        for row in looked_at
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


@frozen
class AnyBatch:
    """Any number of decoding requests, and the candidate that asks to join them."""

    decoding: Rows
    candidate: Member

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Requests with any such numbers."""
        decoding = any_rows(integer, "request", Member, ("tokens", "remaining"))
        return cls(decoding, Member(integer("prompt_len"), integer("max_tokens")))

    @property
    def given(self) -> list[Truth]:
        """Each has a token, the candidate's prompt too."""
        tokens = all_of(self.decoding, lambda member: member.length >= 1)
        return [tokens, self.candidate.length >= 1]

    @property
    def lives(self) -> Rows:
        """What each has to come, as the rule sees it."""
        return decode_lives(self.decoding, self.candidate)

    def is_admitted(self, limit: Number, block_size: Number) -> Truth:
        """The rule admits the candidate."""
        return exact_volume_holds(self.decoding, self.candidate, limit, block_size)


def exact_is_sound(
    batch: AnyBatch, limit: Positive, step: Positive, block_size: Positive
) -> Statement:
    """If `exact` admits a request, no step of the worst case exceeds the limit."""
    # Where no row is alive any more there is no step.
    lives = batch.lives
    given = [*batch.given, batch.is_admitted(limit, block_size), some_alive(lives, step)]
    end = first_end(lives, step)
    rows, tkv = alive_count(lives, step), max_tkv(tokens_in(lives, step), block_size)
    lived, peak = alive_count(lives, end.steps), peak_until(lives, end.steps, block_size)
    any_lives = AnyLives(lives)
    known = [
        cite("PRV-ANY-1", lives=any_lives, step=step),
        cite("PRV-ANY-2", lives=any_lives, step=step, block_size=block_size),
        cite("PRV-ANY-4", lives=any_lives, step=step, block_size=block_size),
        cite("PRV-EXA-3", rows=rows, more=lived, peak=tkv, tkv=peak),
    ]
    return Statement(
        volume_in(lives, step, block_size) <= limit, given, known, rows=lives, words=("all",)
    )


@_of_the_volume("PRV-ANY-4", bounds=f"{ANY}, every step")
def a_step_has_rows_and_tokens(lives: AnyLives, step: Positive, block_size: Positive) -> Statement:
    """A step in which some row is alive has a row or more, and a max-tkv of one or more."""
    rows = lives.rows
    given = [have_tokens(rows), some_alive(rows, step)]
    now = tokens_in(rows, step)
    row_with_largest(now, identity)
    row_with_largest(now, lambda length: last_block_offset(length, block_size))
    known = [cite("PRV-DEC-5", row=longest(now), block_size=block_size)]
    return Statement(
        [alive_count(rows, step) >= 1, max_tkv(now, block_size) >= 1], given, known, rows=rows
    )


_of_a_step = partial(
    _of_the_volume, bounds=f"{ANY}, every step, block {REAL_BLOCK}", block_size=REAL_BLOCK
)
_of_a_step("PRV-ANY-2")(no_step_exceeds_the_peak)
_of_a_step("PRV-ANY-3")(exact_is_sound)
