"""Obligations about admission = exact: it admits if and only if no later step exceeds the limit.

The rule looks at one number for each member: the rows that live until its end, times the peak of
those rows over all steps until then. That this is enough, and not too much, for every batch size:

1. A step lies before some first end: the end of the one, among those alive, that leaves first. The
   members alive in the step are those alive at that end (PRV-EXA-1).
2. The rule writes that batch with a stand-in for each row that has left, as long as the one whose
   end it is; stand-ins change no peak (PRV-EXA-2).
3. *Sound*: no step exceeds the peak of the rows that are alive in it (PRV-PEAK-1E, 1F), so its
   volume is at most the number that the rule compares with the limit.
4. *Tight*: the peak is attained in some step until that end (PRV-PEAK-3B). In that step the same
   rows decode, and perhaps more, which lowers neither factor of the volume (PRV-EXA-3, PRV-MON-1B).
   So a number over the limit is a step over the limit.

Head-on, for two to four requests, the same is put together by the solver from these facts
(PRV-EXA-4 to 6); for two requests also from nothing (PRV-EXA-7).
"""

from collections.abc import Iterator
from functools import partial

from checks.proofs.registry import Case, Fact, Positive, Statement
from checks.proofs.spyre.rows import REAL_BLOCK, cite_rows, last_full_step
from checks.proofs.spyre.scope import obligation
from checks.proofs.spyre.worst_case import (
    Alive,
    WorstCase,
    cite_leaving,
    cite_number,
    possible_ends,
)
from spec.core.arithmetic import Number, Truth, every, negate, some
from spec.spyre.admission import exact_volume_holds, worst_case_volumes
from spec.spyre.padding import peak_tkv, volume

_exact = partial(obligation, where="admission=exact")
_of_the_volume = partial(_exact, rules=["SPY-VOL-1", "SPY-VOL-4"])
_of_the_rule = partial(_exact, rules=["SPY-VOL-4"])

# --- the argument for every batch size -----------------------------------------------------------


@_of_the_volume("PRV-EXA-1", bounds="any member of a batch of any size", is_step=True)
def the_living_stay_until_the_first_end(
    step: Number, first_end: Number, lasts: Number
) -> Statement:
    """A row alive in a step is alive at the first end from there on, and no other is."""
    # `first_end`: the least of the lives that last until the step; no life ends in between.
    ends_in_between = every([lasts >= step, lasts < first_end])
    return Statement(
        (lasts >= step) == (lasts >= first_end), given=[step <= first_end, negate(ends_in_between)]
    )


@_of_the_rule(
    "PRV-EXA-2",
    is_step=True,
    bounds="every batch size (longest, furthest, a row that fills its block and the one stood in "
    "for represent it), every number of steps, every block size",
)
def stand_ins_change_no_peak(
    longest: Positive,
    furthest: Positive,
    filling: Positive,
    original: Positive,
    steps: Positive,
    block_size: Positive,
) -> Statement:
    """A row that stands in with the length of another row of the batch changes no peak."""
    # A copy is no longer than the longest, and reaches what its original reaches.
    batch = [longest, furthest, filling, original]
    peak = peak_tkv(batch, steps, block_size)
    return Statement(peak_tkv([*batch, original], steps, block_size) == peak)


@_of_the_volume("PRV-EXA-3", bounds="every batch size, every tkv", is_step=True)
def more_rows_are_no_smaller_volume(
    rows: Positive, more: Number, peak: Positive, tkv: Number
) -> Statement:
    """More rows at no smaller max-tkv are no smaller volume (last step of the argument)."""
    # `rows` live until the end that the rule looks at, `more` are alive in the step.
    return Statement(volume(more, tkv) >= volume(rows, peak), [more >= rows, tkv >= peak])


# --- head-on --------------------------------------------------------------------------------------


def _number_of_an_end(
    case: WorstCase, block_size: Positive, alive: Alive, member: int
) -> Statement:
    """Head-on for {requests} requests: the number that the rule compares with the limit is, at each
    end, the rows that live until then times their peak.
    """
    steps = case.end(member)
    number = worst_case_volumes(case.decoding, case.candidate, block_size)[member]
    peak = peak_tkv(case.lengths(alive), steps, block_size)
    return Statement(
        number == volume(len(alive), peak),
        [*case.given, case.are_alive(alive, steps), steps >= 1],
        is_congruent=True,
    )


