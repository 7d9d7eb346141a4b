"""Measure an engine's scheduler, `schedule` plus `update`, the device left out.

    ./bootstrap python benchmarks/scheduler.py [--rows 1,32,256] [--waiting 0,1000,10000]
    ./bootstrap python benchmarks/scheduler.py --against vllm-v1,nano-vllm,sendnn
    ./bootstrap python benchmarks/scheduler.py --policy spyre --against sendnn,nano-vllm
    ./bootstrap python benchmarks/scheduler.py --policy vllm-v1 [--drafts 3] [--no-prefix-caching]
    ./bootstrap python benchmarks/scheduler.py --memory [--requests 1000000]
    ./bootstrap python benchmarks/scheduler.py --long-service [--requests 10000000]

`--rows` requests decode, at random positions in their blocks, while `--waiting` requests with
prompts of 512 tokens wait for a free slot or, on Spyre with `--blocked volume`, for the volume
rule, which is then judged in every step. Times are processor times of one thread, so that other
work on the machine does not count. `--against` also measures installed releases (`lockstep driver
install sendnn`), row by row; they take fewer steps, because a long queue makes some slow. Without
`--policy` each release is compared with the engine of its own policy, vLLM V1 with and without
prefix caching and drafts. `--memory` measures the memory of queued requests, `--long-service` the
memory that served requests leave behind.
"""

import argparse
import json
import platform
import random
import resource
import subprocess
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from time import thread_time_ns
from typing import Any, TypeAlias

import numpy as np

from checks.harness.driver.protocol import DriverError
from checks.releases.environments import command_of
from engine.core.scheduler import Scheduler
from engine.nano_vllm import scheduler as of_nano_vllm
from engine.spyre import scheduler as of_spyre
from engine.vllm_v1 import scheduler as of_vllm_v1
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig, SequenceLimit
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission, Queue
from spec.vllm_v1.config import VllmV1Config

PROMPT_LEN = 512
OUTPUT_LEN = 3_000
PEAK_TKV = 3_520  # of such a request, with a full last block
RELEASED = {"sendnn": "spyre", "nano-vllm": "nano-vllm", "vllm-v1": "vllm-v1"}  # by driver, policy
MODES = {  # draft tokens per step, and prefix caching
    "sendnn": ((0, True),),
    "nano-vllm": ((0, True),),
    "vllm-v1": ((0, True), (0, False), (3, True), (3, False)),
}
RELEASED_STEPS = 25
AT_A_TIME = 10  # requests of a long service that wait together

SomeScheduler: TypeAlias = Scheduler[Any, Any, Any]


def request(name: str, prompt_len: int = PROMPT_LEN) -> Request:
    """A request with its own prompt and a long output."""
    return Request(id=name, prompt=Prompt.of_stream(name, prompt_len), max_tokens=OUTPUT_LEN)


def spyre_scheduler(rows: int, options: argparse.Namespace) -> SomeScheduler:
    """A scheduler with room for exactly `rows` requests, by slots or by the volume limit."""
    slack = 64 if options.admission == "shipped" else 0  # shipped plans with one block more
    by_slots = options.blocked == "slots"
    config = SpyreConfig(
        max_num_seqs=rows if by_slots else rows + 1,
        max_batch_tkv_limit=rows * (2 * PEAK_TKV if by_slots else PEAK_TKV + slack),
        admission=Admission(options.admission),
        queue=Queue(options.queue),
    )
    return of_spyre.Scheduler(config)


def nano_vllm_scheduler(rows: int, _options: argparse.Namespace) -> SomeScheduler:
    """A scheduler with room for exactly `rows` requests."""
    limit = SequenceLimit.RUNNING
    return of_nano_vllm.Scheduler(NanoVllmConfig(max_num_seqs=rows, sequence_limit=limit))


