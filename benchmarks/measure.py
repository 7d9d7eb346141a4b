"""Measure the explorer and `run`; prints the table of the README's benchmark section.

    ./bootstrap python benchmarks/measure.py [--requests N] [--trace FILE]

Explores every default instance on one core and serves generated requests on the reference with
the plugin's real sizes, every rule judged. `--trace` serves the first requests of a public trace
instead.
"""

import argparse
import os
import platform
import random
from pathlib import Path
from time import perf_counter

from checks.explore.exploring import Exploration, explore_instance
from checks.explore.policy import machine_of
from checks.harness.case import Case
from checks.harness.incremental.judging import judge_of_run
from checks.harness.runs.serving import served
from checks.remembered import remembering
from engine.workloads import fit_for, read_workload
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import context_of


def generated(count: int, seed: int = 0) -> list[Request]:
    """Requests with the lengths of a chat service, all arriving at the start."""
    draw = random.Random(seed)
    return [
        Request(
            id=str(index),
            prompt=Prompt.of_stream(f"request {index}", int(draw.lognormvariate(6.5, 0.9)) + 1),
            max_tokens=int(draw.lognormvariate(5.0, 0.8)) + 1,
        )
        for index in range(count)
    ]


def run(requests: list[Request], *, judged: bool) -> tuple[int, int, float]:
    """Steps, violations and seconds of a run with the plugin's real sizes."""
    case = Case(SpyreConfig(), tuple(requests))
    judge = judge_of_run(remembering(context_of(case.config, requests)))
    steps, broken, began = 0, 0, perf_counter()
    for step in served(case):
        steps += 1
        if judged:
            broken += len(judge.observe(step))
    return steps, broken, perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--instances", type=int, help="explore only the first N")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    print("| what | amount | seconds | rate |\n| --- | --- | --- | --- |")
    instances = machine_of("spyre").instances[: options.instances]
    _explored([explore_instance(instance) for instance in instances])
    requests = generated(options.requests)
    if options.trace is not None:
        read = read_workload(options.trace, limit=options.requests)
        requests, _ = fit_for(read, lambda request: refuse_unservable(request, SpyreConfig()))
    for judged in (False, True):
        steps, broken, seconds = run(requests, judged=judged)
        rules = f"every rule judged, {broken} breaches" if judged else "no rule judged"
        print(
            f"| run, {len(requests):,} requests, {rules} | {steps:,} steps | {seconds:.1f} "
            f"| {steps / seconds:,.0f} steps/s |"
        )


def _explored(explorations: list[Exploration]) -> None:
    """Print a row for all instances and one for the largest."""
    states = sum(exploration.result.states for exploration in explorations)
    seconds = sum(exploration.result.seconds for exploration in explorations)
    print(
        f"| explore, {len(explorations)} default instances, one core | {states:,} states "
        f"| {seconds:.1f} | {states / seconds:,.0f} states/s |"
    )
    biggest = max(explorations, key=lambda exploration: exploration.result.states)
    largest = biggest.result
    print(
        f"| explore '{biggest.instance.name}' | {largest.states:,} states | {largest.seconds:.1f} "
        f"| {largest.states_per_second:,.0f} states/s, "
        f"{largest.bytes_per_state:,.0f} bytes per state |"
    )


if __name__ == "__main__":
    main()
