"""The registry of obligations: what is claimed for all lengths, to be proven or refuted.

An obligation is written with the functions that the reference runs, over numbers that are chosen
elsewhere: the prover hands in solver variables, a test or a replay hands in integers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any

from attrs import evolve, field, frozen, has

from spec.core.arithmetic import Number, Truth, every, implies, negate
from spec.core.configuration import PolicyConfig
from spec.core.requests import Request
from spec.core.rule import sentence_of

Numbers = Mapping[str, int]
Scenario = Callable[[Numbers], tuple[PolicyConfig, list[Request]]]
Integer = Callable[[str], Number]  # the integer of this name, a variable or a chosen number
Natural = Annotated[Number, 0]  # of a parameter: it is given to be at least so much
Positive = Annotated[Number, 1]
ALL_WORDS = ("largest", "all", "count")  # of `spec.core.rows`
Basis = Callable[[], str | None]  # why evidence that rests on it is stale; None if it is not


class Verdict(StrEnum):
    """What came out for an obligation; unknown and stale are never success."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    STALE = "stale"


def _conjunction(claim: Truth | Iterable[Truth]) -> Truth:
    """The claim itself, or that all of several hold."""
    return every(claim) if isinstance(claim, Iterable) else claim


@frozen
class Fact:
    """What an obligation says of some numbers: its claim, where what it is given holds."""

    obligation: str
    truth: Truth


@frozen
class Statement:
    """`claim` holds for all numbers for which everything `given` holds; several are all claimed.

    `known` is what other obligations say of these numbers. It restricts nothing, it shortens the
    way: without it the claim is as true, and the solver would have to find it out again. A `Fact`
    is an instance of what an obligation claims for all, made by `cite`; of a formula that is
    written here again, and names its obligation beside it, tests hold that it follows from what is
    given.

    `rows`: those of any number that the statement speaks of, if it does. `words`: of which words on
    them all that follows from their meaning is used, besides what is looked at. `opaque`: numbers
    that the solver sees as any numbers, of which nothing holds but what is given and known.

    `tops`: if every number is given to be from 0 to a largest one, the largest by name. The prover
    then decides about numbers of so many bits.
    """

    claim: Truth = field(converter=_conjunction)
    given: Sequence[Truth] = ()
    known: Iterable[Fact | Truth] = ()
    tops: Mapping[str, int] = field(factory=dict)
    rows: Any = None
    words: Collection[str] = ALL_WORDS
    opaque: Sequence[Number] = ()

    @property
    def is_counterexample(self) -> Truth:
        """True of numbers that satisfy what is given and not the claim."""
        return every([*self.given, *self.facts, negate(self.claim)])

    @property
    def facts(self) -> list[Truth]:
        """What is known, as it stands."""
        return [one.truth if isinstance(one, Fact) else one for one in self.known]


@frozen
class Obligation:
    """One claim: `sentence` for all that `bounds` names, for the rules that it serves.

    `expected` is the verdict that a correct specification has: a false claim of a text is stated
    as it stands there, and expected to be refuted. `scenario` turns the numbers of a refutation
    into a configuration and requests on which the rule is broken in a run. `basis` says whether
    the code still is what the claim speaks of; None if nothing but formulas is claimed about.
    """

    id: str
    sentence: str
    bounds: str
    rules: tuple[str, ...]
    statement: Callable[..., Statement] = field(repr=False)  # of an `Integer`, and substitutions
    expected: Verdict = Verdict.PROVEN
    thorough: bool = False
    scenario: Scenario | None = field(default=None, repr=False)
    basis: Basis | None = field(default=None, repr=False)


OBLIGATIONS: dict[str, Obligation] = {}

Written = Callable[..., Statement]  # a statement as it is written, a parameter for each number


