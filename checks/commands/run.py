"""`lockstep run`: serve a workload, judge every step, say what it cost."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from checks.commands.common import (
    PATH,
    config_of,
    config_options,
    console,
    json_option,
    progress_bar,
    write_json,
)
from checks.figures import figure_lines
from checks.running import Broken, Judge, serve
from checks.traces import TraceWriter, Violation, write_lines
from engine.metrics import Metrics, Spread, Summary
from engine.workloads import Format, fit, read_workload
from reference.spyre.machine import SpyreMachine
from spec.records import Step
from spec.rules import REGISTRY


@click.command()
@click.argument("workload", type=PATH)
@config_options
@click.option("--format", "format_", type=click.Choice(list(Format)), help="Of the workload file.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N requests.")
@click.option(
    "--using",
    type=click.Choice(["reference"]),
    default="reference",
    show_default=True,
    help="Who schedules.",
)
@click.option("--trace", "trace_path", type=PATH, help="Write what every step did, JSON lines.")
@click.option("--full", is_flag=True, help="Whole states in the trace, so that it can be judged.")
@click.option("--figures", "figures_path", type=PATH, help="Write the published plot format.")
@json_option
def run(
    workload: Path,
    config_path: Path | None,
    settings: tuple[str, ...],
    from_env: bool,
    format_: str | None,
    limit: int | None,
    using: str,
    trace_path: Path | None,
    full: bool,
    figures_path: Path | None,
    json_path: Path | None,
) -> int:
    """Serve WORKLOAD and hold every rule against every step.

    WORKLOAD is a file of requests, one a line, or an Azure or Mooncake trace. Arrivals in seconds
    are moments of the simulated clock, on which a prefill step takes 8 units and a decode step 1
    unless the configuration says otherwise. Requests of a public trace that could never be served
    are left out and counted.
    """
    config = config_of(config_path, settings, from_env)
    read = read_workload(workload, format_, limit)
    servable, refused = fit(read, config)
    machine = SpyreMachine.of(config, servable)
    judge, metrics = Judge(machine.ctx), Metrics(config, machine.ctx.requests)
    kept: list[Step] = []
    began = perf_counter()
    with ExitStack() as files:
        trace = None
        if trace_path is not None:
            writer = TraceWriter(trace_path, config, servable, source=using, full=full)
            trace = files.enter_context(writer)
        for step in _shown(serve(machine, servable), len(servable)):
            judge.observe(step)
            metrics.observe(step)
            if trace is not None:
                trace.write(step)
            if figures_path is not None:
                kept.append(step)
        if trace is not None and judge.broken:
            trace.violated(_violation(judge.broken[0]))
    seconds = perf_counter() - began
    if figures_path is not None:
        write_lines(figures_path, figure_lines(config, machine.ctx.requests, kept))
    summary = metrics.summary()
    write_json(_report(summary, judge, using, len(refused) + read.skipped, seconds), json_path)
    screen = console(json_path)
    _print_tables(screen, summary, judge, len(refused), read.skipped, seconds)
    for path in (trace_path, figures_path):
        if path is not None:
            screen.print(f"written: {path}")
    return 1 if judge.broken else 0


def _shown(steps: Iterator[Step], requests: int) -> Iterator[Step]:
    """The steps, with a progress bar of requests that have left."""
    with progress_bar("requests", requests) as show:
        for step in steps:
            if step.index % 64 == 0:
                left = len(step.after.finished) + len(step.after.aborted)
                show(left, f"step {step.index:,}, {len(step.after.waiting):,} waiting")
            yield step


def _violation(broken: Broken) -> Violation:
    return Violation(broken.rule.id, broken.rule.sentence, f"step {broken.step}: {broken.found}")


def _report(
    summary: Summary, judge: Judge, using: str, refused: int, seconds: float
) -> dict[str, Any]:
    steps = sum(summary.steps.values())
    return {
        "using": using,
        "config": judge.ctx.config.as_mapping(),
        "refused": refused,
        "rules": [rule.id for rule in judge.rules],
        "violations": [
            {"step": one.step, "rule": one.rule.id, "found": one.found} for one in judge.broken
        ],
        "seconds": round(seconds, 3),
        "steps_per_second": round(steps / seconds) if seconds else None,
        **summary.as_mapping(),
    }


def _print_tables(
    screen: Console, summary: Summary, judge: Judge, refused: int, skipped: int, seconds: float
) -> None:
    screen.print(_overview(summary, refused, skipped))
    screen.print(_latencies(summary))
    if summary.waits:
        screen.print(_waits(summary))
    steps = sum(summary.steps.values())
    for one in judge.broken:
        screen.print(f"[bold red]violated[/bold red] {one.rule.id} in step {one.step}: {one.found}")
        screen.print(f"  {one.rule.sentence}")
    verdict = "not every rule holds" if judge.broken else "every rule holds"
    screen.print(
        f"{verdict}: {len(judge.rules)} rules, {steps:,} steps "
        f"({seconds:.1f} s, {steps / max(seconds, 1e-9):,.0f} steps/s)"
    )


def _plain_table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(names[0])
    for name in names[1:]:
        table.add_column(name, justify="right")
    return table


def _overview(summary: Summary, refused: int, skipped: int) -> Table:
    table = _plain_table("run", "")
    requests = f"{summary.requests:,}: {summary.finished:,} finished, {summary.aborted:,} aborted"
    if refused:
        requests += f"; {refused:,} more refused, could never be served"
    if skipped:
        requests += f"; {skipped:,} rows without tokens skipped"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in summary.steps.items() if count)
    rows = {
        "requests": requests,
        "steps": f"{sum(summary.steps.values()):,}: {kinds}",
        "tokens": f"{summary.prompt_tokens:,} prompt, {summary.output_tokens:,} output",
        "throughput": f"{_rounded(summary.output_tokens_per_unit)} output tokens per time unit",
        "largest volume": f"{summary.peak_volume:,} of {summary.volume_limit:,}",
        "largest batch": f"{summary.peak_batch:,}",
        "padding waste": (
            f"{_percent(summary.decode_padding_share)} of the decode volume, "
            f"{summary.prefill_padding_tokens:,} tokens of prefill"
        ),
        "cache hits": (
            f"{_percent(summary.prefix_hit_rate)} of prompt tokens reused, "
            f"{summary.recomputed_tokens:,} more cached but computed again"
        ),
        "preemptions, pauses": f"{summary.preemptions:,}, {summary.pauses:,}",
        "tkv jumps": f"{summary.tkv_jumps:,}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _latencies(summary: Summary) -> Table:
    table = _plain_table("latency", "mean", "p50", "p90", "p99", "max")
    spreads: Sequence[tuple[str, Spread]] = (
        ("TTFT, steps", summary.ttft_steps),
        ("TTFT, time units", summary.ttft_units),
        ("ITL, steps", summary.itl_steps),
        ("ITL, time units", summary.itl_units),
        ("end to end, steps", summary.end_to_end_steps),
        ("end to end, time units", summary.end_to_end_units),
    )
    for name, one in spreads:
        values = (one.mean, one.p50, one.p90, one.p99, one.max)
        table.add_row(name, *(_rounded(value) for value in values))
    return table


def _waits(summary: Summary) -> Table:
    table = _plain_table("steps in which a prefill was refused by", "")
    by_count: Iterable[tuple[str, int]] = sorted(
        summary.waits.items(), key=lambda item: (-item[1], item[0])
    )
    for rule, steps in by_count:
        table.add_row(f"{rule}: {REGISTRY[rule].sentence}", f"{steps:,}")
    return table


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
