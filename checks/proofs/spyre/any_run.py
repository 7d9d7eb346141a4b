"""Obligations about runs of any number of requests: no step of any run exceeds the limit.

The volume alone is not inductive: a batch within the limit now says nothing about its next step.
What every transition keeps is stronger: *no future step of the decode batch exceeds the limit, if
no request joins it*. The rows of the batch are any number of rows, each with the tokens that it has
and the decode steps that it may still have. What a transition does to them is one of four moves:

- they stay as they are, which keeps all that was true of them;
- some leave, which makes no future step larger (PRV-ANY-8);
- each decodes a token, so that the second of the future steps becomes the first (PRV-ANY-9), and
  the step's own volume was that of the first (PRV-ANY-10);
- a request joins that `exact` has admitted, which has looked at all future steps (PRV-ANY-11).

At the start there is no row, and no future step. A prefill step has the volume of one request,
which could be served alone (PRV-ANY-12). So by induction over the transitions no step of any run
exceeds the limit. The argument does not depend on the requests, their number, the size of a chunk,
the cache, the order of admission, or which requests leave or are preempted.

Which transition of the reference is which move stands in `checks.proofs.spyre.moves`; that it
does no more to the batch is compared, on every edge of small instances, before anything is proven.
"""

from functools import partial
from typing import Self

from attrs import frozen

from checks.proofs.any_rows import any_rows, where
from checks.proofs.registry import Integer, Natural, Positive, Statement, cite
from checks.proofs.spyre.any_batch import is_admitted
from checks.proofs.spyre.definitions import (
    ANY,
    AnyBatch,
    Lengths,
    alive_count,
    batch_scenario,
    batch_tkv,
    cite_tkv,
    look_at_the_largest,
    some_alive,
    step_tokens,
    step_volume,
)
from checks.proofs.spyre.moves import COVERED, of_every_run
from spec.core.arithmetic import Number, Truth, implies
from spec.core.rows import Rows, all_of, count_of, each_of
from spec.spyre.admission import Life
from spec.spyre.padding import max_tkv, volume

# --- the batch and its changes --------------------------------------------------------------------


@frozen
class Lasting:
    """A row: its tokens, the decode steps that it may still have, and 1 if it stays."""

    length: Number
    steps: Number
    stays: Number


