"""How the fuzzer itself is tested: faulty targets, by what each is found, and how soon."""

from collections.abc import Iterable

from attrs import frozen

from checks.fuzz.campaign import Plan
from checks.fuzz.finding import Finding
from checks.fuzz.lockstep import Terms, run_case
from checks.fuzz.target import Subject


@frozen
class Hunt:
    """A search for a fault: the episode that found it, or the number of those that did not."""

    fault: str
    episode: int
    steps: int
    finding: Finding | None


def hunt(subject: Subject, episodes: int, seed: int = 0, terms: Terms | None = None) -> Hunt:
    """Run episodes until something is found, at most so many."""
    plan = Plan(subject, seed, terms or Terms())
    steps = 0
    for index in range(episodes):
        episode = run_case(subject, plan.case(index), plan.terms)
        steps += episode.steps
        if episode.finding is not None:
            return Hunt(subject.name, index, steps, episode.finding)
    return Hunt(subject.name, episodes, steps, None)


def table_of(hunts: Iterable[Hunt]) -> str:
    """A line for each fault: what found it, in which episode, after how many compared steps."""
    rows = [("fault", "found by", "rule", "episode", "steps"), *map(_row, hunts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _row(one: Hunt) -> tuple[str, ...]:
    if one.finding is None:
        return one.fault, "not found", "", f"{one.episode:,} in all", f"{one.steps:,}"
    found_by = f"{one.finding.kind}: {one.finding.cause}"
    return one.fault, found_by, one.finding.rule, f"{one.episode:,}", f"{one.steps:,}"
