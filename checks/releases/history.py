"""Survey of commits: the same random cases on each, judged alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from checks.harness.campaigns.campaign import Campaign, Source, own_system
from checks.harness.driver.protocol import DriverError
from checks.harness.finding import Signature
from checks.releases.commits import Commit, commit_files, commits_between, tree_driver
from checks.releases.markdown import block, table

Judge: TypeAlias = Callable[[Commit, Source], Campaign]
"""Serves the random cases with the driver of a commit."""


@frozen
class JudgedCommit:
    """A commit and its campaign; `refusal`: why its driver could not be started."""

    commit: Commit
    seen: Campaign | None
    refusal: str = ""


@frozen
class History:
    """The commits of `span`, FIRST..LAST; with `touching` only those that touch such a path."""

    repository: Path
    span: str
    driver: str
    touching: Sequence[str] = ()

    def judged(self, judge: Judge) -> Iterator[JudgedCommit]:
        """Judge each commit, the oldest first.

        Raises:
            InputError: there is no repository, a commit is unknown, or the span is empty.
        """
        for commit in commits_between(self.repository, self.span, self.touching):
            with commit_files(self.repository, commit) as tree:
                source = tree_driver(tree, self.repository, self.driver)
                try:
                    seen = judge(commit, source)
                except DriverError as error:
                    yield JudgedCommit(commit, None, str(error).splitlines()[-1].strip())
                    continue
                own_system(source).close()  # before the tree is removed
                yield JudgedCommit(commit, seen)


def history_lines(history: History, seed: int, judged: Sequence[JudgedCommit]) -> Iterator[str]:
    """The page: a row for each commit."""
    touching = f" that touch {', '.join(history.touching)}" if history.touching else ""
    yield from block(f"# What commits of {history.repository.name} break")
    yield from block(
        f"Commits {history.span}{touching}, driven by {history.driver}, seed {seed}. The random",
        "cases are judged alone: by the rules, by the simulated device, and by whether the",
        "scheduler counts its own blocks right; nothing is compared. A number says in how many",
        "cases something is broken.",
    )
    rows = ([str(entry.commit), *_cells(entry)] for entry in judged)
    yield from block(*table(["commit", "cases", "steps judged", "broken"], rows))


def _cells(judged: JudgedCommit) -> list[str]:
    if judged.seen is None:
        return ["-", "-", f"not driven: {judged.refusal}"]
    seen = judged.seen
    broken = ", ".join(f"{_name(cause)} {times}" for cause, times in sorted(seen.times.items()))
    return [f"{seen.episodes:,}", f"{seen.steps:,}", broken or "nothing"]


def _name(cause: Signature) -> str:
    """The cause, with its kind unless it is a broken rule."""
    kind, what = cause
    return what if kind == "broken rule" else f"{kind} {what}"