@frozen
class Batch:
    """Any number of decoding rows, of which any may leave."""

    rows: Rows

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Rows with any such numbers."""
        return cls(any_rows(integer, "row", Lasting, ("length", "steps", "stays")))

    @property
    def given(self) -> list[Truth]:
        """Every row has a token."""
        return [all_of(self.rows, lambda row: row.length >= 1)]


def row_lives(rows: Rows) -> Rows:
    """The life of each row: its tokens and decode steps to come."""
    return each_of(rows, lambda row: Life(row.length, row.steps))


def those_that_stay(rows: Rows) -> Rows:
    """The rows without those that leave."""
    return where(rows, lambda row: row.stays == 1)


def after_a_token(rows: Rows) -> Rows:
    """The rows after a decode step."""
    return each_of(rows, lambda row: Life(row.length + 1, row.steps - 1))


def keeps_limit(lives: Rows, step: Number, limit: Number, block_size: Number) -> Truth:
    """True if rows x tkv of the future step `step` are within the limit, or no row lives then."""
    return implies(some_alive(lives, step), step_volume(lives, step, block_size) <= limit)


# --- the moves ------------------------------------------------------------------------------------

_of_the_volume = partial(of_every_run, where=f"admission=exact, {COVERED}", rules=["SPY-VOL-1"])
_EVERY_STEP = f"{ANY}, every limit, every future step, every block size"


@_of_the_volume("PRV-ANY-8", bounds=f"{_EVERY_STEP}; rows that leave")
def the_limit_stays_kept_when_rows_leave(
    batch: Batch, limit: Number, step: Positive, block_size: Positive
) -> Statement:
    """If no future step exceeds the limit, none does after some rows have left."""
    rows, stay = row_lives(batch.rows), row_lives(those_that_stay(batch.rows))
    kept = keeps_limit(rows, step, limit, block_size)
    claim = keeps_limit(stay, step, limit, block_size)
    for lives in (stay, rows):
        look_at_the_largest(step_tokens(lives, step), block_size)
    counts = [alive_count(lives, step) for lives in (stay, rows)]
    tkvs = [max_tkv(step_tokens(lives, step), block_size) for lives in (stay, rows)]
    known = [
        cite("PRV-EXA-3", rows=counts[0], more=counts[1], peak=tkvs[0], tkv=tkvs[1]),
        *(cite("PRV-DEF-2", rows=count, tkv=tkv) for count, tkv in zip(counts, tkvs, strict=True)),
        *(cite_tkv(lives, step, block_size) for lives in (stay, rows)),
    ]
    return Statement(claim, [*batch.given, kept], known, rows=batch.rows)


@_of_the_volume("PRV-ANY-9", bounds=f"{_EVERY_STEP}; what a decode step leaves")
def the_limit_stays_kept_in_a_decode_step(
    batch: Batch, limit: Number, step: Positive, block_size: Positive
) -> Statement:
    """If no future step exceeds the limit, none does after a decode step: the second of them has
    become the first.
    """
    before, after = row_lives(batch.rows), after_a_token(batch.rows)
    kept = keeps_limit(before, step + 1, limit, block_size)
    claim = keeps_limit(after, step, limit, block_size)
    look_at_the_largest(step_tokens(before, step + 1), block_size)
    look_at_the_largest(step_tokens(after, step), block_size)
    known = [cite_tkv(before, step + 1, block_size), cite_tkv(after, step, block_size)]
    return Statement(claim, [*batch.given, kept], known, rows=batch.rows)


@_of_the_volume("PRV-ANY-10", bounds=f"{ANY}, every limit, every block size; a decode step")
def the_next_step_is_the_first(batch: Batch, limit: Number, block_size: Positive) -> Statement:
    """If no future step exceeds the limit, a decode step of all rows does not."""
    # Every row of a batch has a token to come: otherwise it has left.
    lives = row_lives(batch.rows)
    given = [*batch.given, all_of(lives, lambda life: life.steps >= 1), some_alive(lives, 1)]
    rows, now = count_of(lives, lambda _: True), each_of(lives, lambda life: life.length + 1)
    look_at_the_largest(step_tokens(lives, 1), block_size)
    look_at_the_largest(now, block_size)
    kept = keeps_limit(lives, 1, limit, block_size)
    load = rows * batch_tkv(now, block_size)
    known = [
        cite_tkv(lives, 1, block_size),
        cite("PRV-DEF-4", lengths=Lengths(now), block_size=block_size),
    ]
    return Statement(load <= limit, [*given, kept], known, rows=batch.rows, is_congruent=True)


@_of_the_volume(
    "PRV-ANY-11",
    bounds=f"{_EVERY_STEP}; a request that joins",
    rules=["SPY-VOL-1", "SPY-VOL-4"],
    scenario=batch_scenario,
)
def the_limit_stays_kept_when_a_request_joins(
    batch: AnyBatch, limit: Positive, step: Positive, block_size: Positive
) -> Statement:
    """If `exact` admits a request, no future step of the batch that it joins exceeds the limit."""
    lives = batch.lives
    claim = keeps_limit(lives, step, limit, block_size)
    given = [*batch.given, is_admitted(batch, limit, block_size)]
    known = [cite("PRV-ANY-3B", batch=batch, limit=limit, step=step, block_size=block_size)]
    opaque = [step_volume(lives, step, block_size)]
    return Statement(claim, given, known, rows=lives, opaque=opaque)


@_of_the_volume("PRV-ANY-12", bounds="every prompt, output and limit; a prefill step")
def a_prefill_step_is_one_request(
    prompt_len: Positive, max_tokens: Number, generated: Natural, limit: Number
) -> Statement:
    """A prefill step has the volume of one request that could be served alone, also if it computes
    again what it had generated before it was preempted.
    """
    alone = prompt_len + max_tokens - 1 <= limit
    load = volume(1, prompt_len + generated)
    known = cite("PRV-DEF-2", rows=1, tkv=prompt_len + generated)
    return Statement(load <= limit, [alone, generated < max_tokens], [known])
