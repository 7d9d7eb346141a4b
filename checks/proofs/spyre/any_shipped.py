"""Obligations about runs of any number of requests under `shipped`, with interleaving.

What every transition keeps is what it keeps under `exact` (`checks.proofs.spyre.any_run`): no
future step of the decode batch exceeds the limit. The moves are the same; only which may join is
decided otherwise, by a projection from the tkv of the step before.

1. With interleaving a decode step comes before every last chunk while requests decode. What it
   returned is at least the max-tkv of the rows that are left of it (PRV-ANS-1).
2. Then every row is projected at least the max-tkv of each step that it takes part in beside the
   candidate (PRV-ANS-2, 3).
3. Of the rows alive in a step with the candidate one is projected least. All others alive are
   projected as much or more, so the check at its end covers the step (PRV-ANS-4, 5). A step without
   the candidate is one of the batch as it was (PRV-ANS-6).

So a request that is admitted keeps the batch within the limit, and no row is ever paused for it
(SPY-PAU-6). Without interleaving the step before may have been another request's prefill:
PRV-SHP-4.
"""

from functools import partial
from typing import NamedTuple, Self

from attrs import frozen

from checks.proofs.any_rows import any_rows, look_at_counted, row_where_not, row_with_largest, where
from checks.proofs.registry import Integer, Positive, Statement, cite
from checks.proofs.spyre.any_run import Batch, keeps_limit, row_lives, those_that_stay
from checks.proofs.spyre.definitions import (
    ANY,
    AnyBatch,
    AnyLives,
    alive_count,
    batch_tkv,
    cite_tkv,
    look_at_the_largest,
    some_alive,
    step_tokens,
    step_volume,
)
from checks.proofs.spyre.moves import COVERED, of_every_run
from spec.core.arithmetic import Number, Truth, implies, maximum
from spec.core.blocks import block_count
from spec.core.rows import Rows, all_of, any_of, count_of, each_of, with_row
from spec.spyre.admission import (
    Life,
    Member,
    projected_volumes,
    shipped_candidate_future,
    shipped_row_futures,
    shipped_volume_holds,
)
from spec.spyre.padding import last_block_offset, max_tkv

_of_the_projection = partial(
    of_every_run,
    where=f"admission=shipped, interleave=true, {COVERED}",
    rules=["SPY-VOL-1"],
    is_step=True,
)
_STEPS = "every future step, every block size"
_of_every_step = partial(_of_the_projection, bounds=f"{ANY}, {_STEPS}")
_of_every_limit = partial(_of_the_projection, bounds=f"{ANY}, every limit, {_STEPS}")

# --- the tkv of the step before -------------------------------------------------------------------


@_of_the_projection("PRV-ANS-1", bounds=f"{ANY}, every block size")
def rows_that_leave_lower_the_tkv(batch: Batch, block_size: Positive) -> Statement:
    """The max-tkv of some rows is no larger than that of all, which the step before returned."""
    stay, lengths = (
        each_of(rows, lambda row: row.length) for rows in (those_that_stay(batch.rows), batch.rows)
    )
    for rows in (stay, lengths):
        row_with_largest(rows, lambda length: length)
        row_with_largest(rows, lambda length: last_block_offset(length, block_size))
    some = any_of(batch.rows, lambda row: row.stays == 1)
    row_where_not(batch.rows, lambda row: row.stays != 1)
    return Statement(
        max_tkv(stay, block_size) <= max_tkv(lengths, block_size),
        [*batch.given, some],
        rows=batch.rows,
    )


def lives_of_members(decoding: Rows) -> Rows:
    """The life of each decoding request: its tokens and decode steps to come."""
    return each_of(decoding, lambda member: Life(member.length, member.remaining))


def is_that_of_the_batch(decoding: Rows, last_tkv: Number, block_size: Number) -> Truth:
    """True if the rule gets the tkv of a step of at least these rows."""
    some = any_of(decoding, lambda _: True)
    lengths = each_of(decoding, lambda member: member.length)
    return implies(some, last_tkv >= max_tkv(lengths, block_size))


# --- what is projected ----------------------------------------------------------------------------


@_of_the_projection("PRV-ANS-2", bounds="every length, every step, every block size")
def projection_covers_the_longest(
    longest: Positive,
    furthest: Positive,
    remaining: Number,
    candidate: Member,
    last_tkv: Number,
    step: Positive,
    block_size: Positive,
) -> Statement:
    """From a tkv that is at least the longest row, each request is projected at least the width of
    every step that it takes part in.
    """
    # The longest row, or the candidate if it is longer; the offset is that of any row.
    (row,) = shipped_row_futures([Member(longest, remaining)], candidate, block_size, last_tkv)
    own = shipped_candidate_future(candidate, block_size, last_tkv)
    width = block_count(longest + step, block_size)
    tkv = (width - 1) * block_size + last_block_offset(furthest + step, block_size)
    return Statement(
        [
            implies(step <= remaining, tkv <= row),
            implies(step <= candidate.remaining - 1, tkv <= own),
        ],
        [longest <= maximum(last_tkv, candidate.length)],
    )


