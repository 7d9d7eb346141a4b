"""One case on several releases: which do as the reference, and what the others do."""

from collections.abc import Iterator, Sequence
from functools import partial

from attrs import frozen

from checks.conformance.client import Driver
from checks.conformance.environments import Environment, command_of, environment_of
from checks.conformance.episode import Outcome, run_episode
from checks.conformance.lab import DriverLab
from checks.conformance.protocol import DriverError
from checks.conformance.recipes import RECIPES
from checks.conformance.recording import Recording

NOT_INSTALLED = "not installed"


@frozen
class Tried:
    """A release and what became of the case; no outcome if it is not installed."""

    environment: Environment
    outcome: Outcome | None

    @property
    def differs(self) -> bool:
        """True if the release does something else than the reference, known or not."""
        return self.outcome is not None and bool(self.outcome.finding or self.outcome.known)

    @property
    def told(self) -> str:
        """What became of it, in a line."""
        if self.outcome is None:
            return NOT_INSTALLED
        steps = f"{self.outcome.steps:,} equal steps"
        if self.outcome.known is not None:
            return f"{self.outcome.known} after {steps}"
        if self.outcome.finding is None:
            return f"as the reference in {self.outcome.steps:,} steps"
        return f"{self.outcome.finding.kind} after {steps}: {self.outcome.finding.cause}"


def versions_of(driver: str, span: str) -> list[Environment]:
    """The environments of the releases in `FIRST..LAST`, the oldest first.

    Raises:
        DriverError: an end of it is no release that is known.
    """
    known = [one for one in reversed(RECIPES) if one.driver == driver]
    names = [one.version for one in known]
    first, _, last = span.partition("..")
    for version in (first, last or first):
        if version not in names:
            raise DriverError("--versions", span, f"FIRST..LAST out of {', '.join(names)}")
    chosen = known[names.index(first) : names.index(last or first) + 1]
    if not chosen:
        raise DriverError("--versions", span, "the older release in front")
    return [environment_of(one) for one in chosen]


def tried(recording: Recording, environments: Sequence[Environment]) -> Iterator[Tried]:
    """The recorded case on each release that is installed."""
    for environment in environments:
        if not environment.is_complete:
            yield Tried(environment, None)
            continue
        command = command_of(environment.recipe.name)
        with DriverLab(partial(Driver, command)) as lab:
            yield Tried(environment, run_episode(lab, recording.case, recording.terms))
