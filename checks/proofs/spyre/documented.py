"""The obligation that the text's volume rule does not meet.

Source: spyre, "Volumetric Constraint - Additional Details". The projection gives a block of slack
to each decoding request and none to the newcomer. When the other row crosses a block boundary, the
newcomer is drawn along by up to a block, which the projection leaves out. One decoding request and
the candidate are enough; one request alone is within the limit in any case.
"""

from checks.proofs.registry import Numbers, Positive, Statement, Verdict
from checks.proofs.spyre.scope import obligation
from checks.proofs.spyre.worst_case import WorstCase, scenario_of_a_pair
from spec.core.requests import Request
from spec.spyre.admission import documented_volume_holds
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission

BLOCK = 2  # tokens; small enough to be followed by hand


def _scenario(numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
    """Request 0 has decoded once when request 1, behind it in the queue, completes its prefill."""
    return scenario_of_a_pair(
        numbers,
        block_size=BLOCK,
        max_model_len=BLOCK * 64,
        max_batch_tkv_limit=numbers["limit"],
        admission=Admission.DOCUMENTED,
    )


@obligation(
    "PRV-VOL-1",
    where="admission=documented",
    bounds=f"every length up to {BLOCK * 8} tokens; block {BLOCK}",
    rules=["SPY-VOL-1"],
    expected=Verdict.REFUTED,
    scenario=_scenario,
    requests=2,
)
def documented_keeps_the_limit(case: WorstCase, limit: Positive, step: Positive) -> Statement:
    """The text's projection keeps the limit: a request that it admits next to one decoding request
    never takes part in a step over it.
    """
    # False as the text has it: the newcomer gets no slack for a block that the other crosses.
    (first,), candidate = case.decoding, case.candidate
    return Statement(
        case.volume(step, BLOCK) <= limit,
        given=[
            *case.given,
            first.length + first.remaining <= limit,
            candidate.length + candidate.remaining - 1 <= limit,
            first.length >= 2,
            first.length <= BLOCK * 8,
            candidate.length <= BLOCK * 8,
            limit <= BLOCK * 32,
            documented_volume_holds(case.decoding, candidate, limit, BLOCK),
        ],
    )
