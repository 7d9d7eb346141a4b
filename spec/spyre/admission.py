"""May a request join the decode batch? The last-chunk conditions, in three variants.

Source: spyre, "Last-chunk constraints" and "Volumetric Constraint - Additional Details";
`shipped` is the rule of sendnn-inference 2.6.3; `exact` is ours. Every formula takes integers
or solver terms.

A batch is described by its members, the decoding requests in any order. A member's `length`
is its tokens in the KV cache, `remaining` the tokens that it may still generate.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attrs import frozen

from spec.core.arithmetic import Number, Truth, every, floor_div, maximum, round_up, select
from spec.core.rows import Rows, all_of, count_of, each_of, largest_of, with_row
from spec.spyre.padding import batch_width_blocks, peak_tkv, row_left_padding, row_tkv, volume


@frozen
class Member:
    """A request as the admission rules see it, lengths in tokens.

    `length`: tokens in the KV cache; of the candidate: the tokens that its prefill computes.
    `remaining`: tokens that it may still generate, those of its last chunk included.
    """

    length: Number
    remaining: Number


def joined_tkvs(decoding: Sequence[Member], candidate: Member, block_size: Number) -> list[Number]:
    """Tkv of every member, the candidate last, in the batch that the candidate has joined."""
    lengths = [member.length for member in (*decoding, candidate)]
    width = batch_width_blocks(lengths, block_size)
    return [row_tkv(length, row_left_padding(length, width, block_size)) for length in lengths]


def projected_volumes(future_tkvs: Rows, candidate_tkv: Number) -> Rows:
    """Volume at the end of each decoding request that the candidate outlives, and at its own.

    `future_tkvs` are the greatest tkv that each decoding request is projected to reach. The
    projection takes requests in increasing order of it, each leaving the batch when reached,
    and stops at the candidate; if the candidate outlives all, its own end is not looked at.
    Written without sorting: a request that reaches tkv m is met by all that reach m or more.
    """
    everyone = with_row(future_tkvs, candidate_tkv)
    outlives_all = all_of(future_tkvs, lambda tkv: tkv < candidate_tkv)

    def volume_at(tkv: Number) -> Number:
        is_looked_at = select(outlives_all, tkv < candidate_tkv, tkv <= candidate_tkv)
        alive = count_of(everyone, lambda other: other >= tkv)
        return select(is_looked_at, volume(alive, tkv), 0)

    return each_of(everyone, volume_at)


def documented_volume_holds(
    decoding: Sequence[Member], candidate: Member, limit: Number, block_size: Number
) -> Truth:
    """The text's projection: one block of slack for decoding requests, none for the new one.

    "Current tkv" is read as the tkv in the batch that the candidate has joined; the other
    reading (before it joins) admits even more.
    Source: spyre, "Volumetric Constraint - Additional Details".
    """
    *tkvs, candidate_tkv = joined_tkvs(decoding, candidate, block_size)
    future = [
        tkv + member.remaining + block_size for tkv, member in zip(tkvs, decoding, strict=True)
    ]
    volumes = projected_volumes(future, candidate_tkv + candidate.remaining)
    return every(value <= limit for value in volumes)


def shipped_volume_holds(
    decoding: Rows,
    candidate: Member,
    limit: Number,
    block_size: Number,
    last_tkv: Number,
) -> Truth:
    """The projection of sendnn-inference 2.6.3: rounded up, a block of slack on both sides.

    `last_tkv` is the tkv that the previous step returned; the release knows no tkv per request.
    Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off.
    """
    futures = shipped_row_futures(decoding, candidate, block_size, last_tkv)
    own = shipped_candidate_future(candidate, block_size, last_tkv)
    return all_of(projected_volumes(futures, own), lambda projected: projected <= limit)


def shipped_row_futures(
    decoding: Rows, candidate: Member, block_size: Number, last_tkv: Number
) -> Rows:
    """The greatest tkv that 2.6.3 projects for each decoding request.

    The release counts the first token as generated only once its key and value are cached, so a
    decoding request has one more to go than `remaining`.

    Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off.
    """
    base = maximum(last_tkv, candidate.length)
    return each_of(decoding, lambda member: _projected_end(base + member.remaining + 1, block_size))


def shipped_candidate_future(candidate: Member, block_size: Number, last_tkv: Number) -> Number:
    """The greatest tkv that 2.6.3 projects for the candidate.

    It begins in the block of the last step's tkv, as far into it as its prompt reaches into its own
    last one. Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off.
    """
    base = maximum(last_tkv, candidate.length)
    offset = candidate.length - floor_div(candidate.length, block_size) * block_size
    tkv = floor_div(base, block_size) * block_size + offset
    return _projected_end(tkv + candidate.remaining, block_size)


def _projected_end(end: Number, block_size: Number) -> Number:
    """The tkv at which 2.6.3 takes a request to end before `end`: rounded up, a block of slack."""
    return round_up(end - 1, block_size) + block_size


class Life(NamedTuple):
    """What a member has to come: `length` tokens before its first decode step, and `steps`."""

    length: Number
    steps: Number


def worst_case_volumes(decoding: Rows, candidate: Member, block_size: Number) -> Rows:
    """Peak volume of the batch until each member's end, if every request generates all it may.

    For the end of one member only those are counted that live as long; earlier steps have more
    rows and at least the same tkv, so they are covered by the ends of the others. The
    candidate's last chunk yields its first token; it decodes one step less than it generates.
    """
    lives = decode_lives(decoding, candidate)
    return each_of(
        lives,
        lambda life: select(life.steps > 0, peak_volume_until(lives, life.steps, block_size), 0),
    )


def decode_lives(decoding: Rows, candidate: Member) -> Rows:
    """The life of every member, the candidate's last."""
    lives = each_of(decoding, lambda member: Life(member.length, member.remaining))
    return with_row(lives, Life(candidate.length, candidate.remaining - 1))


def peak_volume_until(lives: Rows, steps: Number, block_size: Number) -> Number:
    """Peak volume, over `steps` steps, of the members that decode for at least that long."""
    rows = count_of(lives, lambda life: life.steps >= steps)
    return volume(rows, peak_tkv(rows_until(lives, steps), steps, block_size))


def rows_until(lives: Rows, steps: Number) -> Rows:
    """Tokens of the rows that decode for `steps` steps, which is the end of one of them.

    A member that ends earlier is given the length of the one whose end this is: it changes neither
    the width nor any offset.
    """
    own = largest_of(lives, lambda life: select(life.steps == steps, life.length, 0))
    return each_of(lives, lambda life: select(life.steps >= steps, life.length, own))


def exact_volume_holds(
    decoding: Rows, candidate: Member, limit: Number, block_size: Number
) -> Truth:
    """Admit if and only if no step of the worst case exceeds the limit.

    The worst case: no other request joins, none is preempted and every request generates all it
    may.
    """
    volumes = worst_case_volumes(decoding, candidate, block_size)
    return all_of(volumes, lambda peak: peak <= limit)


def model_length_holds(
    decoding: Sequence[Member], candidate: Member, max_model_len: Number, block_size: Number
) -> Truth:
    """What every member may still generate fits the context length after the candidate joined.

    Source: spyre, "Last-chunk constraints", Max-model-length constraint. A tkv of t reaches
    t + r without a further jump, where r are the decode steps to come: those of a decoding request
    are its remaining tokens; the candidate's first token comes from its last chunk.
    """
    tkvs = joined_tkvs(decoding, candidate, block_size)
    remaining = [*(member.remaining for member in decoding), candidate.remaining - 1]
    return every(tkv + still <= max_model_len for tkv, still in zip(tkvs, remaining, strict=True))
