"""The registry of obligations: what is claimed for all lengths, to be proven or refuted.

An obligation is written with the functions that the reference runs, over numbers that are chosen
elsewhere: the prover hands in solver variables, a test or a replay hands in integers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial
from inspect import Parameter, signature
from typing import Annotated, Any

from attrs import evolve, field, fields, frozen, has

from spec.core.arithmetic import Number, Truth, every, implies, negate
from spec.core.configuration import PolicyConfig
from spec.core.requests import Request
from spec.core.rows import AnyRows
from spec.core.rule import sentence_of

Numbers = Mapping[str, int]
Scenario = Callable[[Numbers], tuple[PolicyConfig, list[Request]]]
Integer = Callable[[str], Number]  # the integer of this name, a variable or a chosen number
Natural = Annotated[Number, 0]  # of a parameter: it is given to be at least so much
Positive = Annotated[Number, 1]
STEP = "a step of the argument: "  # before the bounds of what alone says little of a rule
ALL_WORDS = ("largest", "all", "count")  # of `spec.core.rows`
Basis = Callable[[], str | None]  # why evidence that rests on it is stale; None if it is not


class Verdict(StrEnum):
    """What came out for an obligation; unknown, vacuous and stale are never success.

    Vacuous: true of all numbers that are spoken of, because there are none.
    """

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    VACUOUS = "vacuous"
    STALE = "stale"


class Of(StrEnum):
    """What a proven claim is about.

    Of the formula: the claim is true of all numbers. Of every run of the machine: moreover the
    reference makes the moves that the claim speaks of, which is compared before it is said.
    """

    FORMULA = "formula"
    MACHINE = "machine"


def _as_tuple(facts: Iterable["Fact"]) -> tuple["Fact", ...]:
    return tuple(facts)


def _conjunction(claim: Truth | Iterable[Truth]) -> Truth:
    """The claim itself, or that all of several hold."""
    return every(claim) if isinstance(claim, Iterable) else claim


@frozen(eq=False, slots=False)
class Fact:
    """What an obligation says of some numbers: its claim, where all that it is given holds.

    It is made of the obligation's own statement, with `instead` in the place of its integers,
    records and rows by their names. Nothing is taken on trust: a fact cannot be written by hand.
    """

    obligation: str
    instead: Mapping[str, Any]

    @cached_property
    def truth(self) -> Truth:
        """The fact as it stands.

        Raises:
            ValueError: the obligation is not expected to be proven, one of its numbers is missing,
                it has none of that name, or another one there.
        """
        about = OBLIGATIONS[self.obligation]
        if about.expected is not Verdict.PROVEN:
            raise ValueError(f"{about.id} is not expected to be proven")

        def integer(name: str) -> Number:
            if name not in self.instead:
                raise ValueError(f"{about.id} speaks of {name}, which is not said")
            return self.instead[name]

        statement = about.statement(integer, **self.instead)
        return implies(every(statement.given), statement.claim)


def cite(id_: str, /, **instead: Any) -> Fact:
    """What another obligation says of these numbers instead of those that it is stated with."""
    return Fact(id_, instead)


@frozen
class Case:
    """One way in which what is given can hold, and what is known of the numbers then.

    `claim`: what is shown there, if it is not the statement's claim, of which that follows.
    """

    condition: Truth
    known: Sequence[Fact] = field(default=(), converter=_as_tuple)
    claim: Truth | None = None


@frozen
class Statement:
    """`claim` holds for all numbers for which everything `given` holds; several are all claimed.

    `known` is what other obligations say of these numbers. It restricts nothing, it shortens the
    way: without it the claim is as true, and the solver would have to find it out again.

    `rows`: those of any number that the statement speaks of, if it does. `words`: of which words on
    them all that follows from their meaning is used, besides what is looked at. `opaque`: numbers
    that the solver sees as any numbers, of which nothing holds but what is given and known.

    `is_congruent`: it seems to follow without knowing what is multiplied and divided, save that of
    equal numbers the products are equal; the prover first tries so.

    `cases`: each is decided by itself, and that one of them holds wherever all that is given does.
    `parts`: what is claimed of each of several choices; each is decided by itself, too.
    """

    claim: Truth = field(converter=_conjunction)
    given: Sequence[Truth] = ()
    known: Sequence[Fact] = field(default=(), converter=_as_tuple)
    rows: Any = None
    words: Collection[str] = ALL_WORDS
    opaque: Sequence[Number] = ()
    is_congruent: bool = False
    cases: Sequence[Case] = ()
    parts: Sequence["Statement"] = ()

    @property
    def is_counterexample(self) -> Truth:
        """True of numbers that satisfy what is given and not the claim."""
        return every([*self.hypotheses, negate(self.claim)])

    @property
    def hypotheses(self) -> list[Truth]:
        """What is given and what is known."""
        return [*self.given, *self.facts]

    @property
    def facts(self) -> list[Truth]:
        """What is known, as it stands."""
        of_cases = [implies(one.condition, fact.truth) for one in self.cases for fact in one.known]
        return [*(one.truth for one in self.known), *of_cases]

    @property
    def cites(self) -> list[str]:
        """The obligations of which something is known."""
        cited = [*self.known, *(fact for one in self.cases for fact in one.known)]
        return list(dict.fromkeys(fact.obligation for fact in cited))


@frozen
class Obligation:
    """One claim: `sentence` for all that `bounds` names, for the rules that it serves.

    `expected` is the verdict that a correct specification has: a false claim of a text is stated
    as it stands there, and expected to be refuted. `scenario` turns the numbers of a refutation
    into a configuration and requests on which the rule is broken in a run. `basis` says whether
    the code still is what the claim speaks of; `of`: of the formula alone, or of every run of the
    machine, to which the basis then ties it. `where`: the configuration that it is about, as keys
    and values; empty: every one.
    `every`: all numbers that it is about, where it is decided by looking at each: it speaks of code
    that takes nothing but numbers.
    """

    id: str
    sentence: str
    bounds: str
    rules: tuple[str, ...]
    statement: Callable[..., Statement] = field(repr=False)  # of an `Integer`, and substitutions
    expected: Verdict = Verdict.PROVEN
    scenario: Scenario | None = field(default=None, repr=False)
    basis: Basis | None = field(default=None, repr=False)
    of: Of = Of.FORMULA
    where: str = ""
    every: Callable[[], Iterable[Numbers]] | None = field(default=None, repr=False)


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
    scenario: Scenario | None = None,
    basis: Basis | None = None,
    of: Of = Of.FORMULA,
    where: str = "",
    is_step: bool = False,
    every: Callable[[], Iterable[Numbers]] | None = None,
    each: Iterable[Mapping[str, Any]] = ({},),
    **case: Any,
) -> Callable[[Written], Written]:
    """Register the decorated function of numbers as a statement; it is returned as it was.

    Unless a `sentence` is given, its docstring begins with it. Each of its parameters is the
    integer of that name, given to be at least what its type says, or a record of such integers;
    but for `integer`, which is the choice of integers itself, and for those of the `case`, which
    also fills the braces in the sentence. `each`: what further parameters are, where it is claimed
    of several choices. `given` is written alike: what is given besides. `is_step`: for its rules it
    is one step of an argument and no more, which its bounds then say.

    Raises:
        ValueError: another obligation has the id.
    """

    def register(written: Written) -> Written:
        if id_ in OBLIGATIONS:
            raise ValueError(f"two obligations are called {id_}")
        OBLIGATIONS[id_] = Obligation(
            id=id_,
            sentence=(sentence or sentence_of(written)).format(**case),
            bounds=f"{STEP}{bounds}" if is_step else bounds,
            rules=tuple(rules),
            statement=partial(_stated, id_, written, given, tuple(each), case),
            expected=expected,
            scenario=scenario,
            basis=basis,
            of=of,
            where=where.format(**case),
            every=every,
        )
        return written

    return register


def written_of(obligation: Obligation) -> Written:
    """The function that was registered as the obligation's statement."""
    stated: Any = obligation.statement
    written: Written = stated.args[1]
    return written


