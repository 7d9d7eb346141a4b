"""What mutants came to: a score for each room and policy, and what is left to do."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from checks.mutants.killing import SAME, Outcome
from checks.mutants.rooms import Module
from checks.mutants.trials import MEANS

_COUNTS = (*MEANS, "tests", "alive", "equivalent", "score")
COLUMNS = ("room", "policy", ">mutants", *(f">{one}" for one in _COUNTS))


@define
class Score:
    """How many of the mutants of a room and policy were killed by which means."""

    room: str
    policy: str
    killed: dict[str, int] = field(factory=lambda: dict.fromkeys((*MEANS, "tests"), 0))
    alive: int = 0
    equivalent: int = 0

    @property
    def by_rules(self) -> int:
        """Killed by exploring, random cases or proofs."""
        return sum(self.killed[one] for one in MEANS)

    @property
    def mutants(self) -> int:
        """All, but for those that are the same program."""
        return sum(self.killed.values()) + self.alive + self.equivalent

    @property
    def percent(self) -> float:
        """Killed by rules, of those that are not equivalent."""
        return 100 * self.by_rules / max(self.mutants - self.equivalent, 1)

    def row(self) -> tuple[str, ...]:
        """Its line in a table with `COLUMNS`."""
        counts = (*self.killed.values(), self.alive, self.equivalent)
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
                self._count(score, one)
        total = found.pop(_ALL, Score(*_ALL))
        return [*found.values(), total] if len(found) > 1 else [*found.values()]

    def _count(self, score: Score, one: Outcome) -> None:
        if one.by == SAME:
            return
        if one.by is not None:
            score.killed[one.means] += 1
        elif one.mutant.id in self.equivalents:
            score.equivalent += 1
        else:
            score.alive += 1

    @property
    def overlooked(self) -> list[Outcome]:
        """What no rule killed and no list explains, and what is listed although it was killed."""
        return [one for _, one in self.outcomes if self._is_listed(one) != self._is_unruly(one)]

    @staticmethod
    def _is_unruly(one: Outcome) -> bool:
        return one.is_alive or one.means == "tests"

    def _is_listed(self, one: Outcome) -> bool:
        return one.mutant.id in self.equivalents

    def as_mapping(self) -> dict[str, Any]:
        """Everything, for a report or a record; no times."""
        return {
            "scores": [one.as_mapping() for one in self.scores()],
            "overlooked": [_as_mapping(one) for one in self.overlooked],
            "killed_by": _by_rule(one for _, one in self.outcomes),
        }

    def recordable(self, whole: Mapping[str, int]) -> dict[str, Any]:
        """What is worth keeping, by room and policy, of those of which all mutants were tried.

        `whole`: how many mutants there are of each.
        """
        tried = Counter(module.group for module, _ in self.outcomes)
        record = {}
        for group in tried:
            if tried[group] == whole[group]:
                part = [(module, one) for module, one in self.outcomes if module.group == group]
                own = Findings(part, self.equivalents)
                (score,) = own.scores()
                overlooked = {one.mutant.id: one.by for one in own.overlooked}
                record[group] = {**score.as_mapping(), "overlooked": overlooked}
        return record


_ALL = ("all", "")


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