class Projected(NamedTuple):
    """The life of a row, and the greatest tkv that it is projected to reach."""

    length: Number
    steps: Number
    future: Number


def covers_step(joined: Rows, step: Number, block_size: Number) -> Truth:
    """True if each row alive in the step is projected at least the step's max-tkv."""
    tkv = max_tkv(step_tokens(row_lives(joined), step), block_size)
    alive = where(joined, lambda row: row.steps >= step)
    return all_of(alive, lambda row: row.future >= tkv)


def projected(batch: AnyBatch, last_tkv: Number, block_size: Number) -> tuple[Rows, Projected]:
    """Every row, and the candidate, each with the tkv that the release projects."""
    candidate = batch.candidate

    def row(member: Member) -> Projected:
        (future,) = shipped_row_futures([member], candidate, block_size, last_tkv)
        return Projected(member.length, member.remaining, future)

    own = shipped_candidate_future(candidate, block_size, last_tkv)
    return each_of(batch.decoding, row), Projected(candidate.length, candidate.remaining - 1, own)


def _beside_the_candidate(
    batch: AnyBatch, step: Number, last_tkv: Number, block_size: Number
) -> list[Truth]:
    """The candidate takes part in the step, and the rule is given the tkv of the batch."""
    of_batch = is_that_of_the_batch(batch.decoding, last_tkv, block_size)
    return [*batch.given, step <= batch.candidate.remaining - 1, of_batch]


@_of_every_step("PRV-ANS-3")
def projection_covers_every_step(
    batch: AnyBatch, step: Positive, last_tkv: Number, block_size: Positive
) -> Statement:
    """From the tkv of the batch, each request is projected at least the max-tkv of every step that
    it takes part in beside the candidate.
    """
    joined = with_row(*projected(batch, last_tkv, block_size))
    now = step_tokens(row_lives(joined), step)
    lengths = each_of(batch.decoding, lambda member: member.length)
    widest, furthest, *_ = (
        row_with_largest(rows, number)
        for rows in (now, lengths)
        for number in (lambda length: length, lambda length: last_block_offset(length, block_size))
    )
    tkv = max_tkv(now, block_size)
    short = row_where_not(
        where(joined, lambda row: row.steps >= step), lambda row: row.future >= tkv
    )
    known = cite(
        "PRV-ANS-2",
        longest=widest - step,
        furthest=furthest - step,
        remaining=short.steps,
        candidate=batch.candidate,
        last_tkv=last_tkv,
        step=step,
        block_size=block_size,
    )
    given = _beside_the_candidate(batch, step, last_tkv, block_size)
    return Statement(
        covers_step(joined, step, block_size),
        given,
        [known],
        rows=batch.decoding,
        is_congruent=True,
    )


# --- what is compared with the limit --------------------------------------------------------------


