"""Obligations about `queue = aligned`: a request is passed by so many others and no more.

The argument, for any number of requests. Of a waiting request `ahead` is how many precede it in the
queue, and `overtakes` how many admissions in a row have passed the head. From both follows how many
admissions of others it may still see, `admissions_left`. Every admission of another lowers that by
one or more (PRV-ALN-1), nothing else raises it where blocks are reserved (PRV-ALN-2), and it is
never negative: once it is 0 the request is itself next (PRV-ALN-3). So at most that many others are
admitted before it. Without reservation a preempted request goes to the front, which adds one ahead.

That admissions go on is the same as for the head of any queue: while the request that is next is
refused none joins, so the batch runs empty, and a request that is alone is never refused
(PRV-MAC-8). That the machine chooses and counts so is SPY-PRI-8 and SPY-PRI-9.
"""

from functools import partial

from checks.proofs.registry import Natural, Positive, Statement
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Truth, every, implies, negate
from spec.spyre.queue import admissions_left, head_is_due, overtakes_after

_of_queues = partial(
    obligation,
    bounds="any number of requests, whatever their lengths, every bound",
    rules=["SPY-PRI-9", "LIF-6"],
)


def _is_counted(overtakes: Natural, max_overtakes: Natural) -> Truth:
    """No more admissions have passed the head than may."""
    return every([overtakes >= 0, overtakes <= max_overtakes])


@_of_queues("PRV-ALN-1")
def each_admission_comes_nearer(
    ahead: Natural, gone: Natural, overtakes: Natural, max_overtakes: Positive
) -> Statement:
    """Each admission of another request leaves a waiting one at least one admission fewer to wait
    for, be it that of the head or of one that passes it.
    """
    # One that passes the head may itself be ahead of the request: then one is gone.
    left = admissions_left(ahead, overtakes, max_overtakes)
    reset, passed = overtakes_after(overtakes, True), overtakes_after(overtakes, False)
    of_head = admissions_left(ahead - 1, reset, max_overtakes) < left
    of_other = every(
        [
            _is_counted(passed, max_overtakes),
            admissions_left(ahead - gone, passed, max_overtakes) < left,
        ]
    )
    return Statement(
        [
            _is_counted(reset, max_overtakes),
            implies(ahead >= 1, of_head),
            implies(negate(head_is_due(overtakes, max_overtakes)), of_other),
        ],
        given=[_is_counted(overtakes, max_overtakes), gone <= ahead],
    )


@_of_queues("PRV-ALN-2")
def leaving_comes_nearer(
    ahead: Natural, gone: Natural, overtakes: Natural, max_overtakes: Positive
) -> Statement:
    """Requests ahead that leave the queue by themselves, aborted, never make a request wait for
    more admissions; those that arrive stand behind it.
    """
    left = partial(admissions_left, overtakes=overtakes, max_overtakes=max_overtakes)
    return Statement(left(ahead - gone) <= left(ahead), [gone <= ahead])


@_of_queues("PRV-ALN-3")
def the_last_one_is_next(ahead: Natural, overtakes: Natural, max_overtakes: Positive) -> Statement:
    """A waiting request has never fewer than no admissions to wait for, and with none it is the
    head of the queue and due.
    """
    left = admissions_left(ahead, overtakes, max_overtakes)
    is_next = every([ahead == 0, head_is_due(overtakes, max_overtakes)])
    return Statement(
        [left >= 0, implies(left == 0, is_next)],
        given=[_is_counted(overtakes, max_overtakes)],
    )