def obligation(
    id_: str,
    *,
    bounds: str,
    rules: Sequence[str],
    sentence: str | None = None,
    given: Callable[..., Sequence[Truth]] | None = None,
    expected: Verdict = Verdict.PROVEN,
    thorough: bool = False,
    scenario: Scenario | None = None,
    basis: Basis | None = None,
    each: Iterable[Mapping[str, Any]] = ({},),
    **case: Any,
) -> Callable[[Written], Written]:
    """Register the decorated function of numbers as a statement; it is returned as it was.

    Unless a `sentence` is given, its docstring begins with it. Each of its parameters is the
    integer of that name, given to be at least what its type says, or a record of such integers;
    but for `integer`, which is the choice of integers itself, and for those of the `case`, which
    also fills the braces in the sentence. `each`: what further parameters are, where it is claimed
    of several choices. `given` is written alike: what is given besides.

    Raises:
        ValueError: another obligation has the id.
    """

    def register(written: Written) -> Written:
        if id_ in OBLIGATIONS:
            raise ValueError(f"two obligations are called {id_}")
        OBLIGATIONS[id_] = Obligation(
            id=id_,
            sentence=(sentence or sentence_of(written)).format(**case),
            bounds=bounds,
            rules=tuple(rules),
            statement=partial(_stated, written, given, tuple(each), case),
            expected=expected,
            thorough=thorough,
            scenario=scenario,
            basis=basis,
        )
        return written

    return register


def _stated(
    written: Written,
    given: Callable[..., Sequence[Truth]] | None,
    each: Iterable[Mapping[str, Any]],
    case: Mapping[str, Any],
    integer: Integer,
    **instead: Any,
) -> Statement:
    """The statement of these integers; given are their bounds, and what is given besides.

    `instead`: what to speak of instead of an integer or a record, by the parameter's name.
    """
    bounds: dict[str, Truth] = {}

    def applied(function: Callable[..., Any], chosen: Mapping[str, Any]) -> Any:
        def argument(name: str, annotation: Any) -> Any:
            if name in chosen:
                return chosen[name]
            drawn = getattr(annotation, "drawn", annotation)  # how a record is made of integers
            if name in instead:
                value = instead[name]
            else:
                value = applied(drawn, chosen) if has(annotation) else integer(name)
            for least in getattr(annotation, "__metadata__", ()):
                bounds[name] = value >= least
            return value

        return function(
            **{
                name: argument(name, parameter.annotation)
                for name, parameter in signature(function).parameters.items()
                if name in chosen or parameter.default is Parameter.empty
            }
        )

    fixed = {"integer": integer, **case}
    before = () if given is None else applied(given, fixed)
    first, *others = (applied(written, {**fixed, **one}) for one in each)
    claim = [first.claim, *(one.claim for one in others)] if others else first.claim
    stated: Statement = evolve(first, claim=claim, given=[*bounds.values(), *before, *first.given])
    return stated


def cite(id_: str, **instead: Any) -> Fact:
    """What another obligation says of these numbers instead of those that it is stated with.

    Nothing is taken on trust: the fact is made of the obligation's own statement, and says its
    claim only where all that it is given holds. `instead`: by name, each of its integers, records
    and rows.

    Raises:
        ValueError: the obligation is not expected to be proven, or one of its numbers is missing.
    """
    obligation = OBLIGATIONS[id_]
    if obligation.expected is not Verdict.PROVEN:
        raise ValueError(f"{id_} is not expected to be proven")

    def integer(name: str) -> Number:
        if name not in instead:
            raise ValueError(f"{id_} speaks of {name}, which is not said")
        return instead[name]

    statement = obligation.statement(integer, **instead)
    return Fact(id_, implies(every(statement.given), statement.claim))


@frozen
class Proof:
    """What the solver said of an obligation.

    `numbers`: of a refutation, a value for each variable that breaks the claim. `size`: distinct
    terms that the solver was given. `reason`: why it gave up, or why the answer is stale.
    """

    obligation: str
    verdict: Verdict
    seconds: float
    size: int
    numbers: dict[str, int]
    reason: str = ""

    @property
    def is_as_expected(self) -> bool:
        """True if the verdict is the one that a correct specification has."""
        return self.verdict is OBLIGATIONS[self.obligation].expected

    def as_mapping(self) -> dict[str, Any]:
        """All of it, with the obligation's text, for a JSON report."""
        about = OBLIGATIONS[self.obligation]
        return {
            "obligation": about.id,
            "says": about.sentence,
            "bounds": about.bounds,
            "rules": list(about.rules),
            "verdict": self.verdict.value,
            "expected": about.expected.value,
            "seconds": round(self.seconds, 3),
            "size": self.size,
            "numbers": self.numbers,
            "reason": self.reason,
        }
