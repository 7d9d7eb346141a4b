"""Options and output that several subcommands share.

The policies, and what serves them, are imported where they are used: no help needs them.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from checks.export.files import new_file, refuse_unwritable
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, InputError

Command = TypeVar("Command", bound=Callable[..., Any])

# Piped output has a fixed width, so that it does not change with the terminal it was made in.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True, highlight=False)


class _NewFile(click.ParamType[Path]):
    """A file that a command writes in the end: refused before its work if that will not do."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        if str(path) != "-":
            refuse_unwritable(path)
        return path


class _NewDirectory(click.ParamType[Path]):
    """A directory that a command makes when it has something to put there; the same."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
        if not there.is_dir():
            option = "directory" if param is None else param.opts[0]
            raise InputError(option, str(path), "a directory, or what can become one")
        return path


PATH = click.Path(path_type=Path)
NEW_FILE = _NewFile()
NEW_DIRECTORY = _NewDirectory()
CAMPAIGN_SECONDS = 60.0  # unless --time or --episodes says otherwise


def config_options(command: Command) -> Command:
    """`--config`, `--set` and `--from-env`."""
    command = click.option(
        "--from-env", is_flag=True, help="Read the plugin's environment variables too."
    )(command)
    command = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one key; policy=NAME says which keys there are.",
    )(command)
    return click.option("--config", "config_path", type=PATH, help="Configuration, TOML.")(command)


def config_of(
    config_path: Path | None,
    settings: tuple[str, ...],
    from_env: bool,
    base: PolicyConfig | None = None,
) -> PolicyConfig:
    """The configuration of the options, over `base` instead of the defaults if it is given.

    Raises:
        ConfigError: see `read_settings`.
    """
    from checks.cli.configuration import read_settings

    return read_settings(config_path, settings, os.environ if from_env else None, base).config


def campaign_options(command: Command) -> Command:
    """`--time`, `--episodes`, `--seed` and `--strictness` of a campaign of random cases."""
    from checks.harness.comparing import Strictness

    command = click.option(
        "--strictness",
        type=click.Choice([one.value for one in Strictness]),
        default=Strictness.EXACT.value,
        show_default=True,
        help="exact: every field; observable: what a trace shows; decisions: what was scheduled.",
    )(command)
    command = click.option("--seed", type=click.IntRange(0), default=0, show_default=True)(command)
    command = click.option(
        "--episodes", type=click.IntRange(1), help="Run so many episodes instead."
    )(command)
    return click.option(
        "--time",
        "seconds",
        type=click.FloatRange(0, min_open=True),
        help=f"Begin no episode after S seconds of running.  [default: {CAMPAIGN_SECONDS:g}]",
    )(command)


def pinned_option(command: Command) -> Command:
    """`--set` of a campaign: keys that its cases have in common."""
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Do not draw this key."
    )(command)


def pinned_keys(settings: tuple[str, ...], policy: str | None = None) -> dict[str, Any]:
    """The keys that are set, with their values; of the default policy unless one is named.

    Raises:
        ConfigError: a setting that no configuration of the policy can have, or another policy.
    """
    from checks.cli.configuration import read_settings
    from checks.policies import DEFAULT, policy_named

    pinned = policy_named(policy or DEFAULT)
    given = {key.strip(): value for key, _, value in (one.partition("=") for one in settings)}
    implied = [f"{key}={value}" for key, value in pinned.implied(given).items()]
    config = read_settings(None, [f"policy={pinned.name}", *settings, *implied]).config
    if config.policy != pinned.name:
        raise ConfigError("policy", config.policy, f"{pinned.name}: here no other is known")
    return {key: getattr(config, key) for key in given}


def out_option(command: Command) -> Command:
    """`--out DIR` for counterexamples."""
    return click.option(
        "--out",
        "out_path",
        type=NEW_DIRECTORY,
        default=Path("counterexamples"),
        show_default=True,
        help="Directory for counterexamples.",
    )(command)


def json_option(command: Command) -> Command:
    """`--json FILE`; `-` is standard output."""
    return click.option(
        "--json", "json_path", type=NEW_FILE, help="Machine-readable report; - for standard output."
    )(command)


def write_json(report: dict[str, Any] | list[Any], path: Path | None) -> None:
    """Write the report, if one was asked for."""
    if path is None:
        return
    text = json.dumps(report, indent=2) + "\n"
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    with new_file(path) as file:
        file.write(text)


def to_stdout(json_path: Path | None) -> bool:
    """True if the report takes standard output, so that tables must not."""
    return json_path is not None and str(json_path) == "-"


def console(json_path: Path | None) -> Console:
    """Where tables go: to standard error if the report takes standard output."""
    return err if to_stdout(json_path) else out


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """A bar on standard error, only on a terminal; call it with the amount done and a note."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda done, note: bar.update(task, completed=done, note=note)
