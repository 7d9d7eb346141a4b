"""The pytest plugin: the fixture `lockstep`, and each file of a `findings` directory as a test.

    def test_scheduler(lockstep):
        lockstep.conform("driver.py", episodes=200)

A finding is shrunk and recorded in the directory `findings` beside the test's file. Each file there
is a test that fails while its finding still occurs; `conform` repeats these first. The plugin
imports heavy modules only when it needs them.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lockstep.api import Conformed, Explored, Judged, PolicyConfig, Request
    from lockstep.systems import AnySystem

PROFILES = {"quick": 20, "default": 100, "thorough": 2_000}  # episodes, unless a test sets them
_OPENED = pytest.StashKey[dict[Any, None]]()  # sources of the systems used in this session


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options and configuration keys."""
    group = parser.getgroup("lockstep", "conformance of schedulers")
    group.addoption(
        "--lockstep-episodes", type=int, metavar="N", help="Run N episodes in each campaign."
    )
    group.addoption(
        "--lockstep-profile",
        metavar="NAME",
        help="Episodes of campaigns that name none: quick, default, thorough or one of "
        "`lockstep_profiles`.",
    )
    parser.addini("lockstep_profile", "the profile where no option names one", default="default")
    parser.addini("lockstep_profiles", "more profiles: NAME = EPISODES", type="linelist")
    parser.addini("lockstep_findings", "name of the directories of findings", default="findings")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an unknown profile before any test runs."""
    config.stash[_OPENED] = {}
    _episodes(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the systems used in this session."""
    if not config.stash.get(_OPENED, {}):
        return
    from checks.harness.campaigns.campaign import own_system

    for source in config.stash[_OPENED]:
        own_system(source).close()


def _episodes(config: pytest.Config) -> int:
    """The episodes of a campaign that does not set them.

    Raises:
        pytest.UsageError: the profile is unknown or malformed.
    """
    profiles = dict(PROFILES)
    for line in config.getini("lockstep_profiles"):
        name, _, episodes = line.partition("=")
        if not episodes.strip().isdecimal():
            raise pytest.UsageError(f"lockstep_profiles: found {line!r}; allowed: NAME = EPISODES")
        profiles[name.strip()] = int(episodes)
    name = config.getoption("--lockstep-profile") or config.getini("lockstep_profile")
    if name not in profiles:
        raise pytest.UsageError(f"profile {name!r}; allowed: {', '.join(profiles)}")
    return profiles[name]


# --- the fixture ----------------------------------------------------------------------------------


@pytest.fixture
def lockstep(request: pytest.FixtureRequest) -> "Lockstep":
    """Checks schedulers against the specification; a failing test shows the command's report."""
    return Lockstep(request.config, request.path.parent, request.node)


