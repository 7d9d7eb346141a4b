"""What an episode can find, and what it is called."""

from collections import Counter
from enum import StrEnum

from attrs import field, frozen

from checks.fuzz.compare import Difference
from spec.spyre.records import Step


class Kind(StrEnum):
    """What is wrong."""

    DIVERGENCE = "divergence"  # a step differs from the reference's
    CRASH = "crash"  # the target raised
    BROKEN_RULE = "broken rule"  # the target's own step breaks a rule
    HELD = "held"  # nobody is left and something is still held
    ENDLESS = "endless"  # no end within the bound on steps
    REFERENCE = "reference"  # the reference stopped at a guard: an error of ours


@frozen
class Finding:
    """What is wrong, in which step.

    `cause`: the first differing field, the rule, the type of the error. `says`: one sentence.
    `followed`: the rule that the reference followed where the target did not, and in what.
    `broken`: rules that the target's step breaks by itself, each with what was found. `steps`: the
    reference's, up to the one in question.
    """

    kind: Kind
    step: int
    cause: str
    says: str
    differences: tuple[Difference, ...] = ()
    followed: tuple[str, str] | None = None
    broken: tuple[tuple[str, str], ...] = ()
    steps: tuple[Step, ...] = field(default=(), repr=False, eq=False)

    @property
    def signature(self) -> tuple[Kind, str]:
        """Two findings with the same one count as the same; shrinking keeps it."""
        return self.kind, self.cause

    @property
    def rule(self) -> str:
        """The rule that names it best: one that the target breaks, else the reference's."""
        if self.broken:
            return self.broken[0][0]
        return self.kind.replace(" ", "-") if self.followed is None else self.followed[0]


@frozen
class Episode:
    """What became of a case: steps compared, what happened in them, what was found.

    `known`: rules broken where it is known that they do not hold, by id.
    """

    steps: int
    counts: Counter[str]
    finding: Finding | None
    known: Counter[str]
