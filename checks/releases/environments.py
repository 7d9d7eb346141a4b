"""Environments of released schedulers: where they are, how they are made, how they are started."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from time import monotonic
from typing import IO

from attrs import frozen

from checks.export.files import new_file
from checks.export.outside import file_content, json_object
from checks.export.trace.records import Json
from checks.harness.driver.process import DRIVER_FILES, plain_environment
from checks.harness.driver.protocol import DriverError
from checks.releases.checkouts import recipe_of_checkout
from checks.releases.recipes import PLUGIN, RECIPES, Installation, Recipe, recipe_of
from spec.core.errors import InputError, cannot

PLACE_VARIABLE = "LOCKSTEP_DRIVERS"
TEMPLATE = "template"
_NOTE = "installed.json"
_LOG = "install.log"
_LOCK = "install.lock"
_LAST_LINES = 8


class InstallationError(Exception):
    """An installation that failed or was interrupted; the next call resumes it."""


@frozen
class Environment:
    """The environment of a release; `directory` need not be there yet."""

    recipe: Recipe
    directory: Path

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.directory / "venv" / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where its packages are."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.directory / "venv" / "lib" / version / "site-packages"

    @property
    def done(self) -> list[str]:
        """The parts that are installed, by the names of the recipe."""
        return self._noted("done") if self.is_made else []

    @property
    def cut_short(self) -> list[str]:
        """The part whose installation was interrupted; some of its packages may be there."""
        return self._noted("begun") if self.is_made else []

    @property
    def is_made(self) -> bool:
        """True if the virtual environment itself is complete."""
        return self._note is not None and self.python.exists()

    @property
    def is_complete(self) -> bool:
        """True if every part is installed and the interpreter exists."""
        return self.done == [part.what for part in self.recipe.installations()]

    @property
    def _note(self) -> Json | None:
        return _read_note(self.directory / _NOTE)

    def _noted(self, key: str) -> list[str]:
        noted = (self._note or {}).get(key)
        return list(map(str, noted)) if isinstance(noted, list) else []

    def note(self, done: list[str], begun: str | None = None) -> None:
        """Write the note: the installed parts, the checkout, and the part that begins."""
        note: Json = {"release": self.recipe.name}
        note |= {"checkout": self.recipe.checkout} if self.recipe.checkout else {}
        note |= {"done": done} | ({"begun": [begun]} if begun else {})
        with new_file(self.directory / _NOTE) as file:
            file.write(json.dumps(note, indent=2) + "\n")


def place() -> Path:
    """The directory of environments: `LOCKSTEP_DRIVERS`, or the user's cache directory."""
    own = os.environ.get(PLACE_VARIABLE)
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "lockstep" / "drivers"


def environment_of(recipe: Recipe, into: Path | None = None) -> Environment:
    """The environment of a recipe, below `into` or the usual place."""
    directory = (into or place()).absolute()
    return Environment(recipe, directory / f"{recipe.driver}-{recipe.version}")


def noted_checkouts() -> list[Path]:
    """The working trees for which environments were made; some may no longer exist."""
    notes = (_read_note(path) or {} for path in sorted(place().glob(f"{PLUGIN}-*/{_NOTE}")))
    trees = (note.get("checkout") for note in notes)
    return [Path(tree) for tree in trees if isinstance(tree, str)]


def _read_note(path: Path) -> Json | None:
    """The note of an environment; None if it is missing or damaged."""
    try:
        return json_object(file_content(path))
    except InputError:
        return None


def install(environment: Environment, report: Callable[[str], None]) -> None:
    """Make the environment and install its parts, except those that are installed.

    Resumes an interrupted call, and waits for one that is running. `report` is called with a line
    for each part.

    Raises:
        InstallationError: it cannot be made, or pip failed; with the last lines and the log's path.
        DriverError: nothing can be written there, or what it shares is not installed.
    """
    base = _shared(environment)
    try:
        environment.directory.mkdir(parents=True, exist_ok=True)
        lock = (environment.directory / _LOCK).open("a")
    except OSError as error:
        raise cannot("write", environment.directory, error, DriverError) from None
    with lock:
        _hold(lock, report)
        _install(environment, base, lock.fileno(), report)


def _hold(lock: IO[str], report: Callable[[str], None]) -> None:
    """Wait for another call; a process that inherits the file holds the lock, too."""
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        report("waiting for another installation of the same release")
        flock(lock, LOCK_EX)


def _install(
    environment: Environment, base: Environment | None, lock: int, report: Callable[[str], None]
) -> None:
    parts = list(environment.recipe.installations())
    try:
        if not environment.is_made:
            _make(environment, base, lock)
        done, cut_short = environment.done, environment.cut_short
        if base is not None:  # found after its own packages
            (environment.packages / "shared.pth").write_text(f"{base.packages}\n", encoding="utf-8")
    except OSError as error:
        raise cannot("write", environment.directory, error, DriverError) from None
    for number, part in enumerate(parts, start=1):
        line = f"{number} of {len(parts)}: {part.what}"
        if part.what in done:
            report(f"{line}, there already")
            continue
        began = monotonic()
        environment.note(done, begun=part.what)
        again = ("--force-reinstall",) if part.what in cut_short else ()
        try:
            _pip(environment, part, again, lock)
        except InstallationError:
            environment.note(done)
            raise
        done.append(part.what)
        environment.note(done)
        report(f"{line}, {monotonic() - began:.0f} s")


