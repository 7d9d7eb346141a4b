"""Obligations about a request that is alone: no step is idle while a request is pending.

A step is idle only where no request decodes or is paused, and the one whose turn it is is refused.
No other request is admitted then. So there is a place for it, and it could only be refused by a
condition of joining an empty batch, which none does (PRV-IDL-1 to 3), or for lack of blocks, of
which there are enough (PRV-IDL-4). Which other requests wait, how many, and in which order they are
looked at does not matter.
"""

from checks.proofs.registry import Positive, Statement, cite
from checks.proofs.spyre.moves import COVERED, COVERED_UNDER_ANY_RULE, of_every_run
from spec.core.arithmetic import Number, maximum
from spec.spyre.admission import Member
from spec.spyre.reservation import may_reserve, worst_case_blocks
from spec.spyre.variants import ADMISSIONS, Admission, Joining

_ANY_REQUEST = "any number of requests that wait, every prompt, output, limit and block size"


def _alone_may_join(
    length: Positive,
    remaining: Positive,
    limit: Number,
    max_model_len: Number,
    block_size: Positive,
    last_tkv: Number,
    admission: Admission,
) -> Statement:
    """A request that could be served alone may join an empty batch under `{admission}`."""
    # After a preemption `length` counts what it had generated before, `remaining` the rest.
    joining = Joining(
        decoding=[],
        candidate=Member(length, remaining),
        limit=limit,
        max_model_len=max_model_len,
        block_size=block_size,
        last_tkv=last_tkv,
    )
    steps = maximum(remaining - 1, 1)
    return Statement(
        [condition.holds(joining) for condition in ADMISSIONS[admission].conditions],
        given=[length + remaining - 1 <= limit, length + remaining <= max_model_len],
        known=[cite("PRV-PEAK-3A", row_0=length, steps=steps, block_size=block_size)],
    )


for _number, _admission in enumerate(
    (Admission.EXACT, Admission.DOCUMENTED, Admission.SHIPPED), start=1
):
    _covered = COVERED_UNDER_ANY_RULE if ADMISSIONS[_admission].judged_once else COVERED
    of_every_run(
        f"PRV-IDL-{_number}",
        where=f"admission={_admission}, reservation=true, {_covered}",
        bounds=_ANY_REQUEST,
        rules=["SPY-PRI-4"],
        admission=_admission,
    )(_alone_may_join)


@of_every_run(
    "PRV-IDL-4",
    where=f"reservation=true, {COVERED_UNDER_ANY_RULE}",
    bounds=f"{_ANY_REQUEST}, any pool that holds its worst case",
    rules=["SPY-PRI-4"],
)
def blocks_of_a_request_alone_suffice(
    length: Positive, remaining: Positive, pool: Number, block_size: Positive
) -> Statement:
    """A request may reserve its worst case, which the pool holds, if no other is admitted."""
    worst_case = worst_case_blocks(length, remaining, block_size)
    return Statement(may_reserve(worst_case, 0, pool, 0), [worst_case <= pool])