def vllm_v1_scheduler(rows: int, options: argparse.Namespace) -> SomeScheduler:
    """A scheduler with room for exactly `rows` requests."""
    config = VllmV1Config(
        max_num_seqs=rows,
        prefix_caching=options.prefix_caching,
        num_speculative_tokens=options.drafts,
    )
    return of_vllm_v1.Scheduler(config)


SCHEDULERS = {
    "spyre": spyre_scheduler,
    "nano-vllm": nano_vllm_scheduler,
    "vllm-v1": vllm_v1_scheduler,
}


def filled_scheduler(rows: int, waiting: int, options: argparse.Namespace) -> SomeScheduler:
    """A scheduler in which `rows` requests decode and `waiting` wait."""
    scheduler, draw = SCHEDULERS[options.policy](rows, options), random.Random(rows)
    for row in range(rows):
        scheduler.add(request(f"row {row}", draw.randint(PROMPT_LEN - 63, PROMPT_LEN)))
        while scheduler.state.queue:
            step(scheduler)
    for index in range(waiting):
        scheduler.add(request(f"waiting {index}"))
    return scheduler


def step(scheduler: SomeScheduler) -> int:
    """Take one step with arbitrary tokens; returns the scheduler's nanoseconds."""
    began = thread_time_ns()
    plan = scheduler.schedule()
    planned = thread_time_ns()
    tokens = np.zeros(plan.samples, np.int64)
    computed = thread_time_ns()
    scheduler.update(plan, tokens)
    return planned - began + thread_time_ns() - computed


def measured(rows: int, waiting: int, options: argparse.Namespace) -> list[float]:
    """Milliseconds of each step, the fastest first."""
    scheduler = filled_scheduler(rows, waiting, options)
    times = sorted(step(scheduler) / 1e6 for _ in range(options.steps))
    decoding, left = len(scheduler.state.admitted), len(scheduler.state.queue)
    if (decoding, left) != (rows, waiting):
        raise SystemExit(f"{decoding} rows decode and {left} wait, not {rows} and {waiting}")
    return times


