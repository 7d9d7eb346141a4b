"""The registry of obligations: what is claimed for all lengths, to be proven or refuted.

An obligation is written with the functions that the reference runs, over numbers that somebody
else chooses: the prover hands in solver variables, a test or a replay hands in integers.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from attrs import field, frozen

from spec.core.arithmetic import Number, Truth, every, negate
from spec.core.configuration import PolicyConfig
from spec.core.requests import Request

Numbers = Mapping[str, int]
Scenario = Callable[[Numbers], tuple[PolicyConfig, list[Request]]]
Integer = Callable[[str], Number]  # the integer of this name, a variable or a chosen number


class Verdict(StrEnum):
    """What came out for an obligation; unknown is never success."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@frozen
class Statement:
    """`claim` holds for all numbers for which everything `given` holds.

    `known` is what other obligations prove of the same numbers, each named beside it. It restricts
    nothing, it shortens the way: without it the claim is as true, and the solver would have to
    find it out again. Tests hold that it follows from what is given.

    `tops`: if every number is given to be from 0 to a largest one, the largest by name. The prover
    then decides about numbers of so many bits.
    """

    given: Sequence[Truth]
    claim: Truth
    known: Sequence[Truth] = ()
    tops: Mapping[str, int] = field(factory=dict)

    @property
    def is_counterexample(self) -> Truth:
        """True of numbers that satisfy what is given and not the claim."""
        return every([*self.given, *self.known, negate(self.claim)])


@frozen
class Obligation:
    """One claim: `sentence` for all that `bounds` names, for the rules that it serves.

    `expected` is the verdict that a correct specification has: a false claim of a text is stated
    as it stands there, and expected to be refuted. `scenario` turns the numbers of a refutation
    into a configuration and requests on which the rule is broken in a run.
    """

    id: str
    sentence: str
    bounds: str
    rules: tuple[str, ...]
    statement: Callable[[Integer], Statement] = field(repr=False)
    expected: Verdict = Verdict.PROVEN
    thorough: bool = False
    scenario: Scenario | None = field(default=None, repr=False)


OBLIGATIONS: dict[str, Obligation] = {}


def obligation(
    id_: str,
    sentence: str,
    *,
    bounds: str,
    rules: Sequence[str],
    expected: Verdict = Verdict.PROVEN,
    thorough: bool = False,
    scenario: Scenario | None = None,
) -> Callable[[Callable[[Integer], Statement]], Callable[[Integer], Statement]]:
    """Register the decorated statement."""

    def register(statement: Callable[[Integer], Statement]) -> Callable[[Integer], Statement]:
        if id_ in OBLIGATIONS:
            raise ValueError(f"two obligations are called {id_}")
        OBLIGATIONS[id_] = Obligation(
            id_, sentence, bounds, tuple(rules), statement, expected, thorough, scenario
        )
        return statement

    return register
