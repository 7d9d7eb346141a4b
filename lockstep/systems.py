"""What can be run, however it is named: a driver's file or name, a class, a system."""

import json
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias, cast

from attrs import frozen

from checks.drivers.lockstep_driver import PROTOCOL, Driver, answer
from checks.harness.campaign import Source
from checks.harness.case import Case
from checks.harness.driver.protocol import (
    DriverError,
    Played,
    failure_of,
    hello_of,
    play_line,
    played,
    start_line,
)
from checks.harness.driver.system import DriverCommand, DriverSystem
from checks.harness.system import Action, Failure, Json, System
from checks.releases.environments import command_of

AnySystem: TypeAlias = str | Path | Source | System | Callable[[], Driver]
"""A driver's file, `MODULE:CLASS`, the name of an installed release; or what runs in this process:
a driver's class (what makes a `Driver`), or a `System`."""


def source_of(system: AnySystem) -> Source:
    """From where a campaign has the system.

    Raises:
        DriverError: there is no such driver, or it is not installed.
    """
    if isinstance(system, str | Path):
        return DriverCommand(command_of(str(system)))
    if isinstance(system, type) or not (hasattr(system, "open") or hasattr(system, "play")):
        return DriverClass(system)
    return cast("Source", system) if hasattr(system, "open") else Given(cast("System", system))


def named(name: str, near: Path) -> AnySystem:
    """What `name_of` named, as a file says that stands near what it names.

    A relative path is looked up beside each of the directories above `near`; a module, too, where
    this process cannot import it by itself.

    Raises:
        DriverError: there is no such module, or no such class in it.
    """
    above = near.absolute().parents
    module, _, made = name.partition(":")
    if not made:
        return next((str(folder / name) for folder in above if (folder / name).is_file()), name)
    own = list(sys.path)
    sys.path += map(str, above)
    try:
        return cast("Callable[[], Driver]", attrgetter(made)(import_module(module)))
    except (ImportError, AttributeError) as error:
        raise DriverError("driver", name, f"a class that can be imported ({error})") from None
    finally:
        sys.path[:] = own


def name_of(system: AnySystem) -> str:
    """As a command or a recording names it: `MODULE:CLASS` where it is no text."""
    if isinstance(system, str | Path):
        return str(system)
    made = system if hasattr(system, "__qualname__") else type(system)
    return f"{made.__module__}:{made.__qualname__}"


@frozen
class DriverClass:
    """What makes drivers in this process: a campaign's source."""

    make: Callable[[], Driver]

    def open(self) -> DriverSystem:
        """The drivers as a system; each action is taken when its step is due.

        Raises:
            DriverError: its hello is none.
        """
        return DriverSystem(lambda: _Here(self.make()), part=1)


@frozen(eq=False)
class Given:
    """A system that is there already: a campaign's source."""

    system: System

    def open(self) -> System:
        """The system itself."""
        return self.system


class _Here:
    """A driver in this process; the lines are those that go to one in another."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.hello = hello_of(json.dumps(PROTOCOL | driver.hello))

    def start(self, case: Case) -> Failure | None:
        said = self._answer(start_line(case, tensors="tensors" in self.hello.abilities))
        return failure_of(said["error"]) if "error" in said else None

    def play(self, actions: Iterable[Action]) -> Played:
        return played(self._answer(play_line(actions)))

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, line: Json) -> Json:
        return _as_sent(answer(self._driver, _as_sent(line)))


def _as_sent(line: Json) -> Json:
    """As it is read at the other end: keys are texts, tuples lists."""
    return cast("Json", json.loads(json.dumps(line)))
