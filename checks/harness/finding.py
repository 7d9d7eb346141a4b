"""Findings of an episode: their kinds, their names and messages, and the episode's counts."""

from collections import Counter
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from checks.harness.comparing import Difference
from checks.harness.situations import Profile
from checks.registry import RULES
from checks.words import counted

FOR_EVER = "a request waits for ever"  # cause of an endless episode; recordings contain this text


class Kind(StrEnum):
    """The kind of error."""

    DIVERGENCE = "divergence"  # a step differs from the reference's
    CRASH = "crash"  # the system raised
    BROKEN_RULE = "broken rule"  # the system's own step breaks a rule
    HELD = "held"  # all requests have left, and requests or blocks are still held
    ENDLESS = "endless"  # no end within the bound on steps
    REFERENCE = "reference"  # the reference stopped at a guard: a bug in the reference


Signature = tuple[Kind, str]
"""Kind and cause: findings with the same signature are the same; shrinking keeps it."""


@frozen
class Alone:
    """The system's own run of a divergent case, judged by the rules and compared with nothing.

    `steps`: the number of judged steps. `wrong`: the first unexpected finding, or None. `tokens`:
    true if every request got the tokens that it gets when it is served alone; None if unknown.
    `computed`: the simulated device did all the steps.
    """

    steps: int
    wrong: "Finding | None" = None
    tokens: bool | None = None
    computed: bool = False


@frozen
class Finding:
    """An error in a step of a system; every output prints its `headline` and `evidence`.

    `cause`: the first differing field, the rule, or the place of the error. `says`: one sentence.
    `followed`: rules that the reference followed in this step, each with its decision. `broken`:
    rules that the system's step breaks, each with the violation. `steps`: the reference's, up to
    this step. `alone`: of a divergence, the system's own run of the case.
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
        """The finding in the system's own run of a divergent case, if any; else this finding."""
        wrong = None if self.alone is None else self.alone.wrong
        return self if wrong is None else wrong

    @property
    def rule(self) -> str:
        """The rule that the system's own steps break, or empty."""
        return next((rule for rule, _ in self.primary.broken), "")

    @property
    def rule_or_kind(self) -> str:
        """The broken rule, else the kind: the value of "rule" in files."""
        return self.rule or self.primary.kind.replace(" ", "-")

    @property
    def name(self) -> str:
        """Identifies the finding among those of a system: equal names have one cause."""
        kind, cause = self.primary.signature
        if kind is Kind.DIVERGENCE:
            field = self.says.partition(" ")[0] or cause  # the same fault shows in several states
            return f"differs: {field.removeprefix('before.').removeprefix('planned.')}"
        return self.rule or (cause if kind is Kind.BROKEN_RULE else f"{kind}: {cause}")

    @property
    def headline(self) -> str:
        """One sentence: the broken rule, the error, or the differing field."""
        primary = self.primary
        if self.rule:
            return f"{self.rule} is broken: {RULES[self.rule].sentence}"
        if primary.kind in (Kind.DIVERGENCE, Kind.BROKEN_RULE):
            return primary.says
        return f"{primary.kind}: {primary.says}"

    @property
    def evidence(self) -> str:
        """The step, with the violation in it or the result of the steps after it."""
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


def _tokens(alone: Alone) -> str:
    if alone.tokens is None:
        return "whether its tokens equal those served alone is not known"
    if not alone.tokens:
        return "its tokens differ from those served alone"
    by = "as our device computes them" if alone.computed else "as it reports them"
    return f"its tokens equal those served alone, {by}"


@define
class Episode:
    """The outcome of a case.

    `steps`: compared steps; `judged`: steps judged by the rules; `on_device`: steps done by the
    simulated device. `counts`: occurrences of each kind of action. `pairs`: how often an event met
    a transition in its own step or the next, as "abort + own admit". `profiles`: of the transitions
    of the reference, see `checks.harness.situations`. `findings`: the first of each kind and cause;
    a comparison ends with one. `known`: the known difference that ended the episode. `overdue`:
    known differences that were due and did not show. `expected`: expected violations by rule.
    `not_evaluated`: rules about unreported fields, each with the field. `tokens`: if nothing is
    compared, true if every request got the tokens of serving it alone.
    """

    steps: int = 0
    judged: int = 0
    on_device: int = 0
    counts: Counter[str] = field(factory=Counter)
    pairs: Counter[str] = field(factory=Counter)
    profiles: set[Profile] = field(factory=set)
    findings: dict[Signature, Finding] = field(factory=dict)
    known: str | None = None
    overdue: Counter[str] = field(factory=Counter)
    expected: Counter[str] = field(factory=Counter)
    not_evaluated: dict[str, str] = field(factory=dict)
    tokens: bool | None = None

    @property
    def finding(self) -> Finding | None:
        """The first finding, or None."""
        return next(iter(self.findings.values()), None)

    def note(self, finding: Finding) -> None:
        """Add the finding, unless one with the same signature is known."""
        self.findings.setdefault(finding.signature, finding)