@frozen
class Projection:
    """Any number of rows and a candidate, each with any projected tkv."""

    rows: Rows
    candidate: Projected

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Rows with any such numbers."""
        names = ("length", "steps", "future")
        candidate = Projected(*(integer(f"candidate_{name}") for name in names))
        return cls(any_rows(integer, "row", Projected, names), candidate)

    @property
    def joined(self) -> Rows:
        """The rows and the candidate."""
        return with_row(self.rows, self.candidate)


def projected_volumes_hold(projection: Projection, limit: Number) -> Truth:
    """True if no projected volume exceeds the limit."""
    futures = each_of(projection.rows, lambda row: row.future)
    volumes = projected_volumes(futures, projection.candidate.future)
    return all_of(volumes, lambda projected: projected <= limit)


@_of_every_step("PRV-ANS-4")
def a_row_alone_has_its_own_tkv(
    projection: Projection, step: Positive, block_size: Positive
) -> Statement:
    """In a step of the candidate alone the max-tkv is its tokens."""
    lives, candidate = row_lives(projection.joined), projection.candidate
    counted = alive_count(lives, step)
    look_at_the_largest(step_tokens(lives, step), block_size)
    return Statement(
        max_tkv(step_tokens(lives, step), block_size) == candidate.length + step,
        [step <= candidate.steps, counted <= 1],
        rows=projection.rows,
    )


@_of_every_limit("PRV-ANS-5")
def a_projection_that_covers_a_step_keeps_it(
    projection: Projection, limit: Number, step: Positive, block_size: Positive
) -> Statement:
    """If each row alive in a step with the candidate is projected at least its max-tkv, whatever
    else, and no projected volume exceeds the limit, the step does not.
    """
    joined, candidate = projection.joined, projection.candidate
    lives = row_lives(joined)
    least = row_with_largest(where(joined, lambda row: row.steps >= step), lambda row: -row.future)
    look_at_counted(lives, lambda life: life.steps >= step)
    counted, tkv = alive_count(lives, step), max_tkv(step_tokens(lives, step), block_size)
    met = count_of(joined, lambda other: other.future >= least.future)
    return Statement(
        step_volume(lives, step, block_size) <= limit,
        [
            all_of(lives, lambda life: life.length >= 1),
            step <= candidate.steps,
            candidate.length + candidate.steps <= limit,
            covers_step(joined, step, block_size),
            projected_volumes_hold(projection, limit),
        ],
        [
            cite("PRV-EXA-3", rows=counted, more=met, peak=tkv, tkv=least.future),
            cite("PRV-ANY-4", lives=AnyLives(lives), step=step, block_size=block_size),
            cite("PRV-ANS-4", projection=projection, step=step, block_size=block_size),
            cite("PRV-DEF-2", rows=counted, tkv=tkv),
            cite_tkv(lives, step, block_size),
        ],
        rows=projection.rows,
        opaque=[tkv, batch_tkv(step_tokens(lives, step), block_size)],
    )


def _admitted(batch: AnyBatch, limit: Number, last_tkv: Number, block_size: Number) -> list[Truth]:
    """`shipped` admits the candidate, given the tkv of the batch; it could be served alone."""
    candidate = batch.candidate
    return [
        *batch.given,
        candidate.length + candidate.remaining - 1 <= limit,
        is_that_of_the_batch(batch.decoding, last_tkv, block_size),
        shipped_volume_holds(batch.decoding, candidate, limit, block_size, last_tkv),
    ]


@_of_every_limit("PRV-ANS-6")
def shipped_is_sound(
    batch: AnyBatch, limit: Positive, step: Positive, last_tkv: Number, block_size: Positive
) -> Statement:
    """If `shipped` admits a request with the tkv of the batch, no step of the worst case in which
    that request takes part exceeds the limit.
    """
    projection = Projection(*projected(batch, last_tkv, block_size))
    own = {"step": step, "block_size": block_size}
    load = step_volume(batch.lives, **own)
    return Statement(
        load <= limit,
        [*_admitted(batch, limit, last_tkv, block_size), step <= batch.candidate.remaining - 1],
        [
            cite("PRV-ANS-3", batch=batch, last_tkv=last_tkv, **own),
            cite("PRV-ANS-5", projection=projection, limit=limit, **own),
        ],
        rows=batch.decoding,
        words=("all",),
        opaque=[load],
    )


@_of_every_step("PRV-ANS-7")
def a_row_that_has_ended_is_no_load(
    batch: AnyBatch, step: Positive, block_size: Positive
) -> Statement:
    """A step in which the candidate has ended is no larger than that of the batch without it."""
    lives, before = batch.lives, lives_of_members(batch.decoding)
    counts = [alive_count(rows, step) for rows in (lives, before)]
    tkvs = [max_tkv(step_tokens(rows, step), block_size) for rows in (lives, before)]
    for rows in (lives, before):
        look_at_the_largest(step_tokens(rows, step), block_size)
    loads = [step_volume(rows, step, block_size) for rows in (lives, before)]
    return Statement(
        [some_alive(before, step), loads[0] <= loads[1]],
        [*batch.given, step > batch.candidate.remaining - 1, some_alive(lives, step)],
        [
            cite("PRV-EXA-3", rows=counts[0], more=counts[1], peak=tkvs[0], tkv=tkvs[1]),
            *(
                cite("PRV-DEF-2", rows=rows, tkv=tkv)
                for rows, tkv in zip(counts, tkvs, strict=True)
            ),
            *(cite_tkv(rows, step, block_size) for rows in (lives, before)),
        ],
        rows=batch.decoding,
        opaque=[batch_tkv(step_tokens(rows, step), block_size) for rows in (lives, before)],
    )


@_of_the_projection(
    "PRV-ANS-8",
    bounds=f"{ANY}, every limit, {_STEPS}; a request that joins",
    rules=["SPY-VOL-1", "SPY-PAU-6"],
    is_step=False,
)
def the_limit_stays_kept_when_a_request_is_shipped(
    batch: AnyBatch, limit: Positive, step: Positive, last_tkv: Number, block_size: Positive
) -> Statement:
    """If no future step of the batch exceeds the limit and `shipped` admits a request with the tkv
    of the batch, no future step of the batch that it joins exceeds the limit.
    """
    lives, before = batch.lives, lives_of_members(batch.decoding)
    own = {"step": step, "block_size": block_size}
    return Statement(
        keeps_limit(lives, step, limit, block_size),
        [
            *_admitted(batch, limit, last_tkv, block_size),
            keeps_limit(before, step, limit, block_size),
        ],
        [
            cite("PRV-ANS-6", batch=batch, limit=limit, last_tkv=last_tkv, **own),
            cite("PRV-ANS-7", batch=batch, **own),
        ],
        rows=batch.decoding,
        words=("all",),
        opaque=[step_volume(lives, **own), step_volume(before, **own)],
    )
