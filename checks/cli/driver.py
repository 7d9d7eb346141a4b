"""`lockstep driver`: install, list and try drivers of released schedulers."""

from itertools import islice
from pathlib import Path

import click

from checks.cli import INCOMPLETE, exit_code
from checks.cli.campaigns import system_of_command
from checks.cli.common import err, out, plain_table, print_lines
from checks.cli.outputs import NEW_FILE, PATH, Command
from checks.export.files import new_file
from checks.harness.campaigns.campaign import FirstSeen, Plan, shrunk
from checks.harness.campaigns.report import print_finding
from checks.harness.campaigns.shrinking import Budget
from checks.harness.comparison import Terms
from checks.harness.driver.process import DRIVER_FILES
from checks.harness.driver.protocol import NoMachineError
from checks.harness.driver.system import DriverCommand
from checks.registry import DEFAULT
from checks.releases.bisecting import run_case
from checks.releases.checkouts import recipe_of_checkout
from checks.releases.environments import (
    TEMPLATE,
    InstallationError,
    command_of,
    environment_of,
    install,
    known_recipe,
    noted_checkouts,
)
from checks.releases.recipes import PLUGIN, RECIPES, TEMPLATES, recipe_of
from checks.releases.trial import Tried, trial_cases, try_unmodelled
from checks.words import counted
from spec.core.errors import InputError

_EPISODES = 20
_MOST_STEPS = 4_000  # of the runs in which a first difference is made small


@click.group()
def driver() -> None:
    """Install, list and try drivers of released schedulers.

    Each release gets an environment of its own below $LOCKSTEP_DRIVERS, by default in the user's
    cache directory; nothing is added to ours.
    """


@driver.command("install", cls=Command)
@click.argument("name")
@click.option("--version", help="Which release; the newest that is known by default.")
@click.option(
    "--source", type=PATH, help="A working tree of the plugin instead, on the vLLM it asks for."
)
@click.option("--into", type=PATH, help="Directory for environments.")
def install_driver(name: str, version: str | None, source: Path | None, into: Path | None) -> int:
    """Make the environment of the release NAME; minutes, and about 2 GB.

    Older releases share what the newest one needs, which must be installed first.
    What was installed before is not installed again, so a broken installation is continued by the
    same command. pip's own configuration says where packages come from. $LOCKSTEP_TORCH is the
    requirement for torch where the usual one does not fit the machine.

    With --source the files of the working tree are run where they are: after a change of them
    `lockstep conform NAME --source PATH` needs no other installation.
    """
    if source is not None and version is not None:
        raise InputError("--version", version, "none, together with --source")
    recipe = known_recipe(name, version) if source is None else recipe_of_checkout(name, source)
    environment = environment_of(recipe, into)
    out.print(f"{recipe.name} into {environment.directory}")
    try:
        install(environment, lambda line: out.print(f"  {line}"))
    except InstallationError as error:
        print_lines(err, f"lockstep: {error}")
        return INCOMPLETE
    if into is not None:
        out.print(f"to use it: export LOCKSTEP_DRIVERS={into}")
        return 0
    if source is not None:
        out.print(f"to use it: lockstep conform {name} --source {source}")
        return 0
    return _try(recipe.name)


@driver.command("list", cls=Command)
def list_drivers() -> None:
    """Every release that is known, and whether it is installed; then working trees that were."""
    rows = [(TEMPLATE, "a toy to start from", "needs no installation")]
    for recipe in RECIPES:
        environment = environment_of(recipe)
        version = f" --version {recipe.version}" if recipe.shares else ""
        missing = f"not installed: lockstep driver install {recipe.driver}{version}"
        state = f"installed in {environment.directory}" if environment.is_complete else missing
        rows.append((recipe.name, recipe.about, state))
    rows.extend(_row_of_checkout(path) for path in noted_checkouts())
    out.print(plain_table(("driver", "release", "state"), rows))


