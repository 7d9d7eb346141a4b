"""The exact volume rule for integers, which is asked in most steps of a full server.

The machine decides by the closed form `spec.spyre.admission.exact_volume_holds`. Here the worst
case is walked step by step, as the rule's sentence says it, where two bounds leave it open.
"""

from collections.abc import Sequence
from operator import itemgetter

from spec.core.arithmetic import round_up
from spec.spyre.admission import Member, decode_lives
from spec.spyre.padding import max_tkv, volume


def exact_volume_holds(
    decoding: Sequence[Member], candidate: Member, limit: int, block_size: int
) -> bool:
    """True if and only if no step of the worst case exceeds the limit; lengths in tokens.

    At its end the longest request has at least the tkv of its own tokens, and no tkv ever lies
    beyond the last block of the longest. Requests are taken by their ends, the last first, so that
    those that live as long are the ones before; of equal ends the last has them all.
    """
    lives = sorted(decode_lives(decoding, candidate), key=itemgetter(1), reverse=True)
    longest, undecided = 0, set()
    for rows, (length, steps) in enumerate(lives, start=1):
        longest = max(longest, length)
        if steps > 0 and volume(rows, longest + steps) > limit:
            return False
        if steps > 0 and volume(rows, round_up(longest + steps, block_size)) > limit:
            undecided.add(steps)
    return all(walked_volume(lives, end, block_size) <= limit for end in undecided)


def walked_volume(lives: Sequence[tuple[int, int]], end: int, block_size: int) -> int:
    """Largest volume, until this end, of the members that decode for at least that long.

    Of all steps the last block's are walked: a step and the one a block of steps later have the
    same rows at the same places in their blocks, the later one in one block more.
    """
    rows = [length for length, steps in lives if steps >= end]
    walked = range(max(1, end - block_size + 1), end + 1)
    tkvs = (max_tkv([row + step for row in rows], block_size) for step in walked)
    return int(volume(len(rows), max(tkvs)))
