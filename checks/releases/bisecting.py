"""One case on several releases: which do as the reference, and what the others do."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from attrs import frozen

from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.driver.protocol import DriverError
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Episode
from checks.harness.recording import Recording, fitted, outcome_as_json
from checks.harness.system import Json, System
from checks.releases.environments import Environment, command_of, environment_of
from checks.releases.recipes import RECIPES
from checks.words import counted

NOT_INSTALLED = "not installed"


@frozen
class Tried:
    """A release and what became of the case, in a line; no outcome if it is not installed.

    `differs`: it does something else than the reference, known or not, or breaks something where
    it is judged alone.
    """

    environment: Environment
    verdict: str = NOT_INSTALLED
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
        source = DriverCommand(command_of(environment.recipe.name))
        with closing(source.open()) as system:
            yield _tried(environment, system, recording)


def episode_of(system: System, case: Case, terms: Terms) -> Episode:
    """The case on a system; where it is judged alone, with what a release cannot do otherwise."""
    return compare(system, fitted(system.hello, case) if terms.rules_only else case, terms)


def _tried(environment: Environment, system: System, recording: Recording) -> Tried:
    terms = recording.terms
    episode = episode_of(system, recording.case, terms)
    differs = bool(episode.findings or episode.known)
    outcome = outcome_as_json(episode, terms)
    return Tried(environment, in_words(episode, terms), differs, outcome)


def in_words(episode: Episode, terms: Terms) -> str:
    """What became of a case, in a line."""
    return _judged_in_words(episode) if terms.rules_only else _compared_in_words(episode)


def _compared_in_words(episode: Episode) -> str:
    steps = f"{episode.steps:,} equal steps"
    if episode.known is not None:
        return f"{episode.known} after {steps}"
    if episode.finding is None:
        return f"as the reference in {counted(episode.steps, 'step')}"
    return f"{episode.finding.kind} after {steps}: {episode.finding.cause}"


def _judged_in_words(episode: Episode) -> str:
    found = [f"{one.cause} in step {one.step}" for one in episode.findings.values()]
    return f"breaks {', '.join(found)}" if found else f"holds in {counted(episode.steps, 'step')}"
