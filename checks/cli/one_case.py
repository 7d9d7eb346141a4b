"""One case for `lockstep conform`, recorded or own requests, and again when a source changes."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from time import sleep
from typing import TypeAlias

import click
from attrs import evolve, frozen
from rich.console import Console

from checks.cli.common import Option, err, gathered, print_lines
from checks.cli.configuration import Sources
from checks.cli.outputs import PATH
from checks.ending import deferred, stopping
from checks.harness.case import Case, refuse_late
from checks.harness.system import Hello
from checks.registry import claims_of
from engine.workloads import fit_for, read_workload
from spec.core.errors import InputError
from spec.core.requests import Request

_POLL_S = 0.2
_MOST_NAMES = 5  # of changed files, in a line

Stamps: TypeAlias = dict[Path, tuple[int, int]]


@frozen
class OneCase:
    """A recorded case, or a workload and a configuration, instead of random cases.

    `path`: of the recording; `shrink`: make it smaller; `recorded`: as recorded, without a driver.
    `watch`: serve the case again whenever a source changes.

    Raises:
        InputError: an option is used without the other that it needs.
    """

    path: Path | None
    shrink: bool
    recorded: bool
    workload: Path | None
    config_path: Path | None
    watch: bool

    def __attrs_post_init__(self) -> None:
        for option, is_asked in {"--recorded": self.recorded, "--shrink": self.shrink}.items():
            if is_asked and self.path is None:
                raise InputError(option, True, "together with --case")
        if self.shrink and self.recorded:
            allowed = "without --recorded: the driver must serve other cases"
            raise InputError("--shrink", True, allowed)
        if self.config_path is not None and self.workload is None:
            raise InputError("--config", str(self.config_path), "together with --workload")
        if self.watch and (self.shrink or self.recorded or not (self.workload or self.path)):
            raise InputError("--watch", True, "together with --workload, or with --case alone")
        if self.workload is not None:
            self.refuse({"--case": self.path})

    def refuse(self, others: Mapping[str, object]) -> None:
        """Refuse options of a campaign, by name, beside a workload.

        Raises:
            InputError: one of them is used.
        """
        for option, value in others.items():
            if self.workload is not None and value:
                raise InputError(option, str(value), "not together with --workload")

    @property
    def place(self) -> Path:
        """The file that the configuration comes from, else the workload."""
        assert self.workload is not None
        return self.config_path or self.workload

    def own(self, settings: tuple[str, ...], hello: Hello) -> Case:
        """The case of the workload for a system; of a public trace the requests that it can serve.

        `settings`: override keys of the file. Other keys have the system's one value, or their
        defaults.

        Raises:
            InputError: the workload or the configuration cannot be read, the policy is another, or
                a request can never be served.
        """
        assert self.workload is not None
        claims = claims_of(hello.policy)
        base = evolve(claims.config(), **hello.pinned)
        config = Sources(self.config_path, settings).read(base).config
        if config.policy != hello.policy:
            allowed = f"{hello.policy}, as {hello.release}"
            raise InputError("policy", config.policy, allowed).at(self.place)

        def refuse(request: Request) -> None:
            claims.refuse_unservable(request, config)
            refuse_late(request)

        requests, _ = fit_for(read_workload(self.workload), refuse)
        return Case(config, tuple(requests))

    def sources(self, driver: str, checkout: Path | None) -> list[Path]:
        """The files of the case, and the directories with the files of the driver.

        Raises:
            InputError: the driver is an installed release, which does not change.
        """
        own: tuple[Path, ...] = ()
        if Path(driver).is_file():
            own = (Path(driver).absolute().parent,)
        elif ":" in driver:  # a class that can be imported from here
            own = (Path.cwd(),)
        if not own and checkout is None:
            allowed = "a driver's file, MODULE:CLASS, or --source: a release does not change"
            raise InputError("--watch", driver, allowed)
        return [path for path in (*own, checkout, self.workload, self.config_path) if path]


def one_case_options() -> Option:
    """`--case`, `--workload` and the options that go with them, as `one_case`."""
    return gathered(
        "one_case",
        OneCase,
        click.option("--case", "path", type=PATH, help="Run this recorded case again instead."),
        click.option(
            "--shrink", is_flag=True, help="With --case: make it smaller, as far as it goes."
        ),
        click.option(
            "--recorded", is_flag=True, help="With --case: as recorded, without the driver."
        ),
        click.option("--workload", type=PATH, help="Serve exactly these requests instead."),
        click.option(
            "--config",
            "config_path",
            type=PATH,
            help="With --workload: the configuration, TOML; --set overrides a key.",
        ),
        click.option(
            "--watch",
            is_flag=True,
            help="With --workload or --case: again whenever a source changes, until a signal.",
        ),
    )


# --- watching -------------------------------------------------------------------------------------


def watch(serve: Callable[[], tuple[int, str]], sources: Iterable[Path], screen: Console) -> int:
    """Serve, then again after each change of a source; says what changed in the verdict.

    `serve` returns an exit code and the verdict in words. `sources`: files, and directories with
    Python files. Ends with the first signal, and returns the last exit code. A repetition that is
    an input error is a verdict like others.

    Raises:
        InputError: raised by the first run.
    """
    sources = tuple(sources)
    stamps = _stamps(sources)
    code, verdict = serve()
    print_lines(screen, f"files that are watched: {len(stamps)}; Ctrl-C ends it")
    while changed := _next_change(stamps, sources):
        stamps, names = changed
        print_lines(screen, "", f"changed: {names}")
        before = verdict
        try:
            code, verdict = serve()
        except InputError as error:
            verdict = str(error)
            print_lines(err, f"lockstep: {error}")
        same = verdict == before
        print_lines(screen, f"as before: {verdict}" if same else f"now: {verdict}; was: {before}")
    return code


def _next_change(before: Stamps, sources: Iterable[Path]) -> tuple[Stamps, str] | None:
    """Wait for a change: the new stamps, and the names of the changed files; None on a signal."""
    with deferred():
        while not stopping():
            now = _stamps(sources)
            changed = sorted(path for path in before | now if before.get(path) != now.get(path))
            if changed:
                names = ", ".join(path.name for path in changed[:_MOST_NAMES])
                more = len(changed) - _MOST_NAMES
                return now, f"{names} and {more} more" if more > 0 else names
            sleep(_POLL_S)
    return None


def _stamps(sources: Iterable[Path]) -> Stamps:
    """Time of change and size of each file that exists."""
    stamps: Stamps = {}
    for path in (file for source in sources for file in _files(source)):
        try:
            status = path.stat()
        except OSError:  # while an editor writes it
            continue
        stamps[path] = status.st_mtime_ns, status.st_size
    return stamps


def _files(source: Path) -> Iterator[Path]:
    """The file itself, or the Python files of a directory without hidden and virtual ones."""
    if not source.is_dir():
        yield source
        return
    for place, directories, names in os.walk(source):
        directories[:] = [
            name
            for name in directories
            if not name.startswith((".", "__")) and not Path(place, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(place, name) for name in names if name.endswith(".py"))