def _stated(
    id_: str,
    written: Written,
    given: Callable[..., Sequence[Truth]] | None,
    each: Sequence[Mapping[str, Any]],
    case: Mapping[str, Any],
    integer: Integer,
    /,
    **instead: Any,
) -> Statement:
    """The statement of these integers; given are their bounds, and what is given besides.

    `instead`: what to speak of instead of an integer or a record, by the parameter's name; of the
    choices that it names, only those are stated.

    Raises:
        ValueError: it is not about such numbers.
    """
    bounds: dict[str, Truth] = {}
    used: set[str] = set()

    def named(name: str) -> Number:
        used.add(name)
        return integer(name)

    def substitute(name: str, annotation: Any, chosen: Mapping[str, Any]) -> Any:
        """What stands instead of a record: it has as many numbers as a drawn one."""
        value = instead[name]
        if has(annotation) and not _has_the_shape_of(value, _pattern(annotation, chosen)):
            raise ValueError(f"{id_} is not about a {name} of that many numbers")
        return value

    def argument(name: str, annotation: Any, chosen: Mapping[str, Any]) -> Any:
        used.add(name)
        if name in chosen:
            return chosen[name]
        if name in instead:
            value = substitute(name, annotation, chosen)
        elif has(annotation):
            value = _applied(_drawn(annotation), chosen, argument)
        else:
            value = named(name)
        for least in getattr(annotation, "__metadata__", ()):
            bounds[name] = value >= least
        return value

    def statement_of(one: Mapping[str, Any]) -> Statement:
        own: Statement = _applied(written, {**fixed, **one}, argument)
        return own

    fixed = {"integer": named, **case}
    choices = [one for one in each if _agree(one, instead)]
    before = () if given is None else _applied(given, fixed, argument)
    stated = [statement_of(one) for one in choices]
    if not choices or not _agree(case, instead) or not used >= instead.keys():
        raise ValueError(f"{id_} is not about {', '.join(instead)}")
    common = [*bounds.values(), *before]
    parts = [evolve(one, given=[*common, *one.given]) for one in stated]
    if len(parts) == 1:
        return parts[0]
    claims = [implies(every(one.given), one.claim) for one in stated]
    known = [fact for one in stated for fact in one.known]
    return Statement(claims, common, known, parts=parts)


