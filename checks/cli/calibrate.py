"""`lockstep calibrate`: the costs of steps, fitted to the log of a server."""

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from checks.cli import exit_code
from checks.cli.common import Output, json_option, plain_table, print_lines
from checks.cli.cost_file import UNIT, write_cost
from checks.cli.outputs import NEW_FILE, PATH, Command
from checks.export.figures import percent
from checks.harness.logs.reading import Header, LogReader
from checks.harness.logs.timing import Fit, fitted, timed_steps
from checks.words import counted
from spec.core.errors import InputError


@click.command(cls=Command)
@click.argument("log", type=PATH)
@click.option(
    "--out",
    type=NEW_FILE,
    help="Write the costs, TOML, for `--cost` of `simulate` and `run`.",
)
@json_option
def calibrate(log: Path, out: Path | None, output: Output) -> int:
    r"""Fit the costs of steps to the LOG of a running server, in seconds.

    A step costs a base, and more for each prompt token that it computes, each request that decodes
    and each pair of a computed token and a token that it attends to. The costs are those with the
    least squared error over all steps; the answer says how far they are off. The chapter on logs
    says how a server records one. With `--cost FILE` simulated times are seconds.

    \b
      lockstep calibrate log.jsonl --out cost.toml
      lockstep simulate trace.csv --cost cost.toml --slo ttft=2,itl=0.05
    """
    with closing(LogReader(log)) as reader:
        header = reader.header
        steps, unknown = timed_steps(reader, asynchronous=header.asynchronous)
        try:
            fit = fitted(steps)
        except InputError as error:
            raise error.at(log) from None
    about = _about(header, fit)
    if out is not None:
        write_cost(out, fit.cost, about)
    _print(output, fit, about, unknown)
    if out is not None:
        output.screen.print(f"written: {out}")
    return output.end(exit_code(violated=False), _report(header, fit, unknown))


def _about(header: Header, fit: Fit) -> str:
    release = header.release or header.policy
    median, largest = percent(fit.median_error), percent(fit.largest_error)
    errors = f"errors {median} in the median, {largest} at most"
    return f"{counted(fit.steps, 'step')} of {release}; R² {fit.r_squared:.4f}, {errors}"


_LITTLE = 0.5  # R² of costs that are not worth a simulation
_MEANS = {
    "prefill_time": "a step",
    "per_chunk_token": "a prompt token",
    "per_row": "a request that decodes",
    "per_attended_token": "a token that a token attends to",
}


def _print(output: Output, fit: Fit, about: str, unknown: int) -> None:
    rows = [
        (means, f"{fit.cost[name]:.4g}" if name in fit.cost else "0", fit.left_out.get(name, ""))
        for name, means in _MEANS.items()
    ]
    if "base" in fit.left_out:
        rows[0] = (rows[0][0], "0", fit.left_out["base"])
    output.screen.print(plain_table(("cost of", f">{UNIT}s", ""), rows))
    print_lines(output.screen, about)
    print_lines(output.screen, f"the largest error is that of line {fit.largest_line} of the log")
    if fit.r_squared < _LITTLE:
        print_lines(output.screen, f"R² below {_LITTLE}: these costs say little about this server")
    if unknown:
        what = counted(unknown, "more step")
        print_lines(output.screen, f"{what}: no seconds, or a prompt that was never computed whole")


def _report(header: Header, fit: Fit, unknown: int) -> dict[str, Any]:
    return {
        "policy": header.policy,
        "release": header.release,
        "unit": UNIT,
        "cost": dict(fit.cost),
        "left_out": dict(fit.left_out),
        "steps": fit.steps,
        "unknown_steps": unknown,
        "r_squared": fit.r_squared,
        "median_error": fit.median_error,
        "largest_error": fit.largest_error,
        "largest_error_line": fit.largest_line,
    }
