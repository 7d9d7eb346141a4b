"""What is known of a difference between a release and the reference."""

from collections.abc import Callable
from typing import Any

from attrs import frozen

from checks.harness.system import Action, Failure, Json


@frozen
class Evidence:
    """A step in which a driver and the reference differ, and all before it.

    `expected`: the reference's steps. `found`: the driver's, with their `records`. `index`: of the
    step in question; `failure`: what the driver raised there instead of taking it.
    """

    config: Any
    actions: tuple[Action, ...]
    expected: tuple[Any, ...]
    found: tuple[Any, ...]
    records: tuple[Json, ...]
    index: int
    failure: Failure | None


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

    def is_of(self, driver: str, release: str) -> bool:
        """True if the release of this driver does so."""
        return driver == self.driver and release.startswith(self.releases)


@frozen
class ExpectedViolation:
    """A rule that need not hold under some configurations of its policy.

    `rule`: or what the simulated device refuses, as "device: empty query", or "endless".
    """

    rule: str
    reason: str
    where: Callable[[Any], bool]


def everywhere(_config: object) -> bool:
    """Under every configuration."""
    return True
