"""The exact volume rule for integers, which is asked in most steps of a full server.

`spec.spyre.admission.exact_volume_holds` says what it is and compares every pair of requests. Here
an end is looked at in that way only where two bounds leave it open.
"""

from collections.abc import Sequence
from operator import itemgetter

from spec.core.arithmetic import round_up
from spec.spyre.admission import Member, decode_lives, peak_volume_until
from spec.spyre.padding import volume


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
    return all(peak_volume_until(lives, steps, block_size) <= limit for steps in undecided)
