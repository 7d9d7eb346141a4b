"""Options and output that several subcommands share."""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from math import nan
from pathlib import Path
from typing import Any, TypeAlias

import click
from attrs import asdict, evolve, frozen
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from checks.cli.ci import Case, github_lines, write_junit, write_sarif
from checks.cli.configuration import Sources, read_settings
from checks.cli.envelope import make_report
from checks.cli.outputs import NAME_OR_FILE, NEW_DIRECTORY, NEW_FILE, PATH, STANDARD_OUTPUT
from checks.cluster import cluster_cores
from checks.export.files import new_file
from checks.export.printable import printable
from checks.registry import DEFAULT, claims_of
from spec.core.errors import ConfigError, InputError

Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


# Lines contain no markup and are not wrapped. Tables in piped output have a fixed width, so that
# the output does not depend on the terminal.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}


class _Screen(Console):
    """A console that prints control characters as escapes."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)


out: Console = _Screen(width=None if sys.stdout.isatty() else 120, **_PLAIN)
err: Console = _Screen(stderr=True, **_PLAIN)


# --- options --------------------------------------------------------------------------------------


class _Seconds(click.ParamType[float]):
    """A time in seconds, within the bounds that a clock can measure."""

    name = "seconds"
    least, most = 0.001, 10.0**7

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = nan
        if not self.least <= seconds <= self.most:  # not: also for NaN
            option = "seconds" if param is None else param.opts[0]
            allowed = f"seconds from {self.least:g} to {self.most:,.0f}"
            raise InputError(option, value, allowed)
        return seconds


SECONDS = _Seconds()


def gathered(name: str, make: Callable[..., object], *options: Option) -> Option:
    """Pass several options to a command as one argument `name`, made by `make` from their values.

    The parameters of `make` are named like options of the command.
    """
    keys = tuple(signature(make).parameters)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_one_argument(**values: Any) -> Any:
            made = make(**{key: values.pop(key) for key in keys if key in values})
            return command(**values, **{name: made})

        decorated: Callable[..., Any] = with_one_argument
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _sources(
    config_path: Path | None,
    settings: tuple[str, ...],
    from_env: bool,
    cost: str | None = None,
) -> Sources:
    return Sources(config_path, settings, os.environ if from_env else None, cost=cost)


_CONFIG = (
    click.option("--config", "config_path", type=PATH, help="Configuration, TOML."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one key; policy=NAME says which keys there are.",
    ),
    click.option("--from-env", is_flag=True, help="Read the plugin's environment variables too."),
)
config_options = gathered("sources", _sources, *_CONFIG)
"""`--config`, `--set` and `--from-env`, as `sources` of a configuration."""
timed_config_options = gathered(
    "sources",
    _sources,
    *_CONFIG,
    click.option(
        "--cost",
        type=NAME_OR_FILE,
        metavar="PATH",
        help="Costs of steps in seconds, as `calibrate` writes them, or estimates of a model on a "
        "GPU, such as aiconfigurator:Qwen/Qwen3-8B,h100_sxm; then time units are seconds.",
    ),
)
"""The same with `--cost`, for commands whose times are shown."""


@frozen
class Output:
    """The outputs of a command: its tables and the requested reports."""

    json_path: Path | None = None
    junit_path: Path | None = None
    sarif_path: Path | None = None
    annotations: str | None = None

    @property
    def to_stdout(self) -> bool:
        """True if the JSON report goes to standard output."""
        return str(self.json_path) == STANDARD_OUTPUT

    @property
    def screen(self) -> Console:
        """The console for tables: standard error if the report goes to standard output."""
        return err if self.to_stdout else out

    def end(self, code: int, content: Mapping[str, Any], cases: Iterable[Case] = ()) -> int:
        """Write the requested reports of the current command; returns `code`."""
        command = click.get_current_context().info_name or ""
        needs_cases = self.annotations or self.junit_path or self.sarif_path
        cases = [_printable_case(case) for case in cases] if needs_cases else []
        if self.annotations:
            print_lines(self.screen, *github_lines(cases))
        if self.junit_path is not None:
            write_junit(self.junit_path, command, cases)
        if self.sarif_path is not None:
            write_sarif(self.sarif_path, command, code, cases)
        if self.json_path is None:
            return code
        text = json.dumps(make_report(command, code, content), indent=2) + "\n"
        if self.to_stdout:
            click.echo(text, nl=False)
        else:
            with new_file(self.json_path) as file:
                file.write(text)
        return code


def _printable_case(case: Case) -> Case:
    """The case with printable texts."""
    texts: dict[str, Any] = {
        key: printable(text)
        for key, text in asdict(case, recurse=False).items()
        if isinstance(text, str)
    }
    return evolve(case, **texts, details=tuple(map(printable, case.details)))


_report_options = (
    click.option(
        "--json", "json_path", type=NEW_FILE, help="Machine-readable report; - for standard output."
    ),
    click.option("--junit", "junit_path", type=NEW_FILE, help="What was judged as JUnit XML."),
    click.option("--sarif", "sarif_path", type=NEW_FILE, help="The same as SARIF 2.1.0."),
)
files_option = gathered("output", Output, *_report_options)
"""`--json`, `--junit` and `--sarif`, as `output`."""

json_option = gathered(
    "output",
    Output,
    *_report_options,
    click.option(
        "--format", "annotations", type=click.Choice(["github"]), help="Print annotations, too."
    ),
)
"""The same, and `--format`."""


def directory_option(*names: str, default: str, what: str = "findings") -> Option:
    """The option for the directory into which a command writes `what`."""
    return click.option(
        *names,
        type=NEW_DIRECTORY,
        default=Path(default),
        show_default=True,
        help=f"Directory for {what}.",
    )


out_option = directory_option(
    "--out", "out_path", default="counterexamples", what="counterexamples"
)


def pinned_keys(settings: tuple[str, ...], policy: str | None = None) -> dict[str, Any]:
    """The keys in `KEY=VALUE` settings, with their values.

    `policy`: by default the default policy.

    Raises:
        ConfigError: a setting is invalid for the policy, or names another policy.
    """
    policy = policy or DEFAULT
    values = {
        key.strip(): value for key, _, value in (setting.partition("=") for setting in settings)
    }
    implied = [f"{key}={value}" for key, value in claims_of(policy).implied(values).items()]
    config = read_settings(None, [f"policy={policy}", *settings, *implied]).config
    if config.policy != policy:
        raise ConfigError("policy", config.policy, f"{policy}: here no other is known")
    return {key: getattr(config, key) for key in values}


def match_prefixes(
    names: Sequence[str], known: Collection[str], argument: str, *, nearest: int = 0
) -> list[str]:
    """The known ids that begin with one of the names, in their order; without names all.

    Raises:
        InputError: no id begins with a name; lists the `nearest` ids, else all families.
    """
    for name in names:
        if not any(id_.startswith(name.upper()) for id_ in known):
            near = get_close_matches(name.upper(), known, n=nearest) if nearest else []
            families = sorted({id_.rpartition("-")[0] for id_ in known})
            raise InputError(argument, name, f"{', '.join(near or families)}, or their beginning")
    prefixes = tuple(name.upper() for name in names) or ("",)
    return [id_ for id_ in known if id_.startswith(prefixes)]


def _enter_cluster(context: click.Context, _option: click.Parameter, address: str | None) -> None:
    """Use the cluster at this address until the command ends."""
    if address is not None:
        context.with_resource(cluster_cores(address))


def on_option(pieces: str) -> Option:
    """`--on`, the cluster whose workers do the `pieces`."""
    return click.option(
        "--on",
        metavar="ADDRESS",
        callback=_enter_cluster,
        expose_value=False,
        help=f"Have {pieces} done by a Dask cluster, tcp://HOST:PORT; needs the extra `dask`.",
    )


# --- output ---------------------------------------------------------------------------------------


def plain_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table without lines; a column whose name begins with ">" is aligned to the right.

    Numbers and the names in the first column stay whole; prose that does not fit is folded.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    cells = [tuple(Text(printable(cell)) for cell in row) for row in rows]
    for place, name in enumerate(columns):
        is_number = name.startswith(">")
        whole = max((row[place].cell_len for row in cells), default=0)
        table.add_column(
            name.removeprefix(">"),
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=whole if is_number or place == 0 else min(whole, _LEAST_PROSE),
        )
    for row in cells:
        table.add_row(*row)
    needed = Measurement.get(out, out.options.update(width=_MOST_COLUMNS), table).minimum
    table.width = needed if needed > out.width else None
    return table


def print_lines(screen: Console, *lines: str) -> None:
    """Print the lines without markup and without wrapping."""
    for line in lines:
        screen.print(line, markup=False, soft_wrap=True)


_LEAST_PROSE, _MOST_COLUMNS = 20, 1_000


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """A bar on standard error, only on a terminal; call it with the amount done and a note."""
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