def _make(environment: Environment, base: Environment | None, lock: int) -> None:
    """Make the virtual environment; the note is written once it is complete.

    Raises:
        InstallationError: Python's `venv` failed.
    """
    (environment.directory / _NOTE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "venv", "--clear", str(environment.directory / "venv")]
    _logged(environment, "the environment", command, {}, lock)
    if base is not None:
        _remove_bundled_setuptools(environment)
    environment.note([])


def _remove_bundled_setuptools(environment: Environment) -> None:
    """The bundled setuptools of an older Python would hide the shared one, which vLLM needs."""
    for name in ("_distutils_hack", "pkg_resources", "setuptools"):
        shutil.rmtree(environment.packages / name, ignore_errors=True)
    for information in environment.packages.glob("setuptools-*.dist-info"):
        shutil.rmtree(information)
    (environment.packages / "distutils-precedence.pth").unlink(missing_ok=True)


def _shared(environment: Environment) -> Environment | None:
    """The environment whose packages this one shares, or None.

    Raises:
        DriverError: that one is not installed.
    """
    recipe = environment.recipe
    if not recipe.shares:
        return None
    driver, _, version = recipe.shares.partition("==")
    base = environment_of(known_recipe(driver, version), environment.directory.parent)
    if not base.is_complete:
        allowed = f"{base.recipe.name} installed, which it shares packages with; install that first"
        raise DriverError("DRIVER", recipe.name, allowed)
    return base


def _pip(environment: Environment, part: Installation, again: Sequence[str], lock: int) -> None:
    pip = [str(environment.python), "-m", "pip", "install", "--no-input"]
    variables = {**part.variables, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    _logged(environment, part.what, [*pip, *again, *part.arguments], variables, lock)


def _outside() -> dict[str, str]:
    """This process's variables without PYTHONPATH, whose packages must not count as installed."""
    return {name: text for name, text in plain_environment().items() if name != "PYTHONPATH"}


def _logged(
    environment: Environment, what: str, command: list[str], variables: Mapping[str, str], lock: int
) -> None:
    """Run a command, which holds the lock even if this process is killed.

    Raises:
        InstallationError: it failed; with the last lines of the log.
    """
    log = environment.directory / _LOG
    with log.open("ab") as file:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**_outside(), **variables},
            pass_fds=(lock,),
            check=False,
        )
    if done.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        lines = "\n".join(f"  {line}" for line in last)
        raise InstallationError(f"{what} could not be installed; {log} ends with\n{lines}")


def command_of(driver: str, checkout: Path | None = None) -> tuple[str, ...]:
    """The command that starts a driver: a file, `MODULE:CLASS`, or a release, `NAME[==VERSION]`.

    A file is run by itself if it is executable, else by this Python. `MODULE:CLASS` is a class like
    those of such files, in a module that can be imported from the working directory. For the plugin
    the environment of the `checkout` is used, if it was made.

    Raises:
        DriverError: there is no such driver, or its environment is not installed.
    """
    path = Path(driver)
    if path.is_file():
        own = str(path.resolve())
        return (own,) if os.access(path, os.X_OK) else (sys.executable, own)
    if driver == TEMPLATE:
        return sys.executable, str(DRIVER_FILES / "template.py")
    module, _, name = driver.partition(":")
    if module.replace(".", "").isidentifier() and name.isidentifier():
        return sys.executable, str(DRIVER_FILES / "imported.py"), driver
    name, _, version = driver.partition("==")
    if checkout is not None and name == PLUGIN and not version:
        made = environment_of(recipe_of_checkout(name, checkout))
        if made.is_complete:
            return str(made.python), str(DRIVER_FILES / made.recipe.file)
    recipe = known_recipe(name, version or None)
    environment = environment_of(recipe)
    if not environment.is_complete:
        asked = f" --version {version}" if version else ""
        allowed = f"an installed driver; install it with: lockstep driver install {name}{asked}"
        raise DriverError("DRIVER", driver, allowed)
    return str(environment.python), str(DRIVER_FILES / recipe.file)


def _allowed(name: str) -> str:
    """The allowed drivers, for the message about an unknown one."""
    releases = [recipe.name for recipe in RECIPES if recipe.driver == name]
    names = ", ".join(releases or sorted({recipe.driver for recipe in RECIPES}))
    return f"{TEMPLATE}, {names}, or the path of a driver's file; see `lockstep driver list`"


def known_recipe(name: str, version: str | None) -> Recipe:
    """The recipe of a release.

    Raises:
        DriverError: there is none.
    """
    recipe = recipe_of(name, version)
    if recipe is None:
        if name.endswith(".py") or os.sep in name:
            new = "no such file; `lockstep driver new PATH` writes one to start from"
            raise DriverError(f"cannot read {name}", new, "")
        asked = name if version is None else f"{name}=={version}"
        raise DriverError("DRIVER", asked, _allowed(name))
    return recipe
