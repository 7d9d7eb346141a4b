"""What mutants came to: a score for each room and policy, and what is left to do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from checks.mutants.killing import SAME, Outcome
from checks.mutants.rooms import Module
from checks.mutants.trials import MEANS

ALIVE = "alive"
UNNOTICED = (ALIVE, "tests")  # by any trial
BY_RULE = ": rule"  # behind the means of a kill that names a rule
_COUNTS = (*MEANS, "tests", ALIVE, "equivalent", "rule", "score")
COLUMNS = ("room", "policy", ">mutants", *(f">{one}" for one in _COUNTS))


@define
class Score:
    """How many of the mutants of a room and policy were killed by which means.

    `rule`: how many kills name a rule. The others are differences between two systems, errors,
    what hangs, and obligations.
    """

    room: str
    policy: str
    killed: dict[str, int] = field(factory=lambda: dict.fromkeys((*MEANS, "tests"), 0))
    alive: int = 0
    equivalent: int = 0
    rule: int = 0

    @property
    def by_trials(self) -> int:
        """Killed by exploring, runs, random cases, proofs or what a release did."""
        return sum(self.killed[one] for one in MEANS)

    @property
    def mutants(self) -> int:
        """All, but for those that are the same program."""
        return sum(self.killed.values()) + self.alive + self.equivalent

    @property
    def percent(self) -> float:
        """Killed by any trial, of those that are not equivalent."""
        return 100 * self.by_trials / max(self.mutants - self.equivalent, 1)

    def count(self, means: str, *, is_listed: bool) -> None:
        """One more mutant; `means` as `means_of` says, `is_listed`: as equivalent."""
        kind = kind_of(means)
        if kind in self.killed:
            self.killed[kind] += 1
            self.rule += means.endswith(BY_RULE)
        elif means == ALIVE and is_listed:
            self.equivalent += 1
        elif means == ALIVE:
            self.alive += 1

    def row(self) -> tuple[str, ...]:
        """Its line in a table with `COLUMNS`."""
        counts = (*self.killed.values(), self.alive, self.equivalent, self.rule)
        return (
            self.room,
            self.policy,
            f"{self.mutants:,}",
            *(f"{count:,}" for count in counts),
            f"{self.percent:.1f} %",
        )

    def as_mapping(self) -> dict[str, Any]:
        """The counts by name, for a report."""
        return {
            "room": self.room,
            "policy": self.policy,
            "mutants": self.mutants,
            **self.killed,
            "alive": self.alive,
            "equivalent": self.equivalent,
            "rule": self.rule,
            "score": round(self.percent, 1),
        }


@frozen
class Findings:
    """All outcomes: `modules` of each mutant, and why some are equivalent, by id."""

    outcomes: Sequence[tuple[Module, Outcome]]
    equivalents: Mapping[str, str]

    def scores(self) -> list[Score]:
        """One for each room and policy, then one for all."""
        found: dict[tuple[str, str], Score] = {}
        for module, one in self.outcomes:
            key = (module.room, module.policy)
            for score in (found.setdefault(key, Score(*key)), found.setdefault(_ALL, Score(*_ALL))):
                score.count(means_of(one), is_listed=one.mutant.id in self.equivalents)
        total = found.pop(_ALL, Score(*_ALL))
        return [*found.values(), total] if len(found) > 1 else [*found.values()]

    @property
    def overlooked(self) -> list[Outcome]:
        """What no trial killed and no list explains, and what is listed although it was killed."""
        return [
            one
            for _, one in self.outcomes
            if is_overlooked(means_of(one), is_listed=one.mutant.id in self.equivalents)
        ]

    def as_mapping(self) -> dict[str, Any]:
        """Everything, for a report or a record; no times."""
        return {
            "scores": [one.as_mapping() for one in self.scores()],
            "overlooked": [_as_mapping(one) for one in self.overlooked],
            "killed_by": _by_rule(one for _, one in self.outcomes),
        }


_ALL = ("all", "")


def means_of(outcome: Outcome) -> str:
    """What killed a mutant, one of `MEANS` or tests; else that it is alive, or the same.

    Behind the means of a kill that names a rule stands `BY_RULE`.
    """
    if outcome.is_alive:
        return ALIVE
    return (outcome.means or SAME) + (BY_RULE if outcome.rule is not None else "")


def kind_of(means: str) -> str:
    """The means without whether a rule was named."""
    return means.removesuffix(BY_RULE)


def is_overlooked(means: str, *, is_listed: bool) -> bool:
    """True of what no trial killed and no list explains, and of what is listed and was killed."""
    return means == "tests" or (means == ALIVE) != is_listed


def lines(outcome: Outcome) -> Iterator[str]:
    """A survivor as people read it: where, and what stands there now."""
    mutant = outcome.mutant
    yield f"{mutant.path}:{mutant.line} {mutant.function}: {mutant.change}"
    if outcome.means == "tests":
        yield f"  noticed by a test alone: {outcome.by}"
    elif not outcome.is_alive:
        yield f"  listed as equivalent, and killed by {outcome.by} in {outcome.trial}"
    elif outcome.reached == 0:
        yield "  nothing that was tried runs this function"


def _as_mapping(outcome: Outcome) -> dict[str, Any]:
    mutant = outcome.mutant
    return {
        "mutant": mutant.id,
        "line": mutant.line,
        "operator": mutant.operator,
        "by": outcome.by,
        "trials": outcome.reached,
    }


def _by_rule(found: Iterable[Outcome]) -> dict[str, int]:
    """How many mutants each rule, guard or obligation killed."""
    counts: dict[str, int] = {}
    for one in found:
        if one.by is not None and one.by != SAME:
            counts[one.by] = counts.get(one.by, 0) + 1
    return dict(sorted(counts.items()))
