"""Conditions for joining the decode batch, as the texts say them: row by row.

Written without the formulas of `spec.spyre.admission` and `spec.spyre.padding`, by which the
machine decides: a wrong one of those must not change what the rules say. Lengths in tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from spec.spyre.variants import Joining

Lives = Sequence[tuple[int, int]]  # of each row its tokens and the decode steps that it has to come

MOST_WALKED = 256  # rows times decode steps that are walked; a longer future is bounded instead


# --- rows that decode together --------------------------------------------------------------------


def tkvs_together(lengths: Sequence[int], block_size: int) -> list[int]:
    """Tkv of rows of these lengths: left padding in blocks aligns each with the widest."""
    blocks = [-(-length // block_size) for length in lengths]
    widest = max(blocks)
    return [
        (widest - own) * block_size + length for own, length in zip(blocks, lengths, strict=True)
    ]


def volume_together(lengths: Sequence[int], block_size: int) -> int:
    """Volume of a step after which the rows have these lengths."""
    return len(lengths) * max(tkvs_together(lengths, block_size))


def row_lives(joining: Joining) -> Lives:
    """Tokens and decode steps of every row, the newcomer last: its last chunk yields a token."""
    decoding = [(row.length, row.remaining) for row in joining.decoding]
    return [*decoding, (joining.candidate.length, joining.candidate.remaining - 1)]


# --- SPY-LEN-2 ------------------------------------------------------------------------------------


def model_length_fits(joining: Joining) -> bool:
    """True if each row, from the tkv that it has beside the newcomer, has room for its steps."""
    lives = row_lives(joining)
    tkvs = tkvs_together([length for length, _ in lives], joining.block_size)
    return all(
        tkv + steps <= joining.max_model_len for tkv, (_, steps) in zip(tkvs, lives, strict=True)
    )


# --- SPY-VOL-2, SPY-VOL-3: projections ------------------------------------------------------------


def documented_projection_fits(joining: Joining) -> bool:
    """True if the text's projection stays within the limit.

    Current is the tkv beside the newcomer. Source: spyre, "Volumetric Constraint - Additional
    Details".
    """
    lengths = [row.length for row in (*joining.decoding, joining.candidate)]
    *current, own = tkvs_together(lengths, joining.block_size)
    ends = [
        tkv + row.remaining + joining.block_size
        for tkv, row in zip(current, joining.decoding, strict=True)
    ]
    volumes = projected(ends, own + joining.candidate.remaining)
    return all(volume <= joining.limit for volume in volumes)


def shipped_projection_fits(joining: Joining) -> bool:
    """True if the release's projection stays within the limit.

    All rows are taken to stand where the step before ended, or the newcomer if that is further; the
    newcomer as far into that block as into its own. A decoding row has one token to go more than it
    may generate, since the release counts a token once its key and value are cached.
    Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off.
    """
    size: int = joining.block_size
    length = joining.candidate.length
    furthest = max(joining.last_tkv, length)
    own = furthest - furthest % size + length % size

    def end(tkv: int) -> int:
        return -(-tkv // size) * size + size

    ends = [end(furthest + row.remaining) for row in joining.decoding]
    volumes = projected(ends, end(own + joining.candidate.remaining - 1))
    return all(volume <= joining.limit for volume in volumes)


def projected(ends: Sequence[int], newcomer_end: int) -> Iterator[int]:
    """The volumes of a projection, by the tkv at which each row is projected to end.

    Rows end in increasing order of it, and with each the batch has one row less; behind the end of
    the newcomer the projection does not look, nor behind that of the last decoding row.
    Source: spyre, "Volumetric Constraint - Additional Details".
    """
    rows = len(ends) + 1
    for end in sorted(ends):
        yield rows * min(end, newcomer_end)
        if end >= newcomer_end:
            return
        rows -= 1


# --- SPY-VOL-4: the worst case --------------------------------------------------------------------


def worst_case_fits(joining: Joining) -> bool:
    """True if and only if no step of the worst case exceeds the limit.

    Every step is walked, unless the rows have more than `MOST_WALKED` steps in all. Then few ends
    are looked at (`worst_case_fits_by_ends`).
    """
    lives = row_lives(joining)
    if sum(steps for _, steps in lives) > MOST_WALKED:
        return worst_case_fits_by_ends(lives, joining.limit, joining.block_size)
    return all(volume <= joining.limit for volume in volumes_to_come(lives, joining.block_size))


def volumes_to_come(lives: Lives, block_size: int) -> Iterator[int]:
    """Volume of each step to come, if no other request joins and each generates all it may."""
    for step in range(1, max(steps for _, steps in lives) + 1):
        rows = [length + step for length, steps in lives if steps >= step]
        yield volume_together(rows, block_size)


def worst_case_fits_by_ends(lives: Lives, limit: int, block_size: int) -> bool:
    """What walking all steps says, from the ends of the rows; a test compares the two.

    At its end the longest row has at least the tkv of its own tokens, and no tkv ever lies beyond
    the last block of the longest. Where these two bounds leave it open, the last block of steps is
    walked: a step and the one a block of steps later have the same rows at the same places in their
    blocks, the later one in one block more.
    """
    by_end = sorted(lives, key=lambda row: row[1], reverse=True)
    longest, undecided = 0, set()
    for rows, (length, steps) in enumerate(by_end, start=1):  # of equal ends the last has them all
        longest = max(longest, length)
        if steps > 0 and rows * (longest + steps) > limit:
            return False
        if steps > 0 and rows * -(-(longest + steps) // block_size) * block_size > limit:
            undecided.add(steps)
    walked = chain.from_iterable(last_volumes(lives, end, block_size) for end in undecided)
    return all(volume <= limit for volume in walked)


def last_volumes(lives: Lives, end: int, block_size: int) -> Iterator[int]:
    """Volumes of the last block of steps before this end, of the rows that last as long."""
    rows = [length for length, steps in lives if steps >= end]
    for step in range(max(1, end - block_size + 1), end + 1):
        yield volume_together([length + step for length in rows], block_size)
