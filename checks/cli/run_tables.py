"""The tables of `lockstep run`: the figures of one run, or of several side by side."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten

from rich.console import Console
from rich.table import Table
from rich.text import Text

from checks.cli.common import plain_table, print_lines
from checks.cli.held import held_lines, held_phrase
from checks.export.figures import percent, rounded
from checks.export.policy import presentation_of
from checks.harness.runs.serving import Refused, Run
from checks.harness.runs.simulating import SIMULATION
from checks.registry import RULES
from checks.words import counted
from engine.core.metrics import MOST_VALUES, RELATIVE_ERROR, Spread, Summary
from reference.core.guards import GuardError
from spec.core.records import PREFILL

_FOUND_CHARACTERS = 240  # a violation can name every request of a large batch
_PARTS = ("mean", "p50", "p90", "p99", "max")


def print_run(screen: Console, run: Run, refused: int, skipped: int) -> None:
    """Print the figures of one run, its violations and its verdict.

    `refused`: requests of the file that can never be served. `skipped`: rows without tokens.
    """
    summary = run.summary
    screen.print(plain_table(("run", ">"), _overview(run, refused, skipped).items()))
    latencies = (
        (name, *(rounded(getattr(spread, part)) for part in _PARTS))
        for name, spread in _spreads(run)
    )
    screen.print(plain_table(("latency", *(f">{part}" for part in _PARTS)), latencies))
    by_prompt = (
        (name, f"{spread.count:,}", *(rounded(getattr(spread, part)) for part in _PARTS))
        for name, spread in _fourths(summary)
    )
    heads = (f"TTFT, {run.settings.unit}s, prompts", ">requests", *(f">{part}" for part in _PARTS))
    screen.print(plain_table(heads, by_prompt))
    if not all(spread.exact for _, spread in _spreads(run)):
        what = f"of more than {MOST_VALUES:,} different values percentiles are estimated"
        screen.print(f"{what}, within {RELATIVE_ERROR:.1%}")
    if summary.waits:
        screen.print(_waits(summary.waits))
    _print_faults(screen, run)
    _print_verdict(screen, run)


def print_comparison(screen: Console, runs: Mapping[str, Run], refused: Mapping[str, int]) -> None:
    """Print the figures of several runs, a column for each label; then their violations.

    `refused`: requests that can never be served, by label.
    """
    columns = [
        {"refused, never servable": f"{refused[label]:,}"} | _compared(run)
        for label, run in runs.items()
    ]
    names = dict.fromkeys(name for figures in columns for name in figures)
    rows = ((name, *(figures.get(name, "-") for figures in columns)) for name in names)
    screen.print(plain_table(("", *(f">{label}" for label in runs)), rows))
    for label, run in runs.items():
        if not run.holds:
            screen.print(Text.assemble((label, "bold")))
            _print_faults(screen, run)


def _print_faults(screen: Console, run: Run) -> None:
    for rule in {violation.rule.id: violation.rule for violation in run.broken}.values():
        first, *others = (violation for violation in run.broken if violation.rule is rule)
        text = shorten(first.found, _FOUND_CHARACTERS, placeholder=" … (whole in --json)")
        what = f" {rule.id} in step {first.step}: {text}"
        screen.print(Text.assemble(("violated", "bold red"), what))
        screen.print(f"  {rule.sentence}")
        if others:
            screen.print(
                f"  first again in steps {', '.join(str(violation.step) for violation in others)}"
            )
    for wrong in () if run.device is None else run.device.wrong:
        screen.print(Text.assemble(("wrong token", "bold red"), f" {wrong}"))
    if run.refused is not None:
        screen.print(Text.assemble(("refused", "bold red"), f" {run.refused}"))


def _print_verdict(screen: Console, run: Run) -> None:
    if run.device is not None:
        screen.print(
            f"the device computed {run.device.computed:,} tokens; {run.device.sampled:,} sampled "
            f"ones compared with serving alone, {len(run.device.wrong) or 'none'} wrong"
        )
    speed = f"({run.seconds:.1f} s, {run.steps / max(run.seconds, 1e-9):,.0f} steps/s)"
    if run.using == SIMULATION:
        interrupted = "interrupted: " if run.interrupted else ""
        screen.print(f"{interrupted}no rule was judged: {counted(run.steps, 'step')} {speed}")
        print_lines(screen, *held_lines(run.settings.config))
        return
    verdict = "not every rule holds" if run.broken else "every rule holds"
    if run.interrupted:
        verdict = f"interrupted: {verdict} so far"
    until = f" until {_refuser(run.refused)} refused one" if run.refused else ""
    screen.print(
        f"{verdict}: {counted(len(run.rules), 'rule')}, {counted(run.steps, 'step')}{until} {speed}"
    )


def _refuser(refused: Refused) -> str:
    return "a guard" if isinstance(refused.error, GuardError) else "the device"


def _reason(refused: Refused) -> str:
    error = refused.error
    return error.rule if isinstance(error, GuardError) else str(error.constraint)


# --- rows -----------------------------------------------------------------------------------------


def _overview(run: Run, refused: int, skipped: int) -> dict[str, str]:
    """The figures of one run, in full."""
    summary = run.summary
    unit = run.settings.unit
    figures = presentation_of(run.settings.config.policy).figures(summary)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in summary.steps.items() if count)
    return {
        "requests": _requests(summary, refused, skipped),
        "steps": f"{sum(summary.steps.values()):,}: {kinds}",
        "tokens": f"{summary.prompt_tokens:,} prompt, {summary.output_tokens:,} output",
        "throughput": f"{rounded(summary.output_tokens_per_unit)} output tokens per {unit}",
        **_goodput(run),
        **figures.size,
        "largest batch": f"{summary.peak_batch:,}",
        **figures.padding,
        "cache hits": (
            f"{percent(summary.prefix_hit_rate)} of prompt tokens reused, "
            f"{summary.recomputed_tokens:,} more cached but computed again"
        ),
        **figures.setbacks,
    }


def _compared(run: Run) -> dict[str, str]:
    """The figures of one run in a comparison."""
    summary = run.summary
    unit = run.settings.unit
    figures = presentation_of(run.settings.config.policy).figures(summary)
    return {
        "outcome": _outcome(run),
        **_rules_judged(run),
        "requests finished": f"{summary.finished:,} of {summary.requests:,}",
        "steps": f"{run.steps:,}",
        "of them prefill": f"{summary.steps[PREFILL]:,}",
        f"{unit}s": rounded(summary.duration_units),
        f"output tokens per {unit}": rounded(summary.output_tokens_per_unit),
        **_goodput_compared(run),
        **{
            f"{name.partition(',')[0]} {part}": rounded(getattr(spread, part))
            for name, spread in _spreads(run)
            if not name.endswith("steps")
            for part in _PARTS[:-1]
        },
        **{
            f"TTFT {part}, prompts {name}": rounded(getattr(spread, part))
            for name, spread in _fourths(summary)
            for part in ("mean", "p99")
        },
        **figures.compared,
        "largest batch": f"{summary.peak_batch:,}",
        "cache hit rate": percent(summary.prefix_hit_rate),
        "preemptions": f"{summary.preemptions:,}",
    }


def _rules_judged(run: Run) -> dict[str, str]:
    if run.using == SIMULATION:
        return {"compared with a release": held_phrase(run.settings.config)}
    return {"rules judged in every step": f"{len(run.rules):,}"}


def _outcome(run: Run) -> str:
    if run.refused is not None:
        return f"step {run.refused.step} refused: {_reason(run.refused)}"
    if run.device is not None and run.device.wrong:
        return f"wrong token in step {run.device.wrong[0].step}"
    if run.broken:
        return f"{run.broken[0].rule.id} broken"
    if run.interrupted:
        return "interrupted"
    return "not judged" if run.using == SIMULATION else "every rule holds"


def _requests(summary: Summary, refused: int, skipped: int) -> str:
    row = f"{summary.requests:,}: {summary.finished:,} finished, {summary.aborted:,} aborted"
    if summary.unfinished:
        row += f", {summary.unfinished:,} unfinished"
    if refused:
        row += f"; {refused:,} more refused, could never be served"
    if skipped:
        row += f"; {counted(skipped, 'row')} without tokens skipped"
    return row


def _goodput(run: Run) -> dict[str, str]:
    summary = run.summary
    rate, share = rounded(summary.goodput_per_unit, 4), percent(summary.goodput_share)
    value = f"{rate} requests per {run.settings.unit}, {share} of those finished"
    return {_goodput_name(summary): value} if summary.slo else {}


def _goodput_compared(run: Run) -> dict[str, str]:
    summary = run.summary
    rows = {
        f"{_goodput_name(summary)}, share": percent(summary.goodput_share),
        f"goodput, requests per {run.settings.unit}": rounded(summary.goodput_per_unit, 4),
    }
    return rows if summary.slo else {}


def _goodput_name(summary: Summary) -> str:
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in summary.slo.items())
    return f"goodput ({bounds})"


def _spreads(run: Run) -> Sequence[tuple[str, Spread]]:
    summary, units = run.summary, f"{run.settings.unit}s"
    return (
        ("TTFT, steps", summary.ttft_steps),
        (f"TTFT, {units}", summary.ttft_units),
        ("ITL, steps", summary.itl_steps),
        (f"ITL, {units}", summary.itl_units),
        ("end to end, steps", summary.end_to_end_steps),
        (f"end to end, {units}", summary.end_to_end_units),
    )


def _fourths(summary: Summary) -> Iterator[tuple[str, Spread]]:
    """For each fourth of the prompts by length: its range of tokens and its TTFT."""
    shortest = 1
    for longest, spread in summary.ttft_by_prompt.items():
        yield f"of {shortest:,} to {longest:,} tokens", spread
        shortest = longest + 1


def _waits(waits: Mapping[str, int]) -> Table:
    ordered = sorted(waits.items(), key=lambda item: (-item[1], item[0]))
    rows = ((f"{rule}: {RULES[rule].sentence}", f"{steps:,}") for rule, steps in ordered)
    return plain_table(("steps in which a prefill was refused by", ">"), rows)
