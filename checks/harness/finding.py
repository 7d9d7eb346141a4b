"""What an episode can find, what it is called, and what became of the episode."""

from collections import Counter
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from checks.harness.comparing import Difference
from checks.registry import RULES
from checks.words import counted

FOR_EVER = "a request waits for ever"  # cause of an episode without an end; recordings have it


class Kind(StrEnum):
    """What is wrong."""

    DIVERGENCE = "divergence"  # a step differs from the reference's
    CRASH = "crash"  # the system raised
    BROKEN_RULE = "broken rule"  # the system's own step breaks a rule
    HELD = "held"  # all requests are gone and something is still held
    ENDLESS = "endless"  # no end within the bound on steps
    REFERENCE = "reference"  # the reference stopped at a guard: an error of ours


Signature = tuple[Kind, str]
"""Two findings with the same one count as the same; shrinking keeps it."""


@frozen
class Alone:
    """What a system does that serves the case of a finding by itself, compared with nothing.

    `steps`: how many were judged. `wrong`: what is wrong first that is not expected, or None.
    `tokens`: whether requests were given the tokens that they are given when served alone; None
    where that cannot be told. `computed`: a device of ours did all the steps, and so computed them.
    """

    steps: int
    wrong: "Finding | None" = None
    tokens: bool | None = None
    computed: bool = False


@frozen
class Finding:
    """What is wrong, in which step: all that shows a finding prints `headline` and `evidence`.

    `cause`: the first differing field, the rule, the place of the error. `says`: one sentence.
    `followed`: rules that the reference followed in this step, and in what. `broken`: rules that
    the system's step breaks, each with what was found. `steps`: the reference's, up to the one in
    question. `alone`: of a difference, what the system does where it goes on by itself.
    """

    kind: Kind
    step: int
    cause: str
    says: str
    differences: tuple[Difference, ...] = ()
    followed: tuple[tuple[str, str], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    steps: tuple[Any, ...] = field(default=(), repr=False, eq=False)
    alone: Alone | None = field(default=None, eq=False)

    @property
    def signature(self) -> Signature:
        """Its kind and its cause."""
        return self.kind, self.cause

    @property
    def primary(self) -> "Finding":
        """What is wrong by itself: of a difference what the system's own steps show, if they do."""
        wrong = None if self.alone is None else self.alone.wrong
        return self if wrong is None else wrong

    @property
    def rule(self) -> str:
        """The rule that the system's own steps break, or nothing."""
        return next((rule for rule, _ in self.primary.broken), "")

    @property
    def rule_or_kind(self) -> str:
        """The rule or, where none is broken, what is wrong: what files say in place of a rule."""
        return self.rule or self.primary.kind.replace(" ", "-")

    @property
    def name(self) -> str:
        """What identifies it among the findings of a system: two with the same have one cause."""
        kind, cause = self.primary.signature
        if kind is Kind.DIVERGENCE:
            return f"differs: {_of_any_state(self.says.partition(' ')[0] or cause)}"
        return self.rule or (cause if kind is Kind.BROKEN_RULE else f"{kind}: {cause}")

    @property
    def headline(self) -> str:
        """What is wrong, in a sentence: the rule, the error, or the field that differs."""
        primary = self.primary
        if self.rule:
            return f"{self.rule} is broken: {RULES[self.rule].sentence}"
        if primary.kind in (Kind.DIVERGENCE, Kind.BROKEN_RULE):
            return primary.says
        return f"{primary.kind}: {primary.says}"

    @property
    def evidence(self) -> str:
        """In which step, and what was found there or in the steps after it."""
        primary, alone = self.primary, self.alone
        where = f"in step {primary.step}"
        if self.kind is Kind.DIVERGENCE and primary is not self:
            where += ", where it goes on by itself" if primary.step != self.step else ""
        if self.rule:
            return f"found {where}: {dict(primary.broken)[self.rule]}"
        if primary.kind is not Kind.DIVERGENCE or alone is None:
            return where
        further = counted(max(alone.steps - self.step - 1, 0), "further step")
        return f"{where}; no rule broke in {further}; {_tokens(alone)}"


def _of_any_state(field: str) -> str:
    """A field of a record without the state that it is of: a fault shows in each of them."""
    return field.removeprefix("before.").removeprefix("planned.")


def _tokens(alone: Alone) -> str:
    if alone.tokens is None:
        return "whether its tokens equal those served alone is not known"
    if not alone.tokens:
        return "its tokens differ from those served alone"
    by = "as our device computes them" if alone.computed else "as it reports them"
    return f"its tokens equal those served alone, {by}"


@define
class Episode:
    """What became of a case.

    `steps`: compared; `judged`: held against the rules; `on_device`: done on a device of ours.
    `counts`: what happened, by kind of action; `pairs`: how often an event met a transition, in its
    own step or the next, as "abort + own admit". `findings`: of each kind and cause the first; a
    comparison ends with one. `known`: the known difference with which it ended. `overdue`: known
    differences that had to show and did not. `expected`: rules broken where it is known that they
    do not hold, by id. `not_evaluated`: rules that ask for what the system does not report, with
    what that is. `tokens`: where nothing is compared, whether requests were given the tokens of
    those served alone.
    """

    steps: int = 0
    judged: int = 0
    on_device: int = 0
    counts: Counter[str] = field(factory=Counter)
    pairs: Counter[str] = field(factory=Counter)
    findings: dict[Signature, Finding] = field(factory=dict)
    known: str | None = None
    overdue: Counter[str] = field(factory=Counter)
    expected: Counter[str] = field(factory=Counter)
    not_evaluated: dict[str, str] = field(factory=dict)
    tokens: bool | None = None

    @property
    def finding(self) -> Finding | None:
        """What is wrong first."""
        return next(iter(self.findings.values()), None)

    def note(self, finding: Finding) -> None:
        """Take in what is wrong, unless the same is known already."""
        self.findings.setdefault(finding.signature, finding)