def released(
    python: str, driver: str, rows: int, waiting: int, options: argparse.Namespace
) -> list[float]:
    """Milliseconds of each step of a release, the fastest first; `python`: its interpreter."""
    modes = (options.drafts, int(options.prefix_caching))
    numbers = (rows, waiting, RELEASED_STEPS, PROMPT_LEN, OUTPUT_LEN, *modes)
    script = Path(__file__).parent / "released.py"
    command = [python, str(script), driver, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    times: list[float] = json.loads(done.stdout)
    return sorted(times)


def at(percent: int, times: Sequence[float]) -> float:
    """The percentile of the sorted times."""
    return times[len(times) * percent // 100]


def print_times(options: argparse.Namespace, pythons: Mapping[str, str]) -> None:
    """Print a row for each number of rows and waiting requests, with the releases beside them."""
    heads = ["rows", "waiting", "median ms per step", "p99 ms"]
    for driver in pythons:
        heads += [f"{driver}, median ms", "times the engine's"]
    print_heads(heads)
    for rows in options.rows:
        for waiting in options.waiting:
            print_row(engine_times(rows, waiting, options, pythons))


def print_side_by_side(options: argparse.Namespace, pythons: Mapping[str, str]) -> None:
    """Print each release beside the engine of its policy: a row for each mode, batch and queue."""
    heads = [
        "release",
        "prefix caching",
        "drafts",
        "rows",
        "waiting",
        "engine, median ms",
        "p99 ms",
    ]
    print_heads([*heads, "release, median ms", "times the engine's"])
    for driver, python in pythons.items():
        for drafts, caching in MODES[driver]:
            keys = {"policy": RELEASED[driver], "drafts": drafts, "prefix_caching": caching}
            mode = argparse.Namespace(**{**vars(options), **keys})
            for rows, waiting in product(options.rows, options.waiting):
                named = [driver, "on" if caching else "off", str(drafts)]
                print_row([*named, *engine_times(rows, waiting, mode, {driver: python})])


def engine_times(
    rows: int, waiting: int, options: argparse.Namespace, pythons: Mapping[str, str]
) -> list[str]:
    """The cells of a row: sizes, the engine's times, each release's time and their ratio."""
    own = measured(rows, waiting, options)
    cells = [str(rows), f"{waiting:,}", f"{at(50, own):.4f}", f"{at(99, own):.4f}"]
    for driver, python in pythons.items():
        theirs = at(50, released(python, driver, rows, waiting, options))
        cells += [f"{theirs:.4f}", f"{theirs / at(50, own):,.1f}"]
    return cells


def print_heads(heads: Sequence[str]) -> None:
    """The first lines of a table."""
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")


def print_row(cells: Sequence[str]) -> None:
    """A line of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def peak_mib() -> float:
    """The peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_memory(most: int, options: argparse.Namespace) -> None:
    """Print the peak memory with more and more queued requests."""
    print("| queued | peak MiB | bytes per request |\n| --- | --- | --- |")
    scheduler, began = SCHEDULERS[options.policy](1, options), peak_mib()
    for count in (most // 4, most // 2, most):
        for index in range(len(scheduler.state.queue), count):
            scheduler.add(request(str(index)))
        peak = peak_mib()
        print(f"| {count:,} | {peak:,.0f} | {(peak - began) * 2**20 / count:,.0f} |", flush=True)


def print_long_service(most: int) -> None:
    """Print the peak memory after more and more served requests of one token each."""
    print("| served | peak MiB | since the first 100,000 |\n| --- | --- | --- |")
    scheduler, first, shown = of_spyre.Scheduler(SpyreConfig(prefix_caching=False)), 0.0, 100_000
    prompt, token = Prompt.of_stream("prompt", 2), np.zeros(1, np.int64)
    for served in range(0, most, AT_A_TIME):
        for index in range(AT_A_TIME):
            scheduler.add(Request(id=str(served + index), prompt=prompt, max_tokens=1))
        while scheduler.has_requests:
            scheduler.update(scheduler.schedule(), token)
        if served + AT_A_TIME >= shown:
            peak = peak_mib()
            first = first or peak
            print(f"| {shown:,} | {peak:,.1f} | {peak / first - 1:+.1%} |", flush=True)
            shown = min(10 * shown, shown + 1_000_000)


def numbers(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [int(part) for part in text.split(",")]


def drivers(text: str) -> list[str]:
    """Names of drivers separated by commas."""
    names = text.split(",")
    if unknown := [name for name in names if name not in RELEASED]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; allowed: {', '.join(RELEASED)}")
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=numbers, default=[1, 32, 256])
    parser.add_argument("--waiting", type=numbers, default=[0, 1_000, 10_000])
    parser.add_argument("--policy", choices=list(SCHEDULERS), help="[default: spyre]")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--blocked", choices=["slots", "volume"], default="slots")
    parser.add_argument("--admission", choices=list(Admission), default="exact")
    parser.add_argument("--queue", choices=list(Queue), default="fcfs")
    parser.add_argument("--against", type=drivers, default=[], help=f"of {', '.join(RELEASED)}")
    parser.add_argument(
        "--drafts", type=int, default=0, help="a step, of vLLM V1; none is accepted"
    )
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--long-service", action="store_true")
    parser.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    is_each_with_its_own = options.policy is None
    options.policy = options.policy or "spyre"
    try:
        pythons = {driver: command_of(driver)[0] for driver in options.against}
    except DriverError as error:
        parser.error(str(error))
    print(f"Python {platform.python_version()}, {platform.machine()}\n")
    if options.long_service:
        return print_long_service(options.requests)
    if options.memory:
        return print_memory(options.requests, options)
    if pythons and is_each_with_its_own:
        return print_side_by_side(options, pythons)
    print_times(options, pythons)


if __name__ == "__main__":
    main()
