"""What `lockstep run` prints: the figures of a run, or of several side by side."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

from rich.console import Console
from rich.table import Table

from checks.harness.serving import Refused, Run
from checks.policies import RULES
from engine.core.metrics import Spread, Summary
from reference.core.guards import GuardError
from spec.core.records import PREFILL

_FOUND_CHARACTERS = 240  # what a rule found can name every request of a large batch


def print_run(screen: Console, run: Run, refused: int, skipped: int) -> None:
    """The figures of one run, and what was found wrong with it.

    `refused` requests of the file could never be served, `skipped` rows of it are none.
    """
    summary = run.summary
    table = _plain_table("run", "")
    for name, value in _overview(summary, refused, skipped).items():
        table.add_row(name, value)
    screen.print(table)
    screen.print(_latencies(summary))
    if summary.waits:
        screen.print(_waits(summary))
    _print_verdict(screen, run)


def print_comparison(screen: Console, runs: Mapping[str, Run], refused: Sequence[int]) -> None:
    """The figures of several runs, one column each, by label; then what was found wrong.

    `refused`: requests that could never be served, by run.
    """
    table = _plain_table("", *runs)
    columns = [
        {"refused, never servable": f"{left_out:,}"} | _compared(run)
        for run, left_out in zip(runs.values(), refused, strict=True)
    ]
    for name in dict.fromkeys(name for figures in columns for name in figures):
        table.add_row(name, *(figures.get(name, "-") for figures in columns))
    screen.print(table)
    for label, run in runs.items():
        if not run.holds:
            screen.print(f"[bold]{label}[/bold]")
            _print_faults(screen, run)


def _print_faults(screen: Console, run: Run) -> None:
    for rule in {one.rule.id: one.rule for one in run.broken}.values():
        first, *others = (one for one in run.broken if one.rule is rule)
        found = shorten(first.found, _FOUND_CHARACTERS, placeholder=" … (whole in --json)")
        screen.print(f"[bold red]violated[/bold red] {rule.id} in step {first.step}: {found}")
        screen.print(f"  {rule.sentence}")
        if others:
            screen.print(f"  first again in steps {', '.join(str(one.step) for one in others)}")
    for wrong in () if run.device is None else run.device.wrong:
        screen.print(f"[bold red]wrong token[/bold red] {wrong}")
    if run.refused is not None:
        screen.print(f"[bold red]refused[/bold red] {run.refused}")


def _by_whom(refused: Refused) -> str:
    return "a guard" if isinstance(refused.error, GuardError) else "the device"


def _reason(refused: Refused) -> str:
    error = refused.error
    return error.rule if isinstance(error, GuardError) else str(error.constraint)


def _print_verdict(screen: Console, run: Run) -> None:
    _print_faults(screen, run)
    verdict = "not every rule holds" if run.broken else "every rule holds"
    until = f" until {_by_whom(run.refused)} refused one" if run.refused else ""
    if run.device is not None:
        screen.print(
            f"the device computed {run.device.computed:,} tokens; {run.device.sampled:,} sampled "
            f"ones compared with serving alone, {len(run.device.wrong) or 'none'} wrong"
        )
    screen.print(
        f"{verdict}: {len(run.rules)} rules, {run.steps:,} steps{until} "
        f"({run.seconds:.1f} s, {run.steps / max(run.seconds, 1e-9):,.0f} steps/s)"
    )


def _plain_table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(names[0])
    for name in names[1:]:
        table.add_column(name, justify="right")
    return table


def _compared(run: Run) -> dict[str, str]:
    """The figures by which configurations are compared, short ones."""
    summary, rows = run.summary, _latency_rows(run.summary)
    ended = "every rule holds" if not run.broken else f"{run.broken[0].rule.id} broken"
    if run.refused is not None:
        ended = f"step {run.refused.step} refused: {_reason(run.refused)}"
    elif run.device is not None and run.device.wrong:
        ended = f"wrong token in step {run.device.wrong[0].step}"
    goodput = {}
    if summary.slo:
        goodput[f"{_goodput_name(summary)}, share"] = _percent(summary.goodput_share)
        goodput["goodput, requests per time unit"] = _rounded(summary.goodput_per_unit, 4)
    return {
        "outcome": ended,
        "rules judged in every step": f"{len(run.rules):,}",
        "requests finished": f"{summary.finished:,} of {summary.requests:,}",
        "steps": f"{run.steps:,}",
        "of them prefill": f"{summary.steps[PREFILL]:,}",
        "time units": _rounded(summary.duration_units),
        "output tokens per time unit": _rounded(summary.output_tokens_per_unit),
        **goodput,
        **rows,
        **_size_compared(summary),
        "largest batch": f"{summary.peak_batch:,}",
        "cache hit rate": _percent(summary.prefix_hit_rate),
        "preemptions": f"{summary.preemptions:,}",
    }


def _size_compared(summary: Summary) -> dict[str, str]:
    """How large steps were, by the measure of the policy."""
    if summary.volume_limit is None:
        return {"largest step, tokens": f"{summary.peak_scheduled_tokens:,}"}
    return {
        "largest volume": f"{summary.peak_volume:,}",
        "padding waste, decode": _percent(summary.decode_padding_share),
        "pauses": f"{summary.pauses:,}",
    }


def _requests_row(summary: Summary, refused: int, skipped: int) -> str:
    row = f"{summary.requests:,}: {summary.finished:,} finished, {summary.aborted:,} aborted"
    if summary.unfinished:
        row += f", {summary.unfinished:,} unfinished"
    if refused:
        row += f"; {refused:,} more refused, could never be served"
    if skipped:
        row += f"; {skipped:,} rows without tokens skipped"
    return row


def _overview(summary: Summary, refused: int, skipped: int) -> dict[str, str]:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in summary.steps.items() if count)
    goodput = {}
    if summary.slo:
        goodput[_goodput_name(summary)] = (
            f"{_rounded(summary.goodput_per_unit, 4)} requests per time unit, "
            f"{_percent(summary.goodput_share)} of those finished"
        )
    return {
        "requests": _requests_row(summary, refused, skipped),
        "steps": f"{sum(summary.steps.values()):,}: {kinds}",
        "tokens": f"{summary.prompt_tokens:,} prompt, {summary.output_tokens:,} output",
        "throughput": f"{_rounded(summary.output_tokens_per_unit)} output tokens per time unit",
        **goodput,
        **_size(summary),
        "largest batch": f"{summary.peak_batch:,}",
        **_padding(summary),
        "cache hits": (
            f"{_percent(summary.prefix_hit_rate)} of prompt tokens reused, "
            f"{summary.recomputed_tokens:,} more cached but computed again"
        ),
        **_moves(summary),
    }


def _size(summary: Summary) -> dict[str, str]:
    """How large steps were, by the measure of the policy."""
    if summary.volume_limit is not None:
        return {"largest volume": f"{summary.peak_volume:,} of {summary.volume_limit:,}"}
    tokens, requests = summary.peak_scheduled_tokens, summary.peak_scheduled_requests
    return {"largest step": f"{tokens:,} tokens; {requests:,} requests"}


def _padding(summary: Summary) -> dict[str, str]:
    """What was padded, where batches are rectangular."""
    if summary.volume_limit is None:
        return {}
    share, tokens = _percent(summary.decode_padding_share), summary.prefill_padding_tokens
    return {"padding waste": f"{share} of the decode volume, {tokens:,} tokens of prefill"}


def _moves(summary: Summary) -> dict[str, str]:
    """How often requests lost their place; of Spyre, how often tkv jumped."""
    if summary.volume_limit is None:
        return {"preemptions": f"{summary.preemptions:,}"}
    return {
        "preemptions, pauses": f"{summary.preemptions:,}, {summary.pauses:,}",
        "tkv jumps": f"{summary.tkv_jumps:,}",
    }


def _goodput_name(summary: Summary) -> str:
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in summary.slo.items())
    return f"goodput ({bounds})"


_PARTS = ("mean", "p50", "p90", "p99", "max")


def _spreads(summary: Summary) -> Sequence[tuple[str, Spread]]:
    return (
        ("TTFT, steps", summary.ttft_steps),
        ("TTFT, time units", summary.ttft_units),
        ("ITL, steps", summary.itl_steps),
        ("ITL, time units", summary.itl_units),
        ("end to end, steps", summary.end_to_end_steps),
        ("end to end, time units", summary.end_to_end_units),
    )


def _latencies(summary: Summary) -> Table:
    table = _plain_table("latency", *_PARTS)
    for name, one in _spreads(summary):
        table.add_row(name, *(_rounded(getattr(one, part)) for part in _PARTS))
    return table


def _latency_rows(summary: Summary) -> dict[str, str]:
    """Latencies in time units, a row for each figure but the largest."""
    return {
        f"{name.partition(',')[0]} {part}": _rounded(getattr(one, part))
        for name, one in _spreads(summary)
        if name.endswith("time units")
        for part in _PARTS[:-1]
    }


def _waits(summary: Summary) -> Table:
    table = _plain_table("steps in which a prefill was refused by", "")
    by_count: Iterable[tuple[str, int]] = sorted(
        summary.waits.items(), key=lambda item: (-item[1], item[0])
    )
    for rule, steps in by_count:
        table.add_row(f"{rule}: {RULES[rule].sentence}", f"{steps:,}")
    return table


def _rounded(value: float | None, decimals: int = 2) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
