"""Run one recorded case on several releases and compare each with the reference."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from attrs import frozen

from checks.harness.campaigns.recording import Recording, fitted, outcome_as_json
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.driver.protocol import DriverError
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Episode
from checks.harness.system import Json, System
from checks.releases.environments import Environment, command_of, environment_of
from checks.releases.recipes import RECIPES
from checks.words import counted

NOT_INSTALLED = "not installed"


@frozen
class Tried:
    """A release and the outcome of the case; `verdict`: in one line.

    `differs`: the release differs from the reference, known or not, or breaks a rule if it is
    judged alone. `outcome`: None if the release is not installed.
    """

    environment: Environment
    verdict: str = NOT_INSTALLED
    differs: bool = False
    outcome: Json | None = None


def release_environments(driver: str, span: str) -> list[Environment]:
    """The environments of the releases in `FIRST..LAST`, the oldest first.

    Raises:
        DriverError: the driver has no releases, or an end of the span is unknown.
    """
    recipes = [recipe for recipe in reversed(RECIPES) if recipe.driver == driver]
    if not recipes:
        drivers = ", ".join(sorted({recipe.driver for recipe in RECIPES}))
        raise DriverError("DRIVER", driver, f"one of which releases are known: {drivers}")
    names = [recipe.version for recipe in recipes]
    first, _, last = span.partition("..")
    for version in (first, last or first):
        if version not in names:
            raise DriverError("--versions", span, f"FIRST..LAST out of {', '.join(names)}")
    chosen = recipes[names.index(first) : names.index(last or first) + 1]
    if not chosen:
        raise DriverError("--versions", span, "the older release in front")
    return [environment_of(recipe) for recipe in chosen]


def tried(recording: Recording, environments: Sequence[Environment]) -> Iterator[Tried]:
    """Run the recorded case on each release; uninstalled releases have no outcome."""
    for environment in environments:
        if not environment.is_complete:
            yield Tried(environment)
            continue
        source = DriverCommand(command_of(environment.recipe.name))
        with closing(source.open()) as system:
            yield _tried(environment, system, recording)


def run_case(system: System, case: Case, terms: Terms) -> Episode:
    """Run the case on a system; if it is judged alone, fitted to the system's configuration."""
    return compare(system, fitted(system.hello, case) if terms.rules_only else case, terms)


def _tried(environment: Environment, system: System, recording: Recording) -> Tried:
    terms = recording.terms
    episode = run_case(system, recording.case, terms)
    differs = bool(episode.findings or episode.known)
    outcome = outcome_as_json(episode, terms)
    return Tried(environment, in_words(episode, terms), differs, outcome)


def in_words(episode: Episode, terms: Terms) -> str:
    """The outcome of a case in one line."""
    return _judged_in_words(episode) if terms.rules_only else _compared_in_words(episode)


def _compared_in_words(episode: Episode) -> str:
    steps = f"{episode.steps:,} equal steps"
    if episode.known is not None:
        return f"{episode.known} after {steps}"
    if episode.finding is None:
        return f"as the reference in {counted(episode.steps, 'step')}"
    return f"{episode.finding.kind} after {steps}: {episode.finding.cause}"


def _judged_in_words(episode: Episode) -> str:
    broken = [f"{finding.cause} in step {finding.step}" for finding in episode.findings.values()]
    return f"breaks {', '.join(broken)}" if broken else f"holds in {counted(episode.steps, 'step')}"
