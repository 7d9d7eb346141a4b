"""What an episode can find, what it is called, and what became of the episode."""

from collections import Counter
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from checks.harness.comparing import Difference

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
class Finding:
    """What is wrong, in which step.

    `cause`: the first differing field, the rule, the place of the error. `says`: one sentence.
    `followed`: rules that the reference followed where the system did not, and in what. `broken`:
    rules that the system's step breaks by itself, each with what was found. `steps`: the
    reference's, up to the one in question.
    """

    kind: Kind
    step: int
    cause: str
    says: str
    differences: tuple[Difference, ...] = ()
    followed: tuple[tuple[str, str], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    steps: tuple[Any, ...] = field(default=(), repr=False, eq=False)

    @property
    def signature(self) -> Signature:
        """Its kind and its cause."""
        return self.kind, self.cause

    @property
    def rule(self) -> str:
        """The rule that names it best: one that the system breaks, else the reference's."""
        rules = [rule for rule, _ in (*self.broken, *self.followed)]
        return rules[0] if rules else self.kind.replace(" ", "-")


@define
class Episode:
    """What became of a case.

    `steps`: compared; `judged`: held against the rules; `on_device`: done on a device of ours.
    `counts`: what happened, by kind of action; `pairs`: how often an event met a transition, in its
    own step or the next, as "abort + own admit". `findings`: of each kind and cause the first; a
    comparison ends with one. `known`: the known difference with which it ended. `overdue`: known
    differences that had to show and did not. `expected`: rules broken where it is known that they
    do not hold, by id. `not_evaluated`: rules that ask for what the system does not report, with
    what that is.
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

    @property
    def finding(self) -> Finding | None:
        """What is wrong first."""
        return next(iter(self.findings.values()), None)

    def note(self, finding: Finding) -> None:
        """Take in what is wrong, unless the same is known already."""
        self.findings.setdefault(finding.signature, finding)
