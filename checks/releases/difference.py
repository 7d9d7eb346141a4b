"""What is known of a difference: when it is this one, and where it must show."""

from collections.abc import Callable
from typing import Any

from attrs import frozen

from checks.harness.driver.protocol import Action, DriverFailure, Json


@frozen
class Evidence:
    """A step in which driver and reference differ, and all before it.

    `expected`: the reference's steps. `found`: the driver's, with their `records`. `index`: of the
    step in question; `failure`: what the driver raised there instead of taking it.
    """

    config: Any
    actions: tuple[Action, ...]
    expected: tuple[Any, ...]
    found: tuple[Any, ...]
    records: tuple[Json, ...]
    index: int
    failure: DriverFailure | None


@frozen
class KnownDifference:
    """What a release does otherwise.

    `driver` and `releases`: the driver's name, and what its releases begin with. `occurs`: whether
    a difference is this one. `due`: the first of the reference's steps in which it must show if
    nothing differed before, or None.
    """

    id: str
    driver: str
    releases: tuple[str, ...]
    says: str
    reason: str
    occurs: Callable[[Evidence], bool]
    due: Callable[[Any, tuple[Action, ...], tuple[Any, ...]], int | None]

    @property
    def versions(self) -> str:
        """The versions that do so, as they are written in tables."""
        return ", ".join(one.split()[1] for one in self.releases)
