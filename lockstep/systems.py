"""Systems under test by name or object: a driver's file or name, a class, a system."""

import json
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias, cast

from attrs import frozen

from checks.drivers.lockstep_driver import PROTOCOL, Driver, answer
from checks.harness.campaigns.campaign import Given, Source
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
"""A driver's file, `MODULE:CLASS`, or the name of an installed release, which run in their own
process; or a driver's class (a factory of `Driver`) or a `System`, which run in this process."""


def campaign_source(system: AnySystem) -> Source:
    """The source from which a campaign opens the system.

    Raises:
        DriverError: the driver does not exist or is not installed.
    """
    if isinstance(system, str | Path):
        return DriverCommand(command_of(str(system)))
    if isinstance(system, type) or not (hasattr(system, "open") or hasattr(system, "play")):
        return DriverClass(system)
    return cast("Source", system) if hasattr(system, "open") else Given(cast("System", system))


def named(name: str, near: Path) -> AnySystem:
    """The system with this name, written by `system_name` into the file `near`.

    A relative path is looked up in each directory above `near`; so is a module that this process
    cannot import by itself.

    Raises:
        DriverError: the module or its class does not exist.
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


def system_name(system: AnySystem) -> str:
    """The system's name in commands and recordings: the text itself, or `MODULE:CLASS`."""
    if isinstance(system, str | Path):
        return str(system)
    made = system if hasattr(system, "__qualname__") else type(system)
    return f"{made.__module__}:{made.__qualname__}"


@frozen
class DriverClass:
    """A campaign's source: a class of drivers in this process."""

    make: Callable[[], Driver]

    def open(self) -> DriverSystem:
        """The drivers as a system; each action is taken when its step is due.

        Raises:
            DriverError: the driver's hello is invalid.
        """
        return DriverSystem(lambda: _Here(self.make()), part=1)


class _Here:
    """A driver in this process, used through the lines of the protocol."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.hello = hello_of(json.dumps(PROTOCOL | driver.hello))

    def start(self, case: Case) -> Failure | None:
        said = self._answer(start_line(case, tensors="tensors" in self.hello.abilities))
        return failure_of(said["error"]) if "error" in said else None

    def play(self, actions: Iterable[Action]) -> Played:
        return played(self._answer(play_line(actions)))

    def close(self) -> None:
        """There is nothing to release."""

    def _answer(self, line: Json) -> Json:
        return _as_sent(answer(self._driver, _as_sent(line)))


def _as_sent(line: Json) -> Json:
    """The line as the other side reads it: keys are texts, tuples are lists."""
    return cast("Json", json.loads(json.dumps(line)))