class Lockstep:
    """The fixture. Paths are relative to the test's file, or else to the working directory."""

    def __init__(self, config: pytest.Config, directory: Path, node: pytest.Item) -> None:
        self._config = config
        self._directory = directory
        self._node = node

    @property
    def findings(self) -> Path:
        """The directory of the findings."""
        return self._directory / str(self._config.getini("lockstep_findings"))

    def conform(
        self,
        driver: "AnySystem",
        *,
        episodes: int | None = None,
        seed: int = 0,
        strictness: str = "exact",
        instances: "Iterable[str] | None" = None,
        **settings: Any,
    ) -> "Conformed":
        """Compare a scheduler with the reference: first its stored findings, then random cases.

        With `instances` every edge of these worlds or instances instead of random cases, see
        `lockstep.api.conform`.

        `driver`: a driver's file, `MODULE:CLASS`, or the name of an installed release, which run in
        their own process; or a driver's class or a `System`, which run in this process.
        `--lockstep-episodes` overrides `episodes`; the default is that of the profile. `settings`:
        configuration keys that are not drawn.
        """
        from checks.releases.environments import TEMPLATE
        from lockstep.conforming import conform
        from lockstep.systems import system_name

        name = system_name(driver)
        if isinstance(driver, str | Path) and name != TEMPLATE:
            driver = name = self._found(name)
        with _input_errors():
            _use(self._config, driver)
            self._again(driver)
            conformed = conform(
                driver,
                episodes=self._config.getoption("--lockstep-episodes")
                or episodes
                or _episodes(self._config),
                seed=seed,
                settings=settings,
                strictness=strictness,
                findings=_short(self.findings),
                name=name,
                instances=instances,
            )
        self._require(conformed)
        return conformed

    def explore(
        self,
        config: "PolicyConfig",
        workload: "Path | str | Iterable[Request]",
        **options: Any,
    ) -> "Explored":
        """Judge every rule in every state of the reference that the requests can reach.

        `workload`: requests, or a file of them. `options`: those of
        `lockstep.api.explore_requests`. A search that a bound ended fails.
        """
        from lockstep.api import explore_requests, read_requests

        into = _short(self._directory / "counterexamples")
        with _input_errors():
            if isinstance(workload, str | Path):
                workload = read_requests(self._found(str(workload)))
            explored = explore_requests(config, workload, counterexamples=into, **options)
        self._require(explored)
        return explored

    def replay(self, file: Path | str, driver: "AnySystem | None" = None) -> "Judged":
        """Replay a finding, recording, counterexample or trace; see `lockstep.api.replay`.

        The test fails while the recorded violation occurs.
        """
        from lockstep.conforming import replay

        with _input_errors():
            if isinstance(driver, str | Path):
                driver = self._found(str(driver))
            judged = replay(self._found(str(file)), driver)
        self._require(judged)
        return judged

    def _again(self, driver: "AnySystem") -> None:
        """Replay the stored findings of this driver; fail with the first that still occurs."""
        from checks.harness.campaigns.campaign import own_system
        from checks.harness.campaigns.recording import read_recording
        from lockstep.conforming import replay_recording
        from lockstep.systems import campaign_source

        hello = own_system(campaign_source(driver)).hello
        for path in sorted(filter(_is_finding, self.findings.glob("*.jsonl"))):
            recording = read_recording(path)
            if recording.hello.name == hello.name and hello.can_do(recording.case.config):
                judged = replay_recording(recording, driver)
                if not judged.holds:
                    pytest.fail(f"still found: {_short(path)}\n{judged.report}", pytrace=False)

    def _require(self, judged: "Judged") -> None:
        """Fail with the report unless the result holds."""
        if not judged.holds:
            pytest.fail(judged.report, pytrace=False)
        self._node.user_properties.append(("lockstep", judged.report.splitlines()[-1]))

    def _found(self, name: str) -> str:
        """The file beside the test if it exists, else `name` unchanged."""
        beside = self._directory / name
        return str(_short(beside)) if beside.is_file() else name


def _use(config: pytest.Config, system: "AnySystem") -> None:
    """Close the system at the end of the session."""
    from lockstep.systems import campaign_source

    config.stash[_OPENED][campaign_source(system)] = None


@contextmanager
def _input_errors() -> Iterator[None]:
    """An `InputError` in the block fails the test with its message."""
    from lockstep.api import InputError

    try:
        yield
    except InputError as error:
        pytest.fail(str(error), pytrace=False)


def _short(path: Path) -> Path:
    """The path relative to the working directory."""
    return Path(relpath(path))


# --- findings as tests ----------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Each finding of a directory of findings is a test."""
    is_there = file_path.parent.name == parent.config.getini("lockstep_findings")
    if is_there and file_path.suffix == ".jsonl" and _is_finding(file_path):
        return FindingFile.from_parent(parent, path=file_path)
    return None


def _is_finding(path: Path) -> bool:
    """True if the file begins as one; a link to nothing is none, and is warned of."""
    try:
        with path.open("rb") as file:
            return b'"format":"lockstep-' in file.readline(100).replace(b": ", b":")
    except OSError as error:
        warnings.warn(f"{_short(path)}: {error.strerror}; not run again", stacklevel=2)
        return False


class FindingFile(pytest.File):
    """A finding's file, which is one test."""

    def collect(self) -> Iterator["FindingItem"]:
        """The test."""
        yield FindingItem.from_parent(self, name=self.path.stem)


class FindingItem(pytest.Item):
    """Green once what the file records is not found any more."""

    def runtest(self) -> None:
        """Run the case again on what it was found in."""
        from checks.harness.campaigns.recording import is_recording, read_recording
        from lockstep.conforming import replay, system_of

        with _input_errors():
            system = system_of(read_recording(self.path)) if is_recording(self.path) else None
            if system is not None:
                _use(self.config, system)
            judged = replay(self.path, system)
        if not judged.holds:
            pytest.fail(judged.report, pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file and the name of the finding."""
        return self.path, None, f"finding {self.name}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run stored findings first."""
    items.sort(key=lambda item: not isinstance(item, FindingItem))
