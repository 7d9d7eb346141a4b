"""The registry of obligations: claims for all lengths, to be proven or refuted.

An obligation is written with the functions that the reference runs, over numbers that its caller
chooses: the prover passes solver variables, a test or a replay passes integers.
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
Natural = Annotated[Number, 0]  # a parameter's annotation: its least value
Positive = Annotated[Number, 1]
STEP = "a step of the argument: "  # before the bounds of a claim that alone says little of a rule
ALL_WORDS = ("largest", "all", "count")  # of `spec.core.rows`
Basis = Callable[[], str | None]  # why evidence that rests on it is stale; None if it is not


class Verdict(StrEnum):
    """The verdict on an obligation; unknown, vacuous and stale are never success.

    Vacuous: no numbers satisfy the hypotheses.
    """

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    VACUOUS = "vacuous"
    STALE = "stale"


class Of(StrEnum):
    """The subject of a proven claim.

    Formula: the claim is true of all numbers. Machine: in addition the reference was compared with
    the moves that the claim speaks of, so that it is true of every run.
    """

    FORMULA = "formula"
    MACHINE = "machine"


def _as_tuple(facts: Iterable["Fact"]) -> tuple["Fact", ...]:
    return tuple(facts)


def _conjunction(claim: Truth | Iterable[Truth]) -> Truth:
    return every(claim) if isinstance(claim, Iterable) else claim


@frozen(eq=False, slots=False)
class Fact:
    """An instance of an obligation: its hypotheses imply its claim, for other numbers.

    It is made from the obligation's own statement; `instead` replaces its integers, records and
    rows by name. A fact cannot be written by hand, so that nothing is taken on trust.
    """

    obligation: str
    instead: Mapping[str, Any]

    @cached_property
    def truth(self) -> Truth:
        """The fact as a formula.

        Raises:
            ValueError: the obligation is not expected to be proven, a number is missing, or
                `instead` has an unknown name or a value of the wrong shape.
        """
        about = OBLIGATIONS[self.obligation]
        if about.expected is not Verdict.PROVEN:
            raise ValueError(f"{about.id} is not expected to be proven")

        def integer(name: str) -> Number:
            if name not in self.instead:
                raise ValueError(f"{about.id} needs a value for {name}")
            return self.instead[name]

        statement = about.statement(integer, **self.instead)
        return implies(every(statement.given), statement.claim)


def cite(id_: str, /, **instead: Any) -> Fact:
    """The instance of another obligation with these numbers."""
    return Fact(id_, instead)


@frozen
class Case:
    """One case of a statement: its condition, and facts about the numbers in it.

    `claim`: shown in this case instead of the statement's claim, which must follow from the cases.
    """

    condition: Truth
    known: Sequence[Fact] = field(default=(), converter=_as_tuple)
    claim: Truth | None = None


@frozen
class Statement:
    """`claim` holds for all numbers that satisfy everything `given`; several claims all hold.

    `known`: instances of other obligations for these numbers. They restrict nothing: the claim is
    true without them, but the solver would have to find them out again.

    `rows`: the rows of any number in the statement, if it has any. `words`: the words on rows for
    which the solver gets all facts; for other words only about instantiated witnesses. `opaque`:
    numbers that the solver sees as arbitrary, apart from what is given and known.

    `is_congruent`: the claim probably follows if products and quotients are unknown functions; the
    prover tries this first.

    `cases`: each case is decided separately, and also that the cases are complete. `parts`: the
    statement for each of several choices; each part is decided separately.
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
        """True of numbers that satisfy the hypotheses and break the claim."""
        return every([*self.hypotheses, negate(self.claim)])

    @property
    def hypotheses(self) -> list[Truth]:
        """The given conditions and the known facts."""
        return [*self.given, *self.facts]

    @property
    def facts(self) -> list[Truth]:
        """The known facts as formulas; those of a case hold under its condition."""
        of_cases = [
            implies(case.condition, fact.truth) for case in self.cases for fact in case.known
        ]
        return [*(fact.truth for fact in self.known), *of_cases]

    @property
    def cites(self) -> list[str]:
        """The ids of the cited obligations."""
        cited = [*self.known, *(fact for case in self.cases for fact in case.known)]
        return list(dict.fromkeys(fact.obligation for fact in cited))