def _exact_is_sound(
    case: WorstCase, limit: Positive, step: Positive, block_size: Positive
) -> Statement:
    """Head-on for {requests} requests: no step of the worst case exceeds the limit, once `exact`
    has admitted the last of them.
    """
    # By those alive in the step and the one of them that ends first, if there is any.
    ends = [
        Case(
            case.end_first(alive, member, step),
            [
                cite_number(case, alive, member, block_size),
                cite_rows(
                    "PRV-PEAK-2",
                    case.lengths(alive),
                    step=step,
                    steps=case.end(member),
                    block_size=block_size,
                ),
            ],
        )
        for alive, member in case.ends
    ]
    return Statement(
        case.volume(step, block_size) <= limit,
        [*case.given, exact_volume_holds(case.decoding, case.candidate, limit, block_size)],
        cases=[*ends, Case(case.are_alive((), step))],
    )


def _peak_steps(case: WorstCase, alive: Alive, member: int, block_size: Number) -> list[Number]:
    """Steps in which the peak until a member's end may be attained: the end, or a full row."""
    steps = case.end(member)
    return [steps, *(last_full_step(length, steps, block_size) for length in case.lengths(alive))]


def _exact_is_tight(case: WorstCase, limit: Positive, block_size: Positive) -> Statement:
    """Head-on for {requests} requests: if `exact` refuses the last of them, some step of the worst
    case exceeds the limit.
    """

    # By an end whose number is over the limit, and those alive then: it is one of the steps in
    # which their peak is attained.
    def some_step_exceeds(alive: Alive, member: int) -> Truth:
        return some(
            every([step >= 1, case.volume(step, block_size) > limit])
            for step in _peak_steps(case, alive, member, block_size)
        )

    def known(alive: Alive, member: int) -> Iterator[Fact]:
        lengths, steps = case.lengths(alive), case.end(member)
        yield cite_number(case, alive, member, block_size)
        yield cite_rows("PRV-PEAK-3", lengths, steps=steps, block_size=block_size)
        for step in _peak_steps(case, alive, member, block_size):
            yield from cite_leaving(case, alive, step, block_size)

    def is_over(alive: Alive, member: int) -> Truth:
        number = worst_case_volumes(case.decoding, case.candidate, block_size)[member]
        return every([number > limit, case.are_alive(alive, case.end(member))])

    admits = exact_volume_holds(case.decoding, case.candidate, limit, block_size)
    everyone = tuple(range(len(case.lives)))
    return Statement(
        some(some_step_exceeds(everyone, member) for member in everyone),
        [*case.given, negate(admits)],
        cases=[Case(is_over(*end), known(*end), some_step_exceeds(*end)) for end in case.ends],
    )


for _letter, _count in (("A", 2), ("B", 3), ("C", 4)):
    _batches = f"every batch of {_count} requests, every length and limit"
    _any_block, _real_block = f"{_batches}, every block size", f"{_batches}, block {REAL_BLOCK}"
    _of_the_rule(
        f"PRV-EXA-4{_letter}",
        is_step=True,
        bounds=_any_block,
        requests=_count,
        each=[{"alive": alive, "member": member} for alive, member in possible_ends(_count)],
    )(_number_of_an_end)
    _of_the_volume(f"PRV-EXA-5{_letter}", bounds=_any_block, requests=_count)(_exact_is_sound)
    _of_the_rule(f"PRV-EXA-6{_letter}", bounds=_real_block, requests=_count, block_size=REAL_BLOCK)(
        _exact_is_tight
    )


@_of_the_volume(
    "PRV-EXA-7",
    bounds=f"one decoding request and one candidate, every length and limit; block {REAL_BLOCK}",
    requests=2,
)
def exact_keeps_the_limit_of_a_pair(case: WorstCase, limit: Positive, step: Positive) -> Statement:
    """`exact` keeps the limit: a request that it admits next to one decoding request never takes
    part in a step over it (from nothing: no other obligation is built on).
    """
    # In any step of the worst case, with both requests or with the one that lives longer.
    admits = exact_volume_holds(case.decoding, case.candidate, limit, REAL_BLOCK)
    return Statement(
        case.volume(step, REAL_BLOCK) <= limit, [*case.given, admits], is_congruent=True
    )
