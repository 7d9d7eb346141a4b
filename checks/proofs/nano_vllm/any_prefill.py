"""Obligations about a prefill step of nano-vLLM with any number of sequences.

What a step computes is the sum of what its sequences have not cached, any number of them. A step
begins with none, and each sequence that passes the token gate leaves the sum within the budget
(PRV-NANO-ANY-1A, 1B). So by induction over the sequences no prefill step exceeds it.
"""

from typing import NamedTuple, Self

from attrs import frozen

from checks.proofs.any_rows import any_rows
from checks.proofs.nano_vllm.moves import of_every_run
from checks.proofs.registry import Integer, Natural, Statement
from spec.core.arithmetic import Number, implies
from spec.core.rows import Rows, total_of, with_row
from spec.nano_vllm.config import TokenGate
from spec.nano_vllm.formulas import counted_tokens, within_budget


class Prefill(NamedTuple):
    """A sequence of the step: its tokens, and how many of them are cached."""

    length: Number
    cached: Number


@frozen
class Batch:
    """Any number of sequences that the step has admitted."""

    rows: Rows

    @classmethod
    def drawn(cls, integer: Integer) -> Self:
        """Sequences with any such numbers."""
        return cls(any_rows(integer, "sequence", Prefill, ("length", "cached")))


def computed(rows: Rows) -> Number:
    """Tokens that the step computes."""
    return total_of(rows, lambda sequence: sequence.length - sequence.cached)


def every_batch_is_within_the_budget(
    batch: Batch, length: Natural, cached: Natural, budget: Number, gate: TokenGate
) -> Statement:
    """With each sequence that passes the token gate ({gate}) the tokens that the step computes stay
    within the budget.
    """
    passes = within_budget(computed(batch.rows), counted_tokens(length, cached, gate), budget)
    more = with_row(batch.rows, Prefill(length, cached))
    return Statement(
        implies(passes, computed(more) <= budget),
        [computed(batch.rows) <= budget, cached <= length],
        rows=batch.rows,
    )


for _letter, _gate in zip("AB", TokenGate, strict=True):
    of_every_run(
        f"PRV-NANO-ANY-1{_letter}",
        where=f"token_gate={_gate}",
        bounds="any number of sequences; every length, hit and budget",
        rules=["NANO-ADM-1"],
        gate=_gate,
    )(every_batch_is_within_the_budget)
