"""What is known of a difference between a release and the reference."""

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import frozen

from checks.harness.comparing import Difference
from checks.harness.system import Action, Failure, Json

Due: TypeAlias = Callable[[Any, tuple[Action, ...], tuple[Any, ...]], int | None]
"""Of a configuration, actions and the reference's steps, the index of a step."""


@frozen
class Divergence:
    """A step in which a driver and the reference differ, and all before it.

    `expected`: the reference's steps. `found`: the driver's, with their `records`. `index`: of the
    step in question; `failure`: what the driver raised there instead of taking it, `differing`: in
    what its step differs if it took it.
    """

    config: Any
    actions: tuple[Action, ...]
    expected: tuple[Any, ...]
    found: tuple[Any, ...]
    records: tuple[Json, ...]
    index: int
    failure: Failure | None
    differing: tuple[Difference, ...] = ()

    def differs_only_in(self, *fields: str) -> bool:
        """True if all that differs is one of these fields or below it."""
        return all(
            f"{one.field}.".startswith(tuple(map("{}.".format, fields))) for one in self.differing
        )


def in_step(shows: Callable[[Divergence, Any, Any], bool]) -> Callable[[Divergence], bool]:
    """Whether a difference is this one, by the step as the reference and as the driver took it."""

    def occurs(divergence: Divergence) -> bool:
        index = divergence.index
        is_taken = index < len(divergence.found)
        return is_taken and shows(divergence, divergence.expected[index], divergence.found[index])

    return occurs


def first_step(shows: Callable[[Any, Action, Any], bool]) -> Due:
    """The first step that shows it, by the configuration, what was done around the step, and it."""

    def due(config: Any, actions: tuple[Action, ...], steps: tuple[Any, ...]) -> int | None:
        pairs = zip(actions, steps, strict=False)
        return next((step.index for action, step in pairs if shows(config, action, step)), None)

    return due


@frozen
class KnownDifference:
    """What a release does otherwise.

    `driver` and `releases`: the driver's name, and what its releases begin with. `occurs`: whether
    a difference is this one, and nothing differs that it does not explain. `due`: the first of the
    reference's steps in which it must show if nothing differed before, or None.
    """

    id: str
    driver: str
    releases: tuple[str, ...]
    says: str
    reason: str
    occurs: Callable[[Divergence], bool]
    due: Due

    @property
    def versions(self) -> str:
        """The versions that do so, as they are written in tables."""
        return ", ".join(one.split()[1] for one in self.releases)

    def is_of(self, driver: str, release: str) -> bool:
        """True if the release of this driver does so."""
        return driver == self.driver and release.startswith(self.releases)


@frozen
class ExpectedViolation:
    """Rules that need not hold under some configurations of their policy.

    `rules`: or what the simulated device refuses, as "device: empty query", or "endless". `where`:
    by default under every configuration. `shows`: in which steps, by
    default in all.
    """

    rules: tuple[str, ...]
    reason: str
    where: Callable[[Any], bool] = lambda _config: True
    shows: Callable[[Any], bool] = lambda _step: True
