"""Mutation scores for each room and policy, and the overlooked mutants."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from checks.mutants.killing import SAME, Outcome
from checks.mutants.rooms import Module
from checks.mutants.trials import MEANS

ALIVE = "alive"
UNNOTICED = (ALIVE, "tests")  # means of mutants that no trial killed
BY_RULE = ": rule"  # suffix of the means of a kill that names a rule
_COUNTS = (*MEANS, "tests", ALIVE, "equivalent", "rule", "score")
COLUMNS = ("room", "policy", ">mutants", *(f">{column}" for column in _COUNTS))


@define
class Score:
    """The mutation score of a room and policy: the number of killed mutants by means.

    `rule`: number of kills that name a rule. The other kills are differences between two systems,
    errors, hanging trials, and obligations.
    """

    room: str
    policy: str
    killed: dict[str, int] = field(factory=lambda: dict.fromkeys((*MEANS, "tests"), 0))
    alive: int = 0
    equivalent: int = 0
    rule: int = 0

    @property
    def by_trials(self) -> int:
        """Number of mutants killed by trials: exploring, runs, random cases, proofs, releases."""
        return sum(self.killed[means] for means in MEANS)

    @property
    def mutants(self) -> int:
        """Number of mutants, without those that are the same program."""
        return sum(self.killed.values()) + self.alive + self.equivalent

    @property
    def percent(self) -> float:
        """Percentage of the non-equivalent mutants that trials killed."""
        return 100 * self.by_trials / max(self.mutants - self.equivalent, 1)

    def count(self, means: str, *, is_listed: bool) -> None:
        """Count a mutant; `means`: see `kill_means`, `is_listed`: it is listed as equivalent."""
        kind = plain_means(means)
        if kind in self.killed:
            self.killed[kind] += 1
            self.rule += means.endswith(BY_RULE)
        elif means == ALIVE and is_listed:
            self.equivalent += 1
        elif means == ALIVE:
            self.alive += 1

    def row(self) -> tuple[str, ...]:
        """The row of a table with `COLUMNS`."""
        counts = (*self.killed.values(), self.alive, self.equivalent, self.rule)
        return (
            self.room,
            self.policy,
            f"{self.mutants:,}",
            *(f"{count:,}" for count in counts),
            f"{self.percent:.1f} %",
        )

    def as_mapping(self) -> dict[str, Any]:
        """The counts by name, for a JSON report."""
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
    """All outcomes, each with its module; `equivalents`: reasons by mutant id."""

    outcomes: Sequence[tuple[Module, Outcome]]
    equivalents: Mapping[str, str]

    def scores(self) -> list[Score]:
        """The scores of each room and policy, then the total."""
        scores: dict[tuple[str, str], Score] = {}
        total = Score(*_ALL)
        for module, outcome in self.outcomes:
            key = (module.room, module.policy)
            for score in (scores.setdefault(key, Score(*key)), total):
                score.count(kill_means(outcome), is_listed=outcome.mutant.id in self.equivalents)
        return [*scores.values(), total] if len(scores) > 1 else [*scores.values()]

    @property
    def overlooked(self) -> list[Outcome]:
        """Unlisted survivors, and mutants listed as equivalent although they were killed."""
        return [
            outcome
            for _, outcome in self.outcomes
            if is_overlooked(kill_means(outcome), is_listed=outcome.mutant.id in self.equivalents)
        ]

    def as_mapping(self) -> dict[str, Any]:
        """The findings for a JSON report or a record; without times."""
        return {
            "scores": [score.as_mapping() for score in self.scores()],
            "overlooked": [_as_mapping(outcome) for outcome in self.overlooked],
            "killed_by": _by_rule(outcome for _, outcome in self.outcomes),
        }


_ALL = ("all", "")


def kill_means(outcome: Outcome) -> str:
    """The means of a kill: one of `MEANS` or "tests"; else `ALIVE` or `SAME`.

    The suffix `BY_RULE` marks a kill that names a rule.
    """
    if outcome.is_alive:
        return ALIVE
    return (outcome.means or SAME) + (BY_RULE if outcome.rule is not None else "")


def plain_means(means: str) -> str:
    """The means without the suffix `BY_RULE`."""
    return means.removesuffix(BY_RULE)


def is_overlooked(means: str, *, is_listed: bool) -> bool:
    """True for an unlisted survivor, and for a listed mutant that was killed."""
    return means == "tests" or (means == ALIVE) != is_listed


def lines(outcome: Outcome) -> Iterator[str]:
    """The lines that report an overlooked mutant: its place, its change, and why it is reported."""
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


def _by_rule(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """The number of mutants killed by each rule, guard or obligation."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.by is not None and outcome.by != SAME:
            counts[outcome.by] = counts.get(outcome.by, 0) + 1
    return dict(sorted(counts.items()))
