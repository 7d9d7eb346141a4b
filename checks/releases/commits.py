"""Bisect the commits of a repository for the first with another outcome of a recorded case."""

import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory, TemporaryFile

from attrs import define, field, frozen

from checks.harness.campaigns.recording import Recording, outcome_as_json
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.system import Json
from checks.releases.bisecting import in_words, run_case
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
    """A commit and the outcome of the case; `verdict`: in one line.

    `differs`: the commit shows the wanted finding.
    """

    commit: Commit
    verdict: str
    differs: bool
    outcome: Json


@define
class Walk:
    """A bisection of commits for a finding.

    The wanted finding is the one recorded with the case, by kind and cause, so that other defects
    of a commit do not count. If none is recorded, any difference counts.

    `driver`: a file, or the name of a release. A file in the repository runs in each commit's tree;
    the current file is copied into a tree without it. Drivers import from the tree first. `note`:
    called with each tried commit. `tried`: the tried commits in order, the two ends first.
    """

    repository: Path
    driver: str
    recording: Recording
    note: Callable[[TriedCommit], None] = lambda _tried: None
    tried: dict[str, TriedCommit] = field(factory=dict, init=False)

    def first_other(self, span: str) -> TriedCommit | None:
        """Bisect `span`, FIRST..LAST, for the first commit with another outcome than FIRST.

        None if FIRST and LAST both show the finding or both do not.

        Raises:
            InputError: there is no repository, a commit is unknown, or the span is empty.
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
            episode = run_case(system, self.recording.case, self.recording.terms)
        outcome = outcome_as_json(episode, self.recording.terms)
        wanted = _findings(self.recording.outcome)
        differs = bool(_findings(outcome) & wanted if wanted else episode.findings or episode.known)
        return TriedCommit(commit, in_words(episode, self.recording.terms), differs, outcome)


@frozen
class TreeDriver:
    """A campaign's source: a driver that imports from a tree before installed packages."""

    argv: tuple[str, ...]
    tree: Path

    def open(self) -> DriverSystem:
        """The driver's system.

        Raises:
            DriverError: the driver cannot be started.
        """
        return DriverSystem(self._launched)

    def _launched(self) -> Driver:
        with tree_imports(self.tree):
            return Driver(self.argv)


def tree_driver(tree: Path, repository: Path, driver: str) -> TreeDriver:
    """The named driver for the tree of a commit: the tree's own version of the file, if any.

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
    """Kind and cause of each finding in an outcome."""
    findings = [*outcome.get("broken", ()), outcome.get("finding")]
    return {(finding["kind"], finding["cause"]) for finding in findings if finding is not None}


def commits_between(repository: Path, span: str, paths: Sequence[str] = ()) -> Sequence[Commit]:
    """The commits from FIRST to LAST of `FIRST..LAST`; of merged branches only the merges.

    `paths`: git pathspecs; after FIRST only commits that touch one of them.

    Raises:
        InputError: there is no repository, a commit is unknown, or the span is empty.
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
    """A temporary directory with the files of a commit; the repository is not changed."""
    with TemporaryDirectory() as directory, TemporaryFile() as archive:
        command = ["git", "-C", str(repository), "archive", "--format=tar", commit.id]
        subprocess.run(command, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as file:
            file.extractall(directory, filter="data")
        yield Path(directory)


@contextmanager
def tree_imports(tree: Path) -> Iterator[None]:
    """A context in which new drivers import from the tree's `src` and the tree first."""
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
    """The output of a git command.

    Raises:
        InputError: git fails; has its message.
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
