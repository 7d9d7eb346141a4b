"""The worst case of a batch by definition, and obligations that the formulas equal it.

A headline statement (`exact` is sound, tight, kept by every move) is written with the definitions
here, never with the formulas that it judges. That a formula equals its definition is an obligation
of its own, which the statement cites. All that they share are the words of arithmetic and of rows,
which are compared on numbers and lists (`checks.proofs.words`).
"""

from functools import partial
from typing import Self

from attrs import frozen

from checks.proofs.any_rows import any_rows, are_same, row_where_not, row_with_largest, where
from checks.proofs.registry import Fact, Integer, Numbers, Positive, Statement, cite
from checks.proofs.spyre import worst_case
from checks.proofs.spyre.rows import REAL_BLOCK
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, Truth, cdiv, negate
from spec.core.requests import Request
from spec.core.rows import Rows, all_of, any_of, count_of, each_of, largest_of, with_row
from spec.spyre.admission import Life, Member, decode_lives
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import (
    batch_width_blocks,
    last_block_offset,
    max_tkv,
    row_left_padding,
    row_tkv,
    volume,
)

ANY = "every batch size, every length"

# --- rows and their lives -------------------------------------------------------------------------


@frozen
class AnyLives:
    """Any number of rows, each by its tokens and the decode steps that it has to come."""

    rows: Rows

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Rows with any such numbers."""
        return cls(any_rows(integer, "row", Life, ("length", "steps")))


@frozen
class Lengths:
    """Any number of rows, each by its tokens."""

    rows: Rows

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Rows with any such numbers."""
        return cls(any_rows(integer, "row", lambda tokens: tokens, ("tokens",)))


def row_lives(decoding: Rows, candidate: Member) -> Rows:
    """The life of each row, the candidate last: its tokens, and a decode step for each token that
    it may still generate, except the token from the candidate's last chunk.
    """
    lives = each_of(decoding, lambda member: Life(member.length, member.remaining))
    return with_row(lives, Life(candidate.length, candidate.remaining - 1))


def have_tokens(lives: Rows) -> Truth:
    """Every row has a token."""
    return all_of(lives, lambda life: life.length >= 1)


def alive_rows(lives: Rows, step: Number) -> Rows:
    """The rows that decode in this step."""
    return where(lives, lambda life: life.steps >= step)


def some_alive(lives: Rows, step: Number) -> Truth:
    """True if some row decodes in this step; it becomes an instance."""
    row_where_not(lives, lambda life: negate(life.steps >= step))
    return any_of(lives, lambda life: life.steps >= step)


def alive_count(lives: Rows, step: Number) -> Number:
    """The number of rows that decode in this step."""
    return count_of(lives, lambda life: life.steps >= step)


def step_tokens(lives: Rows, step: Number) -> Rows:
    """The tokens of the rows that decode in this step, the step's own included."""
    return each_of(alive_rows(lives, step), lambda life: life.length + step)


# --- the batch of a step --------------------------------------------------------------------------


def batch_width(lengths: Rows, block_size: Number) -> Number:
    """Blocks of every row of a batch: as many as any row's tokens fill, a part of one counted."""
    return largest_of(lengths, lambda length: cdiv(length, block_size))


def padded_row(length: Number, width: Number, block_size: Number) -> Number:
    """Tokens of a row with the blocks of padding that make it as wide as the batch."""
    return width * block_size - cdiv(length, block_size) * block_size + length


def batch_tkv(lengths: Rows, block_size: Number) -> Number:
    """The most tokens of a row of the batch, its padding included."""
    width = batch_width(lengths, block_size)
    return largest_of(lengths, lambda length: padded_row(length, width, block_size))


def step_volume(lives: Rows, step: Number, block_size: Number) -> Number:
    """Rows that decode in a step of the worst case, times the tkv of that batch."""
    return alive_count(lives, step) * batch_tkv(step_tokens(lives, step), block_size)


def look_at_the_largest(lengths: Rows, block_size: Number) -> None:
    """Instantiate the longest row and the one that reaches furthest into its last block."""
    row_with_largest(lengths, lambda length: length)
    row_with_largest(lengths, lambda length: last_block_offset(length, block_size))


# --- the formulas equal the definitions -----------------------------------------------------------

