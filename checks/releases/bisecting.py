"""One case on several releases: which do as the reference, and what the others do."""

from collections.abc import Iterator, Sequence
from functools import partial

from attrs import frozen

from checks.conformance.episode import Outcome, run_episode
from checks.conformance.recording import (
    Recording,
    judged_as_json,
    judged_on,
    outcome_as_json,
)
from checks.harness.driver.client import Driver
from checks.harness.driver.lab import DriverLab
from checks.harness.driver.protocol import DriverError, Json
from checks.releases.environments import Environment, command_of, environment_of
from checks.releases.recipes import RECIPES

NOT_INSTALLED = "not installed"


@frozen
class Tried:
    """A release and what became of the case, in a line; no outcome if it is not installed.

    `differs`: it does something else than the reference, known or not, or breaks something where
    it is judged alone.
    """

    environment: Environment
    told: str = NOT_INSTALLED
    differs: bool = False
    outcome: Json | None = None


def versions_of(driver: str, span: str) -> list[Environment]:
    """The environments of the releases in `FIRST..LAST`, the oldest first.

    Raises:
        DriverError: there are no releases of the driver, or an end of it is none that is known.
    """
    known = [one for one in reversed(RECIPES) if one.driver == driver]
    if not known:
        drivers = ", ".join(sorted({one.driver for one in RECIPES}))
        raise DriverError("DRIVER", driver, f"one of which releases are known: {drivers}")
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
            yield Tried(environment)
            continue
        command = command_of(environment.recipe.name)
        with DriverLab(partial(Driver, command)) as lab:
            run = _alone if recording.alone else _compared
            yield run(environment, lab, recording)


def _compared(environment: Environment, lab: DriverLab, recording: Recording) -> Tried:
    outcome = run_episode(lab, recording.case, recording.terms)
    differs = bool(outcome.finding or outcome.known)
    return Tried(environment, _told(outcome), differs, outcome_as_json(outcome))


def _told(outcome: Outcome) -> str:
    steps = f"{outcome.steps:,} equal steps"
    if outcome.known is not None:
        return f"{outcome.known} after {steps}"
    if outcome.finding is None:
        return f"as the reference in {outcome.steps:,} steps"
    return f"{outcome.finding.kind} after {steps}: {outcome.finding.cause}"


def _alone(environment: Environment, lab: DriverLab, recording: Recording) -> Tried:
    judged = judged_on(lab, recording)
    found = [f"{one.cause} in step {one.step}" for one in judged.findings.values()]
    told = f"breaks {', '.join(found)}" if found else f"holds in {judged.steps:,} steps"
    return Tried(environment, told, bool(found), judged_as_json(judged))
