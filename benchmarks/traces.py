"""Serve whole public traces with the plugin's real sizes, every rule judged in every step.

    ./bootstrap python benchmarks/traces.py TRACE … [--limit N] [--only exact] [--cost …]

For each trace and configuration it prints the figures of the run, its wall and processor time (of
all processes), and the largest memory of a process. Configurations: `exact`, `shipped` (only the
volume rule of the release), `released` (2.6.3 with its defaults).
"""

import argparse
import os
import platform
import resource
from pathlib import Path

from checks.cli.configuration import read_settings
from checks.harness.runs.serving import Run, run_workload
from checks.registry import claims_of
from engine.workloads import fit_for, read_workload

CONFIGURATIONS = {
    "exact": (),
    "shipped": ("admission=shipped",),
    "released": ("admission=shipped", "queue=overtaking", "pausing=true"),
}


def main() -> None:
    """Measure and print; exit code 1 if a rule is broken or a step refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--limit", type=int, help="requests of each trace")
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one of the configurations")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    holds = True
    for path in options.traces:
        for name in [options.only] if options.only else CONFIGURATIONS:
            holds &= _measured(path, name, options.limit, options.settings)
    raise SystemExit(0 if holds else 1)


def _measured(path: Path, name: str, limit: int | None, extra_settings: list[str]) -> bool:
    settings = read_settings(None, [*CONFIGURATIONS[name], *extra_settings])
    read = read_workload(path, limit=limit)
    claims = claims_of(settings.config.policy)
    servable, refused = fit_for(
        read, lambda request: claims.refuse_unservable(request, settings.config)
    )
    before = _cpu_seconds()
    run = run_workload(settings, servable)
    left_out = f"{len(refused):,} of {len(read.requests):,} too long"
    print(f"\n{path.name}, {name}: {len(servable):,} requests served, {left_out}")
    _print(run, _cpu_seconds() - before)
    return run.holds


def _print(run: Run, cpu_seconds: float) -> None:
    summary = run.summary
    ttft, itl, e2e = summary.ttft_units, summary.itl_units, summary.end_to_end_units
    rows = {
        "outcome": "every rule holds" if run.holds else f"{run.broken} {run.refused}",
        "judged": f"{len(run.rules)} rules in each of {run.steps:,} steps",
        "took": f"{run.seconds:.0f} s, {cpu_seconds:.0f} s of processor time",
        "memory": f"{_peak_megabytes():,} MB at most in a process, so far",
        "time units": f"{summary.duration_units:,.0f}",
        "output tokens per unit": f"{summary.output_tokens_per_unit or 0:.3f}",
        "TTFT mean, p50, p90, p99": _listed(ttft.mean, ttft.p50, ttft.p90, ttft.p99),
        "ITL mean, p50, p90, p99": _listed(itl.mean, itl.p50, itl.p90, itl.p99),
        "end to end mean, p50, p99": _listed(e2e.mean, e2e.p50, e2e.p99),
        "steps": str(summary.steps),
        "largest batch, volume": f"{summary.peak_batch}, {summary.peak_volume:,}",
        "padding waste, decode": f"{summary.decode_padding_share or 0:.1%}",
        "cache hit rate": f"{summary.prefix_hit_rate or 0:.1%}",
        "preemptions, pauses": f"{summary.preemptions:,}, {summary.pauses:,}",
        "refusals of a prefill": str(summary.waits),
    }
    for row, value in rows.items():
        print(f"  {row}: {value}", flush=True)


def _listed(*values: float | None) -> str:
    return ", ".join("-" if value is None else f"{value:,.1f}" for value in values)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _peak_megabytes() -> int:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(usage.ru_maxrss for usage in used) // 1024


if __name__ == "__main__":
    main()