_of_the_volume = partial(obligation, where="admission=exact", rules=["SPY-VOL-1", "SPY-VOL-4"])


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
        """What each has to come, by definition."""
        return row_lives(self.decoding, self.candidate)


def batch_scenario(numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
    """The requests of a batch at the moment when the candidate's last chunk is next.

    Without interleaving all prompts come first: a request has a token from its last chunk then.
    """
    rows = range(numbers["request_rows"])
    sizes = [
        (numbers[f"request_{row}_tokens"], numbers[f"request_{row}_remaining"] + 1) for row in rows
    ]
    candidate = numbers["prompt_len"], numbers["max_tokens"]
    block = numbers.get("block_size", REAL_BLOCK)
    limit = {"max_batch_tkv_limit": numbers["limit"], "interleave": False}
    return worst_case.batch_scenario(*sizes, candidate, block_size=block, **limit)


@_of_the_volume("PRV-DEF-1", bounds=ANY, is_step=True)
def lives_are_those_of_the_definition(batch: AnyBatch) -> Statement:
    """The lives that the rule looks at are each row's tokens and all decode steps that it may have,
    the candidate's among them.
    """
    lives = decode_lives(batch.decoding, batch.candidate)
    return Statement(are_same(lives, batch.lives), rows=batch.decoding)


@obligation("PRV-DEF-2", bounds="every batch size, every tkv", rules=["SPY-VOL-1"], is_step=True)
def volume_is_rows_times_tkv(rows: Number, tkv: Number) -> Statement:
    """The volume of a step is its rows times its tkv."""
    return Statement(volume(rows, tkv) == rows * tkv)


def _has_rows(lengths: Rows) -> Truth:
    """True if there is a row; it becomes an instance."""
    row_where_not(lengths, lambda _: False)
    return any_of(lengths, lambda _: True)


@obligation("PRV-DEF-3", bounds=f"{ANY}, every block size", rules=["SPY-DEC-2"], is_step=True)
def width_is_that_of_the_widest_row(lengths: Lengths, block_size: Positive) -> Statement:
    """A batch is as wide as the row that fills the most blocks."""
    rows = lengths.rows
    given = [_has_rows(rows)]
    longest = row_with_largest(rows, lambda length: length)
    widest = row_with_largest(rows, lambda length: cdiv(length, block_size))
    known = cite("PRV-PEAK-1C", longest=widest, longer=longest, block_size=block_size)
    claim = batch_width_blocks(rows, block_size) == batch_width(rows, block_size)
    return Statement(claim, [*given, all_of(rows, lambda length: length >= 1)], [known], rows=rows)


@obligation("PRV-DEF-4", bounds=f"{ANY}, every block size", rules=["SPY-TKV-2"])
def max_tkv_is_that_of_the_widest_padded_row(lengths: Lengths, block_size: Positive) -> Statement:
    """The max-tkv of a batch is the most tokens of a row, the padding counted that makes it as wide
    as the batch.
    """
    rows = lengths.rows
    given = [_has_rows(rows), all_of(rows, lambda length: length >= 1)]
    width = batch_width(rows, block_size)
    look_at_the_largest(rows, block_size)
    row_with_largest(rows, lambda length: padded_row(length, width, block_size))
    known = cite("PRV-DEF-3", lengths=lengths, block_size=block_size)
    return Statement(
        max_tkv(rows, block_size) == batch_tkv(rows, block_size), given, [known], rows=rows
    )


@obligation("PRV-DEF-5", bounds="every row, width and block size", rules=["SPY-TKV-1"])
def a_padded_row_is_as_wide_as_the_batch(
    length: Positive, width: Positive, block_size: Positive
) -> Statement:
    """The tkv of a row is its tokens and the padding that makes it as wide as the batch."""
    padding = row_left_padding(length, width, block_size)
    return Statement(row_tkv(length, padding) == padded_row(length, width, block_size))


def cite_tkv(lives: Rows, step: Number, block_size: Number) -> Fact:
    """The tkv of a step of the worst case is the formula's (PRV-DEF-4)."""
    lengths = Lengths(step_tokens(lives, step))
    return cite("PRV-DEF-4", lengths=lengths, block_size=block_size)
