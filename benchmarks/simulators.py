"""Compare `lockstep simulate` with other simulators on a trace of Mooncake.

    ./bootstrap python benchmarks/simulators.py TRACE [--against dynamo,vidur,sched-sim] [--limit N]
    ./bootstrap python benchmarks/simulators.py TRACE --install

Whole processes, one after the other: wall time, and processor time of all their threads. Blocks
have 64 tokens, requests at most 131,072. Each other simulator has an environment of its own below
`--environments`, which `--install` makes by pip; a row says why one could not be measured. The rows
compare time; how far the others' decisions are from a release's is not measured.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from checks.releases.environments import place

LOCKSTEP = "lockstep"
BLOCK_SIZE, MOST_TOKENS = 64, 131_072
_DYNAMO = """
import sys
from dynamo.replay import run_trace_replay
sizes = {"engine": {"block_size": int(sys.argv[2])}}
report = run_trace_replay(
    sys.argv[1], trace_format="mooncake", trace_block_size=512, extra_engine_args=sizes
)
print(report.summary["completed_requests"], "requests completed")
"""


class Simulator(NamedTuple):
    """Another simulator.

    `installs`: arguments of pip, call by call. `command`: from its environment's folder and the
    trace.
    """

    installs: Sequence[Sequence[str]]
    command: Callable[[Path, Path], list[str]]


def dynamo(environment: Path, trace: Path) -> list[str]:
    """The replay of dynamo on one worker like vLLM's."""
    return [str(environment / "bin" / "python"), "-c", _DYNAMO, str(trace), str(BLOCK_SIZE)]


def sched_sim(environment: Path, trace: Path) -> list[str]:
    """The replay of sched-sim, which reads a format of its own and has blocks of its own."""
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    requests = [
        {
            "id": str(index),
            "timestamp": line["timestamp"] / 1_000,
            "prompt_tokens": line["input_length"],
            "output_tokens": line["output_length"],
        }
        for index, line in enumerate(lines)
    ]
    converted = trace.with_suffix(".json")
    converted.write_text(json.dumps(requests), encoding="utf-8")
    return [str(environment / "bin" / "sched-sim"), "trace", "--no-gantt", str(converted)]


# dynamo's replay needs few of the packages that it names.
_OF_REPLAY = ("typing_extensions", "pydantic<=2.13.5", "pyyaml", "numpy", "uvloop", "aiohttp")
SIMULATORS: Mapping[str, Simulator] = {
    "dynamo": Simulator(
        (
            ("--no-deps", "ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1"),
            (*_OF_REPLAY, "msgspec"),
        ),
        dynamo,
    ),
    "sched-sim": Simulator((("sched-sim==0.2.1",),), sched_sim),
}
CANNOT = {"vidur": "its step times are downloaded at run time"}
KNOWN = (*SIMULATORS, *CANNOT)


class Measured(NamedTuple):
    """Seconds of a process and its children; `failed`: why there is no result."""

    wall: float
    processor: float
    failed: str | None = None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--against", default=",".join(KNOWN), metavar="NAMES")
    parser.add_argument("--limit", type=int, help="requests of the trace")
    parser.add_argument("--seconds", type=float, default=300, help="at most, of each simulator")
    parser.add_argument("--environments", type=Path, default=place().parent / "simulators")
    parser.add_argument("--install", action="store_true", help="make missing environments")
    options = parser.parse_args()
    names = [name for name in options.against.split(",") if name]
    if unknown := [name for name in names if name not in KNOWN]:
        parser.error(f"--against: {unknown[0]!r} is none of {', '.join(KNOWN)}")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    with TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.jsonl"
        lines = options.trace.read_text(encoding="utf-8").splitlines()[: options.limit]
        trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{options.trace.name}, {len(lines):,} requests\n")
        print("| simulator | wall, s | processor, s | wall / lockstep's |")
        print("| --- | --- | --- | --- |")
        ours = measured(lockstep(trace), options.seconds)
        _print_row(LOCKSTEP, ours, ours)
        for name in names:
            environment = options.environments.absolute() / name
            _print_row(name, _other(name, environment, trace, options), ours)


def _other(name: str, environment: Path, trace: Path, options: argparse.Namespace) -> Measured:
    if name in CANNOT:
        return Measured(0, 0, CANNOT[name])
    simulator = SIMULATORS[name]
    if options.install and not environment.exists():
        install(environment, simulator)
    if not environment.exists():
        return Measured(0, 0, "not installed; --install does it")
    return measured(simulator.command(environment, trace), options.seconds)


def install(environment: Path, simulator: Simulator) -> None:
    """Make the environment of a simulator.

    Raises:
        CalledProcessError: venv or pip failed.
    """
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-warn-conflicts",
    ]
    for arguments in simulator.installs:
        subprocess.run([*pip, *arguments], check=True)


def lockstep(trace: Path) -> list[str]:
    """`lockstep simulate` of vLLM V1 with its default budget."""
    settings = {
        "policy": "vllm-v1",
        "max_model_len": MOST_TOKENS,
        "block_size": BLOCK_SIZE,
    }
    options = [f"--set={key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "lockstep", "simulate", str(trace), *options]


def measured(command: Sequence[str], seconds: float) -> Measured:
    """Run a command to its end, or for so many seconds."""
    before, began = _processor_seconds(), perf_counter()
    failed: str | None = None
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, text=True)
        if done.returncode:
            failed = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        failed = f"not done after {seconds:.0f} s"
    except OSError as error:
        failed = str(error)
    return Measured(perf_counter() - began, _processor_seconds() - before, failed)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print_row(name: str, found: Measured, ours: Measured) -> None:
    if found.failed is not None:
        print(f"| {name} | {found.failed} | | |", flush=True)
        return
    ratio = found.wall / ours.wall
    print(f"| {name} | {found.wall:.1f} | {found.processor:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