def _row_of_checkout(path: Path) -> tuple[str, str, str]:
    """The row of a working tree; "cannot be used" if it is gone or needs an unknown vLLM."""
    missing = f"not installed: lockstep driver install {PLUGIN} --source {path}"
    try:
        recipe = recipe_of_checkout(PLUGIN, path)
    except InputError as error:
        return PLUGIN, str(path), f"cannot be used: {error}"
    environment = environment_of(recipe)
    state = f"installed in {environment.directory}" if environment.is_complete else missing
    return recipe.name, recipe.about, state


@driver.command("new", cls=Command)
@click.argument("path", type=NEW_FILE)
@click.option(
    "--policy", type=click.Choice([*TEMPLATES]), default=DEFAULT, show_default=True, help="Of what."
)
def new_driver(path: Path, policy: str) -> None:
    """Write a driver to start from to PATH: a toy scheduler that conforms, to be replaced by yours.

    Of vLLM V0 it is the driver of the release, since a record of that policy has every field.
    """
    if path.exists():
        raise InputError("PATH", str(path), "a file that is not there yet")
    with new_file(path) as file:
        file.write((DRIVER_FILES / TEMPLATES[policy]).read_text(encoding="utf-8"))
    print_lines(out, f"written: {path}", f"try it: lockstep driver check {path}")


@driver.command("check", cls=Command)
@click.argument("name")
def check_driver(name: str) -> int:
    """Start the driver NAME, or that of a file, and compare 20 small episodes.

    The first difference is made small and shown: the rule that breaks, the fields that differ, what
    was expected in them and what the driver has.

    Where no variant of the reference schedules as a release does, its steps are judged by the rules
    and not compared. Of a policy that has no machine yet the episode is served, and nothing more.
    """
    return _try(name)


def _try(name: str) -> int:
    command = command_of(name)
    try:
        holds = _compared(Plan(DriverCommand(command)), rules_only=_is_rules_only(name))
    except NoMachineError:
        tried = try_unmodelled(command)
        print_lines(out, *_served(tried))
        holds = tried.worked
    return exit_code(violated=not holds)


def _is_rules_only(name: str) -> bool:
    """True if no variant of the reference schedules as this release does."""
    driver_name, _, version = name.partition("==")
    recipe = recipe_of(driver_name, version or None)
    return recipe is not None and recipe.rules_only


def _compared(plan: Plan, *, rules_only: bool) -> bool:
    """Compare some small episodes and print the result; true if all hold."""
    system, steps = system_of_command(plan.system), 0
    hello, terms = system.hello, Terms(rules_only=rules_only)
    unreported = ", ".join(sorted(hello.unreported)) or "none"
    print_lines(out, f"{hello.name}: {hello.release}", f"  unreported fields: {unreported}")
    if rules_only:
        out.print("  no variant of the reference schedules as it does: judged, not compared")
    for number, case in enumerate(islice(trial_cases(plan), 1 if rules_only else _EPISODES)):
        episode = run_case(system, case, terms)
        steps += episode.steps
        if episode.finding is not None:
            first = FirstSeen(number, case, terms, episode.finding)
            small = shrunk(plan, first, Budget(_MOST_STEPS))
            print_finding(out, hello, small.case, small.finding)
            return False
    what = "its rules hold" if rules_only else "holds"
    out.print(f"  {what} for {counted(number + 1, 'episode')}, {counted(steps, 'step')}")
    return True


def _served(tried: Tried) -> list[str]:
    """The lines to print for an episode that was served without a comparison."""
    hello = tried.hello
    abilities = ", ".join(hello.get("abilities", ())) or "none"
    ended = f"; it raised {tried.failure}" if tried.failure else ""
    return [
        f"{hello.get('name')}: {hello.get('release')}",
        f"  {hello.get('policy')} has no machine yet: nothing is compared",
        f"  abilities: {abilities}",
        f"  fields of a step: {', '.join(tried.fields)}",
        f"  {counted(tried.finished, 'request')} served in {counted(tried.steps, 'step')}{ended}",
    ]
