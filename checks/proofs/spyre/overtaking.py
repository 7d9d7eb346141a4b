"""Obligations about `queue = aligned`: the number of requests that overtake another is bounded.

The argument, for any number of requests. Of a waiting request `ahead` is how many precede it in the
queue, and `cohort` how many at the head of the queue are all admitted before any other; once none
is left, the first `max_overtakes` + 1 are. From both follows how many requests behind it may still
go before it, `overtakes_left`, at first `max_overtakes`, and how many others in all,
`admissions_left`. Each admission of another lowers the latter by one or more, and one of a request
behind it the former (PRV-ALN-1); nothing else raises them where blocks are reserved (PRV-ALN-2);
and they are never negative: once none is left to wait for, the request is itself next (PRV-ALN-3).
So at most `max_overtakes` overtake it, and with those ahead of it at most that many are admitted
before it, for all arrivals. Without reservation a preempted request goes to the front, which adds
one ahead.

That the machine chooses so is given here, not proven: it is SPY-PRI-8 to SPY-PRI-10, and the moves
of the queue are compared. That admissions go on is no part of the argument: while the request that
is next is refused none joins, the batch runs empty, and a request that is alone is never refused
(PRV-IDL-1 to 4).
"""

from functools import partial

from checks.proofs.registry import Natural, Positive, Statement
from checks.proofs.spyre.moves import COVERED_UNDER_ANY_RULE, of_every_run
from spec.core.arithmetic import Truth, every, implies, select
from spec.spyre.queue import admissions_left, chosen_from, overtakes_left

_of_queues = partial(
    of_every_run,
    where=f"queue=aligned, reservation=true, {COVERED_UNDER_ANY_RULE}",
    bounds="any number of requests that wait, every max_overtakes",
    rules=[],
)


def _waits(ahead: Natural, cohort: Natural, waiting: Natural, max_overtakes: Natural) -> Truth:
    """True if a request waits behind `ahead` others and the cohort is possible."""
    return every([ahead < waiting, cohort <= waiting, cohort <= max_overtakes + 1])


def _without(place: Natural, ahead: Natural) -> Natural:
    """The number of requests ahead after the one at this place has left the queue."""
    return select(place < ahead, ahead - 1, ahead)


@_of_queues("PRV-ALN-1")
def each_admission_comes_nearer(
    ahead: Natural, place: Natural, cohort: Natural, waiting: Natural, max_overtakes: Positive
) -> Statement:
    """Each admission of another request leaves a waiting one fewer admissions to wait for, and one
    of a request behind it fewer by which it can be overtaken.
    """
    line = chosen_from(cohort, waiting, max_overtakes)
    now, left = _without(place, ahead), line - 1
    overtakes = overtakes_left(ahead, cohort, max_overtakes)
    overtakes_then = overtakes_left(now, left, max_overtakes)
    fewer = admissions_left(now, left, max_overtakes) < admissions_left(
        ahead, cohort, max_overtakes
    )
    return Statement(
        [
            _waits(now, left, waiting - 1, max_overtakes),
            fewer,
            overtakes_then <= overtakes,
            implies(place > ahead, overtakes_then < overtakes),
        ],
        given=[_waits(ahead, cohort, waiting, max_overtakes), place < line, place != ahead],
    )


@_of_queues("PRV-ALN-2")
def leaving_comes_nearer(
    ahead: Natural, place: Natural, cohort: Natural, waiting: Natural, max_overtakes: Positive
) -> Statement:
    """Requests that leave the queue by themselves, aborted, never make another wait for more
    admissions, nor let more overtake it; those that arrive stand behind it.
    """
    now, left = _without(place, ahead), select(place < cohort, cohort - 1, cohort)
    return Statement(
        [
            _waits(now, left, waiting - 1, max_overtakes),
            *(
                most(now, left, max_overtakes) <= most(ahead, cohort, max_overtakes)
                for most in (admissions_left, overtakes_left)
            ),
        ],
        given=[_waits(ahead, cohort, waiting, max_overtakes), place < waiting, place != ahead],
    )


@_of_queues("PRV-ALN-3")
def the_last_one_is_next(
    ahead: Natural, cohort: Natural, waiting: Natural, max_overtakes: Positive
) -> Statement:
    """No more than `max_overtakes` ever overtake a waiting request; it has never fewer than no
    admissions to wait for, and with none it is the only one that is chosen from.
    """
    overtakes = overtakes_left(ahead, cohort, max_overtakes)
    left = admissions_left(ahead, cohort, max_overtakes)
    is_next = every([ahead == 0, chosen_from(cohort, waiting, max_overtakes) == 1])
    return Statement(
        [overtakes >= 0, overtakes <= max_overtakes, left >= ahead, implies(left == 0, is_next)],
        given=[_waits(ahead, cohort, waiting, max_overtakes)],
    )
