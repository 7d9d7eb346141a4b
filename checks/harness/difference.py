"""Known differences between releases and the reference, and expected rule violations."""

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import frozen

from checks.harness.comparing import Difference
from checks.harness.system import Action, Failure, Json

Due: TypeAlias = Callable[[Any, tuple[Action, ...], tuple[Any, ...]], int | None]
"""The step index at which a difference is due, by configuration, actions and reference steps."""


@frozen
class Divergence:
    """A step in which a driver and the reference differ, with all steps before it.

    `expected`: the reference's steps. `found`: the driver's steps, with their `records`. `index`:
    the step that differs. `failure`: the error that the driver raised in it; None if it took the
    step. `differing`: the fields in which the driver's step differs.
    """

    config: Any
    actions: tuple[Action, ...]
    expected: tuple[Any, ...]
    found: tuple[Any, ...]
    records: tuple[Json, ...]
    index: int
    failure: Failure | None
    differing: tuple[Difference, ...] = ()

    def differs_only(self, *fields: str) -> bool:
        """True if every differing field is one of these fields or below one."""
        return all(
            f"{difference.field}.".startswith(tuple(map("{}.".format, fields)))
            for difference in self.differing
        )


def in_step(shows: Callable[[Divergence, Any, Any], bool]) -> Callable[[Divergence], bool]:
    """Recognise a known difference by the step of the reference and the step of the driver."""

    def occurs(divergence: Divergence) -> bool:
        index = divergence.index
        is_taken = index < len(divergence.found)
        return is_taken and shows(divergence, divergence.expected[index], divergence.found[index])

    return occurs


def first_step(shows: Callable[[Any, Action, Any], bool]) -> Due:
    """A difference is due in the first step for which `shows(config, action, step)` is true."""

    def due(config: Any, actions: tuple[Action, ...], steps: tuple[Any, ...]) -> int | None:
        pairs = zip(actions, steps, strict=False)
        return next((step.index for action, step in pairs if shows(config, action, step)), None)

    return due


@frozen
class KnownDifference:
    """A documented difference of some releases of a driver from the reference.

    `driver`: the driver's name. `releases`: prefixes of its release names. `occurs`: true if a
    divergence is this difference and nothing else differs. `due`: the first step of the reference
    in which the difference must show if nothing differed before; None if it need not show.
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
        """The versions with this difference, as tables print them."""
        return ", ".join(release.split()[1] for release in self.releases)

    def covers(self, driver: str, release: str) -> bool:
        """True if this release of this driver has the difference."""
        return driver == self.driver and release.startswith(self.releases)


@frozen
class ExpectedViolation:
    """Rules that need not hold under some configurations of their policy.

    `rules`: rule ids, refusals of the simulated device such as "device: empty query", or "endless".
    `where`: the configurations, by default all. `shows`: the steps, by default all.
    """

    rules: tuple[str, ...]
    reason: str
    where: Callable[[Any], bool] = lambda _config: True
    shows: Callable[[Any], bool] = lambda _step: True
