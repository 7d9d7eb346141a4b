"""Obligations about a step of vLLM V1 with any number of requests: the budget is never exceeded.

What a step has handed out is the sum of what its requests were given, any number of them. The sum
and what is left of the budget are the budget at the start of a step, where no request has been
given any, and every turn keeps that: of a running request (PRV-V1-ANY-1), of a waiting one
(PRV-V1-ANY-2), of a victim whose tokens are taken back (PRV-V1-ANY-3). So by induction over the
turns of a step its tokens are within the budget.
"""

from functools import partial
from typing import NamedTuple, Self

from attrs import frozen

from checks.proofs.any_rows import any_rows
from checks.proofs.registry import Integer, Natural, Statement
from checks.proofs.vllm_v1.budget import ANY_REQUESTS, Turn, is_unfinished, taken, taken_back
from checks.proofs.vllm_v1.moves import of_every_run
from spec.core.arithmetic import Number, Truth, every, maximum
from spec.core.rows import Rows, all_of, total_of, with_row


class Share(NamedTuple):
    """The tokens that a request got in the step."""

    tokens: Number


@frozen
class Shares:
    """The shares of any number of requests in the step so far."""

    rows: Rows

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Requests with any such numbers."""
        return cls(any_rows(integer, "share", Share, ("tokens",)))


def are_within(shares: Rows, left: Number, budget: Number) -> Truth:
    """True if no share is negative, and the shares and the rest add up to the budget."""
    granted = total_of(shares, lambda share: share.tokens)
    naturals = all_of(shares, lambda share: share.tokens >= 0)
    return every([naturals, left >= 0, granted + left == budget, granted <= budget])


_of_the_budget = partial(of_every_run, rules=["V1-BUD-1"])


@_of_the_budget("PRV-V1-ANY-1", bounds=f"{ANY_REQUESTS}; a running request's turn")
def running_stays_within(shares: Shares, turn: Turn, budget: Number) -> Statement:
    """After a running request's turn, the tokens that all requests were given are still within the
    budget.
    """
    more = with_row(shares.rows, Share(maximum(turn.as_running, 0)))
    return Statement(
        are_within(more, taken(turn.left, turn.as_running), budget),
        [are_within(shares.rows, turn.left, budget)],
        rows=shares.rows,
    )


@_of_the_budget("PRV-V1-ANY-2", bounds=f"{ANY_REQUESTS}; an admission", given=is_unfinished)
def admitted_stay_within(shares: Shares, turn: Turn, budget: Number) -> Statement:
    """After an admission, the tokens that all requests were given are still within the budget."""
    more = with_row(shares.rows, Share(turn.as_waiting))
    return Statement(
        are_within(more, taken(turn.left, turn.as_waiting), budget),
        [are_within(shares.rows, turn.left, budget)],
        rows=shares.rows,
    )


@_of_the_budget("PRV-V1-ANY-3", bounds="any number of requests, every budget; a preemption")
def preempted_give_back(shares: Shares, victim: Natural, left: Number, budget: Number) -> Statement:
    """After a preemption, the tokens that all others were given are still within the budget."""
    before = with_row(shares.rows, Share(victim))
    return Statement(
        are_within(shares.rows, taken_back(left, victim), budget),
        [are_within(before, left, budget)],
        rows=shares.rows,
    )
