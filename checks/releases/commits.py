"""One case on the commits of a repository: the first that does otherwise than those before it."""

import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory, TemporaryFile

from attrs import define, field, frozen

from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.recording import Recording, outcome_as_json
from checks.harness.system import Json
from checks.releases.bisecting import episode_of, in_words
from checks.releases.environments import command_of
from spec.core.errors import InputError


@frozen
class Commit:
    """A commit with the first line of its message."""

    id: str
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:10]} {self.subject}"


@frozen
class TriedCommit:
    """A commit and what became of the case, in a line.

    `differs`: it shows the finding that is looked for.
    """

    commit: Commit
    verdict: str
    differs: bool
    outcome: Json


@define
class Walk:
    """A search among the commits of `span`, FIRST..LAST, for the first that does otherwise.

    Looked for is the finding that the case ends with, by kind and cause: another defect of some
    commit is no answer. Where it ends with none, any difference is one.

    `driver`: a file, or the name of a release. A file in the repository runs in each commit's own
    tree, and is put there as it is now where the commit does not have it; the tree stands first on
    the path of whatever is imported. `note`: called with each commit once it is tried. `tried`: in
    the order in which they were, the two ends first.
    """

    repository: Path
    driver: str
    recording: Recording
    note: Callable[[TriedCommit], None] = lambda _tried: None
    tried: dict[str, TriedCommit] = field(factory=dict, init=False)

    def first_other(self, span: str) -> TriedCommit | None:
        """The first commit that differs from FIRST in whether it shows the finding, by halves.

        None if LAST does not.

        Raises:
            InputError: no repository, no such commits, or none between them.
            DriverError: the driver of a commit cannot be started.
        """
        commits = commits_between(self.repository, span)
        before = self._differs(commits[0])
        if self._differs(commits[-1]) == before:
            return None
        low, high = 0, len(commits) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._differs(commits[middle]) == before:
                low = middle
            else:
                high = middle
        return self.tried[commits[high].id]

    def _differs(self, commit: Commit) -> bool:
        if commit.id not in self.tried:
            self.tried[commit.id] = self._tried(commit)
            self.note(self.tried[commit.id])
        return self.tried[commit.id].differs

    def _tried(self, commit: Commit) -> TriedCommit:
        with (
            commit_files(self.repository, commit) as tree,
            closing(tree_driver(tree, self.repository, self.driver).open()) as system,
        ):
            episode = episode_of(system, self.recording.case, self.recording.terms)
        outcome = outcome_as_json(episode, self.recording.terms)
        wanted = _findings(self.recording.outcome)
        differs = bool(_findings(outcome) & wanted if wanted else episode.findings or episode.known)
        return TriedCommit(commit, in_words(episode, self.recording.terms), differs, outcome)


@frozen
class TreeDriver:
    """A driver that imports from a tree before anything that is installed: a campaign's source."""

    argv: tuple[str, ...]
    tree: Path

    def open(self) -> DriverSystem:
        """A driver's system.

        Raises:
            DriverError: it cannot be started.
        """
        return DriverSystem(self._launched)

    def _launched(self) -> Driver:
        with imported_from(self.tree):
            return Driver(self.argv)


def tree_driver(tree: Path, repository: Path, driver: str) -> TreeDriver:
    """The driver that was named, in the tree of a commit: its own file of that name, if it has one.

    `driver`: a file, in the repository or elsewhere, or the name of a release.
    """
    path, root = Path(driver).resolve(), repository.resolve()
    if path.is_file() and path.is_relative_to(root):
        own = tree / path.relative_to(root)
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            copyfile(path, own)
        driver = str(own)
    return TreeDriver(tuple(command_of(driver)), tree)


def _findings(outcome: Json) -> set[tuple[str, str]]:
    """Kind and cause of all that was found, compared or judged alone."""
    found = [*outcome.get("broken", ()), outcome.get("finding")]
    return {(finding["kind"], finding["cause"]) for finding in found if finding is not None}


def commits_between(repository: Path, span: str, paths: Sequence[str] = ()) -> Sequence[Commit]:
    """The commits from FIRST to LAST of `FIRST..LAST`, merged branches as their merges alone.

    `paths`: as git takes them; behind FIRST only commits that touch one of these, if any are given.

    Raises:
        InputError: no repository, or no such commits.
    """
    first, separator, last = span.partition("..")
    if not (first and separator and last):
        raise InputError("--git", span, "FIRST..LAST, two commits")
    form = "--format=%H %s"
    listed = [_git(repository, "log", "-1", form, first, "--")]
    between = ("log", "--first-parent", "--reverse", form, f"{first}..{last}", "--", *paths)
    listed += _git(repository, *between).splitlines()
    if len(listed) < 2:
        raise InputError("--git", span, "FIRST..LAST, the older commit in front")
    return [Commit(*line.strip().split(" ", maxsplit=1)) for line in listed]


@contextmanager
def commit_files(repository: Path, commit: Commit) -> Iterator[Path]:
    """The files of a commit in a directory of their own; nothing changes in the repository."""
    with TemporaryDirectory() as directory, TemporaryFile() as archive:
        command = ["git", "-C", str(repository), "archive", "--format=tar", commit.id]
        subprocess.run(command, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as file:
            file.extractall(directory, filter="data")
        yield Path(directory)


@contextmanager
def imported_from(tree: Path) -> Iterator[None]:
    """While it lasts, drivers that are started import from the tree, or its `src`, first."""
    usual = os.environ.get("PYTHONPATH")
    paths = [str(tree / "src"), str(tree), *([usual] if usual else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        yield
    finally:
        if usual is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = usual


def _git(repository: Path, *arguments: str) -> str:
    """What git prints.

    Raises:
        InputError: it refuses; with its message.
    """
    command = ["git", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError("--git", str(repository), f"a machine with git ({error})") from None
    if done.returncode:
        said = done.stderr.strip().partition("\n")[0]
        raise InputError("--git", " ".join(arguments[-2:-1]), f"commits of {repository} ({said})")
    return done.stdout.strip()
