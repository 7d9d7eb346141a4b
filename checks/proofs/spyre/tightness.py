"""Obligations about when `exact` is tight: the step for which it refuses a request must come.

In the worst case no other request joins, every request generates all it may and none is preempted.
With reservation no request ever is, since the blocks of its worst case are set aside (PRV-RES-1 to
5): the step over the limit for which `exact` refuses a request comes, if all generate all they may
(PRV-TIG-1, 2). Without it the blocks may run out first: a request is preempted, and the step never
comes (PRV-TIG-3). There `exact` keeps the limit as well, and may refuse what could be served.
"""

from functools import partial

from checks.proofs.any_rows import row_where_not
from checks.proofs.registry import Integer, Natural, Positive, Statement, Verdict, cite
from checks.proofs.spyre.any_batch import is_admitted, over_the_limit, peak_step
from checks.proofs.spyre.definitions import ANY, AnyBatch, alive_rows, step_volume
from checks.proofs.spyre.moves import COVERED, COVERED_UNDER_ANY_RULE, of_every_run
from checks.proofs.spyre.scope import obligation
from checks.proofs.spyre.worst_case import WorstCase
from spec.core.arithmetic import Number, Truth, every, maximum, negate, select, some
from spec.core.blocks import block_count
from spec.core.rows import all_of
from spec.spyre.admission import Life, exact_volume_holds
from spec.spyre.reservation import worst_case_blocks

_of_the_volume = partial(
    of_every_run, where=f"admission=exact, reservation=true, {COVERED}", rules=["SPY-VOL-4"]
)


def suffices(life: Life, step: Number, block_size: Number) -> Truth:
    """The blocks that reservation sets aside for the row are enough for this step."""
    # What is set aside when a prefill is admitted covers as much when some of it is computed.
    promised = worst_case_blocks(life.length, life.steps, block_size)
    return block_count(life.length + step, block_size) <= promised


@of_every_run(
    "PRV-TIG-1",
    where=f"reservation=true, {COVERED_UNDER_ANY_RULE}",
    bounds="every row and step, every block size",
    rules=["SPY-RES-2", "SPY-RES-3"],
)
def a_life_is_reserved(
    length: Natural, steps: Number, step: Positive, block_size: Positive
) -> Statement:
    """A row needs no more blocks for a step of its life than reservation sets aside for it."""
    known = cite("PRV-PEAK-1C", longest=length + step, longer=length + steps, block_size=block_size)
    return Statement(
        suffices(Life(length, steps), step, block_size),
        [step <= steps],
        [known],
        is_congruent=True,
    )


@_of_the_volume("PRV-TIG-2", bounds=f"{ANY}, every limit, every block size")
def reserved_is_tight(batch: AnyBatch, limit: Positive, block_size: Positive) -> Statement:
    """If `exact` refuses a request, some step of the worst case exceeds the limit, and no row needs
    more blocks for it than reservation sets aside: it comes, if all generate all they may.
    """
    lives = batch.lives
    given = [*batch.given, negate(is_admitted(batch, limit, block_size))]
    end = over_the_limit(lives, limit, block_size)
    step = peak_step(lives, end.steps, block_size)
    then = alive_rows(lives, step)
    size = {"block_size": block_size}
    short = row_where_not(then, lambda life: suffices(life, step, block_size))
    return Statement(
        [
            step >= 1,
            step_volume(lives, step, block_size) > limit,
            all_of(then, lambda life: suffices(life, step, block_size)),
        ],
        given,
        known=[
            cite("PRV-ANY-7B", batch=batch, limit=limit, **size),
            cite("PRV-TIG-1", length=short.length, steps=short.steps, step=step, **size),
        ],
        rows=lives,
        words=("all",),
        opaque=[
            step_volume(lives, step, block_size),
            block_count(short.length + step, block_size),
            worst_case_blocks(short.length, short.steps, block_size),
            step,
        ],
    )


BLOCK, MOST = 1, 8  # tokens: of a block; of a prompt and of what a request may generate


def _some_step_comes_that_exceeds(case: WorstCase, limit: Number, num_blocks: Number) -> Truth:
    """Some step of the worst case is over the limit, and there are blocks for it and those before.

    No request gives blocks back before its end.
    """

    def blocks(step: int) -> Number:
        return sum(
            select(steps >= step, block_count(length + step, BLOCK), 0)
            for length, steps in case.lives
        )

    steps = range(1, MOST + 1)
    return some(
        every(
            [
                case.volume(step, BLOCK) > limit,
                *(blocks(earlier) <= num_blocks for earlier in steps if earlier <= step),
            ]
        )
        for step in steps
    )


@obligation(
    "PRV-TIG-3",
    where="admission=exact, reservation=false",
    bounds="runs that may preempt: one decoding request and one candidate, prompts and outputs up "
    f"to {MOST} tokens, every limit and pool, block {BLOCK}",
    rules=["SPY-VOL-4"],
    expected=Verdict.REFUTED,
)
def unreserved_is_tight(integer: Integer, limit: Positive, spare: Natural) -> Statement:
    """If `exact` refuses a request, a step over the limit would come with it, also where no blocks
    are set aside.
    """
    # False: one of the two is preempted before. There are blocks for each alone, and `spare` ones.
    case = WorstCase.drawn(integer, requests=2)
    members = (*case.decoding, case.candidate)
    alone = [block_count(member.length + member.remaining, BLOCK) for member in members]
    admits = exact_volume_holds(case.decoding, case.candidate, limit, BLOCK)
    return Statement(
        _some_step_comes_that_exceeds(case, limit, maximum(*alone) + spare),
        given=[
            *case.given,
            *(most <= MOST for member in members for most in (member.length, member.remaining)),
            *(member.length + member.remaining - 1 <= limit for member in members),
            negate(admits),
        ],
    )