@frozen
class Obligation:
    """One claim: `sentence` for all numbers within `bounds`; `rules`: the rules that it serves.

    `expected`: the verdict for a correct specification; a false claim of a text is stated as in the
    text and expected to be refuted. `scenario` turns the numbers of a refutation into a
    configuration and requests whose run breaks the rule. `basis` checks that the code still matches
    the claim. `of`: the claim is about the formula, or about every run of the machine, which the
    basis then compares. `where`: the configuration as keys and values; empty for every one.
    `every`: all numbers of the claim, if it is decided by checking each, since its code takes only
    numbers.
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

Written = Callable[..., Statement]  # a statement function, with a parameter for each number
_OTHERS = ("expected", "scenario", "basis", "of", "every")


def obligation(
    id_: str,
    *,
    bounds: str,
    rules: Sequence[str],
    sentence: str | None = None,
    given: Callable[..., Sequence[Truth]] | None = None,
    where: str = "",
    is_step: bool = False,
    each: Iterable[Mapping[str, Any]] = ({},),
    **case: Any,
) -> Callable[[Written], Written]:
    """Register the decorated function of numbers as a statement; returns it unchanged.

    The `sentence` is by default the first sentence of its docstring. Each parameter is the integer
    of that name, with the least value of its annotation, or a record of such integers. Exceptions:
    `integer` is the function that gives integers by name, and the keywords of `case` are passed
    as they are and also fill the braces in the sentence. `each`: values of further parameters, one
    mapping for each of several choices that are all claimed. `given`: a function with the same kind
    of parameters, for further hypotheses. `is_step`: the claim is only one step of an argument for
    its rules, as its bounds then say. The other fields of `Obligation` are given by their names.

    Raises:
        ValueError: another obligation has the id.
    """
    others = {name: case.pop(name) for name in _OTHERS if name in case}

    def register(written: Written) -> Written:
        if id_ in OBLIGATIONS:
            raise ValueError(f"two obligations are called {id_}")
        OBLIGATIONS[id_] = Obligation(
            id=id_,
            sentence=(sentence or sentence_of(written)).format(**case),
            bounds=f"{STEP}{bounds}" if is_step else bounds,
            rules=tuple(rules),
            statement=partial(_stated, id_, written, given, tuple(each), case),
            where=where.format(**case),
            **others,
        )
        return written

    return register


def written_statement(obligation: Obligation) -> Written:
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
    """The statement for these integers, with their least values and `given` as hypotheses.

    `instead`: replacements of integers and records by the parameter's name; if it names choices,
    only those are stated.

    Raises:
        ValueError: a replacement does not fit the statement.
    """
    bounds: dict[str, Truth] = {}
    used: set[str] = set()

    def named(name: str) -> Number:
        used.add(name)
        return integer(name)

    def substitute(name: str, annotation: Any, chosen: Mapping[str, Any]) -> Any:
        """The replacement of a parameter; for a record it must have as many numbers."""
        value = instead[name]
        if has(annotation) and not _has_same_shape(value, _pattern(annotation, chosen)):
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

    def choice_statement(choice: Mapping[str, Any]) -> Statement:
        own: Statement = _applied(written, {**fixed, **choice}, argument)
        return own

    fixed = {"integer": named, **case}
    choices = [choice for choice in each if _agree(choice, instead)]
    before = () if given is None else _applied(given, fixed, argument)
    stated = list(map(choice_statement, choices))
    if not choices or not _agree(case, instead) or not used >= instead.keys():
        raise ValueError(f"{id_} is not about {', '.join(instead)}")
    common = [*bounds.values(), *before]
    parts = [evolve(own, given=[*common, *own.given]) for own in stated]
    if len(parts) == 1:
        return parts[0]
    claims = [implies(every(own.given), own.claim) for own in stated]
    known = [fact for own in stated for fact in own.known]
    return Statement(claims, common, known, parts=parts)


def _applied(
    function: Callable[..., Any],
    chosen: Mapping[str, Any],
    argument: Callable[[str, Any, Mapping[str, Any]], Any],
) -> Any:
    """The function, called with arguments made by name and type.

    Parameters with a default get an argument only if `chosen` has one.
    """
    return function(
        **{
            name: argument(name, parameter.annotation, chosen)
            for name, parameter in signature(function).parameters.items()
            if name in chosen or parameter.default is Parameter.empty
        }
    )


def _pattern(record: Any, chosen: Mapping[str, Any]) -> Any:
    """A record with placeholders for its numbers."""

    def argument(name: str, annotation: Any, chosen: Mapping[str, Any]) -> Any:
        if name in chosen:
            return chosen[name]
        return _pattern(annotation, chosen) if has(annotation) else object()

    return _applied(_drawn(record), {**chosen, "integer": lambda _name: object()}, argument)


def _drawn(record: Any) -> Callable[..., Any]:
    """The function that makes a record from integers."""
    made: Callable[..., Any] = getattr(record, "drawn", record)
    return made


def _agree(chosen: Mapping[str, Any], instead: Mapping[str, Any]) -> bool:
    """True if `instead` has no other values for the chosen parameters."""
    shared = chosen.keys() & instead.keys()
    return all(type(instead[name]) is type(chosen[name]) for name in shared) and all(
        instead[name] == chosen[name] for name in shared
    )


def _has_same_shape(value: Any, pattern: Any) -> bool:
    """True if the value is a record or list with as many numbers; rows may be of any number."""
    if isinstance(pattern, AnyRows):
        return isinstance(value, AnyRows | Sequence)
    if has(type(pattern)):
        return type(value) is type(pattern) and all(
            _has_same_shape(getattr(value, number.name), getattr(pattern, number.name))
            for number in fields(type(pattern))
        )
    if isinstance(pattern, Sequence):
        return (
            isinstance(value, Sequence)
            and len(value) == len(pattern)
            and all(map(_has_same_shape, value, pattern))
        )
    return not isinstance(value, AnyRows | Sequence) and not has(type(value))


class Second(StrEnum):
    """The second solver's opinion on the first solver's verdict."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNDECIDED = "not decided"


@frozen
class Proof:
    """The result of proving an obligation.

    `seconds`: processor time. `numbers`: of a refutation, the value of each variable. `size`: the
    number of distinct terms in the questions. `reason`: why the solver gave up, or why the answer
    is stale. `cites`: the cited obligations. `second`: the opinion of a second solver.
    `is_unstated`: the claim cannot be stated for all numbers with these formulas.
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
        """True if the verdict is the expected one."""
        return self.verdict is OBLIGATIONS[self.obligation].expected

    def as_mapping(self) -> dict[str, Any]:
        """The proof with the obligation's text, for a JSON report."""
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
