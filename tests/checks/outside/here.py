"""Drivers in the test process instead of their own: thousands start in a minute."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from checks.drivers.lockstep_driver import PROTOCOL, answer
from checks.harness.driver import client
from checks.harness.driver.process import DRIVER_FILES, START_S
from checks.harness.driver.protocol import read_line
from checks.harness.system import Json
from checks.releases.environments import environment_of, known_recipe

Spoil = Callable[[bytes], bytes]


def install(release: str) -> None:
    """Note the release as installed; its driver is the template of its policy."""
    recipe = known_recipe(*release.split("=="))
    environment = environment_of(recipe)
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    environment.note([part.what for part in recipe.installations()])


@contextmanager
def drivers_here(spoil: Spoil = lambda line: line) -> Iterator[None]:
    """Drivers run in this process; `spoil` changes their lines."""
    with (
        patch.object(client, "DriverProcess", lambda command: _Here(command, spoil)),
        patch.object(sys, "path", [*sys.path, str(DRIVER_FILES)]),
    ):
        yield


class _Here:
    """Stands for `DriverProcess`, without a process."""

    def __init__(self, command: Sequence[str], spoil: Spoil) -> None:
        name = Path(command[-1]).stem
        name = name if name.startswith("template") else f"template_{name}"
        self._driver: Any = import_module(f"checks.drivers.{name}").Toy()
        self._spoil = spoil

    def hello(self, _seconds: float = START_S) -> str:
        """The first line."""
        return self._said(PROTOCOL | self._driver.hello)

    def ask(self, message: Json) -> Json:
        """The answer to a line, as it is read."""
        return read_line(self._said(answer(self._driver, json.loads(json.dumps(message)))))

    def close(self) -> None:
        """Nothing is held."""

    def _said(self, line: Json) -> str:
        return self._spoil(json.dumps(line).encode()).decode(errors="replace")
