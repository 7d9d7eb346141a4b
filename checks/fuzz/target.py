"""What can be held in lockstep with the reference: our engine, a driver, the reference itself."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from attrs import frozen

from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step


class Target(Protocol):
    """A scheduler that runs step by step, for requests that it was told of when it was made.

    What it cannot know of a step it leaves at its default; the comparison names what was left out.
    """

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        ...

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""
        ...

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        """One scheduler step, numbered `index`, begun at `time` on the simulated clock.

        `ends`: who of those that sample in this step samples the end of sequence; by default
        each request ends where it says that it does.
        """
        ...


Maker = Callable[[SpyreConfig, Iterable[Request]], Target]


def _any_config(_config: SpyreConfig) -> bool:
    return True


@frozen
class Subject:
    """Who is fuzzed: a maker of targets with its name.

    `leaves_out`: fields of a step or state that its targets do not know, as `compare` names them;
    they are not compared. `can_do`: whether its targets implement what a configuration asks for.
    """

    name: str
    make: Maker
    leaves_out: frozenset[str] = frozenset()
    can_do: Callable[[SpyreConfig], bool] = _any_config