def _applied(
    function: Callable[..., Any],
    chosen: Mapping[str, Any],
    argument: Callable[[str, Any, Mapping[str, Any]], Any],
) -> Any:
    """The function of arguments made by name and type; of those that have a default, if chosen."""
    return function(
        **{
            name: argument(name, parameter.annotation, chosen)
            for name, parameter in signature(function).parameters.items()
            if name in chosen or parameter.default is Parameter.empty
        }
    )


def _pattern(record: Any, chosen: Mapping[str, Any]) -> Any:
    """A record of no numbers in particular."""

    def argument(name: str, annotation: Any, chosen: Mapping[str, Any]) -> Any:
        if name in chosen:
            return chosen[name]
        return _pattern(annotation, chosen) if has(annotation) else object()

    return _applied(_drawn(record), {**chosen, "integer": lambda _name: object()}, argument)


def _drawn(record: Any) -> Callable[..., Any]:
    """How a record is made of integers."""
    made: Callable[..., Any] = getattr(record, "drawn", record)
    return made


def _agree(chosen: Mapping[str, Any], instead: Mapping[str, Any]) -> bool:
    """True if nothing else is said of what is chosen."""
    shared = chosen.keys() & instead.keys()
    return all(type(instead[one]) is type(chosen[one]) for one in shared) and all(
        instead[one] == chosen[one] for one in shared
    )


def _has_the_shape_of(value: Any, pattern: Any) -> bool:
    """True if the value is a record or a list of as many numbers; rows may be of any number."""
    if isinstance(pattern, AnyRows):
        return isinstance(value, AnyRows | Sequence)
    if has(type(pattern)):
        return type(value) is type(pattern) and all(
            _has_the_shape_of(getattr(value, one.name), getattr(pattern, one.name))
            for one in fields(type(pattern))
        )
    if isinstance(pattern, Sequence):
        return (
            isinstance(value, Sequence)
            and len(value) == len(pattern)
            and all(map(_has_the_shape_of, value, pattern))
        )
    return not isinstance(value, AnyRows | Sequence) and not has(type(value))


class Second(StrEnum):
    """What the second solver says of the first one's verdict."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNDECIDED = "not decided"


@frozen
class Proof:
    """What the solver said of an obligation.

    `numbers`: of a refutation, a value for each variable that breaks the claim. `size`: distinct
    terms that the solver was given. `reason`: why it gave up, or why the answer is stale. `cites`:
    obligations whose instances it was given. `second`: what a second solver says of the verdict.
    `is_unstated`: the formulas do not allow to state the claim for all numbers.
    """

    obligation: str
    verdict: Verdict
    seconds: float
    size: int = 0
    numbers: dict[str, int] = field(factory=dict)
    reason: str = ""
    cites: tuple[str, ...] = ()
    second: str = ""
    is_unstated: bool = False

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
            "of": about.of.value,
            "where": about.where,
            "expected": about.expected.value,
            "seconds": round(self.seconds, 3),
            "size": self.size,
            "numbers": self.numbers,
            "reason": self.reason,
            "cites": list(self.cites),
            "second": self.second,
        }
