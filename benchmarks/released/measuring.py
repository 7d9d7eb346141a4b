"""What measuring a released scheduler has in common; needs nothing of ours and nothing installed.

Each script next to this one is run by the Python of a release's environment, for one cell of the
table that `benchmarks/scheduler.py --against DRIVER` prints:

    PYTHON benchmarks/released/DRIVER_steps.py ROWS WAITING STEPS PROMPT_LEN OUTPUT_LEN

So many rows decode, at random places in their blocks, while so many requests wait. The processor
time of each step's schedule and update is written, in milliseconds, as a JSON list.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import thread_time_ns
from typing import Any, Protocol

SPREAD = 63  # tokens by which the prompts of those who decode are shorter at most

sys.path.insert(0, str(Path(__file__).parents[2] / "checks" / "drivers"))

from lockstep_driver import protected_output  # noqa: E402 - found on the path from here on


class Live(Protocol):
    """A released scheduler, behind its driver."""

    requests: dict[str, Any]
    action: dict[str, Any]

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler."""


class Measured(Protocol):
    """What differs between releases."""

    live: Live

    def schedule(self) -> Any:
        """The scheduler's decisions for one step."""

    def compute(self, scheduled: Any) -> Any:
        """What the model runner answers; not measured."""

    def update(self, scheduled: Any, answer: Any) -> None:
        """The scheduler takes the answer in."""

    def queues(self) -> tuple[int, int]:
        """How many decode, and how many wait."""


def fill(measured: Measured, rows: int, waiting: int, prompt_len: int, output_len: int) -> None:
    """Let so many requests decode, one after the other, and then so many wait."""
    draw, live = Random(rows), measured.live
    lengths = [prompt_len - draw.randint(1, SPREAD) for _ in range(rows)]
    decoding = [request(index, length, output_len) for index, length in enumerate(lengths)]
    queued = [request(rows + index, prompt_len, output_len) for index in range(waiting)]
    live.requests, live.action = {one["id"]: one for one in (*decoding, *queued)}, {}
    for one in decoding:
        live.arrive(one["id"])
        while measured.queues()[1]:
            step(measured)
    for one in queued:
        live.arrive(one["id"])


def request(index: int, prompt_len: int, output_len: int) -> dict[str, Any]:
    """A request with a prompt of its own and a long answer."""
    prompt = [2 + (index * prompt_len + place) % 49_000 for place in range(prompt_len)]
    return {
        "id": str(index),
        "prompt": [2 + index % 49_000, *prompt[1:]],
        "max_tokens": output_len,
        "output_len": output_len,
        "output": [7] * output_len,
    }


def step(measured: Measured) -> float:
    """One step; the milliseconds that the scheduler took."""
    began = thread_time_ns()
    scheduled = measured.schedule()
    planned = thread_time_ns()
    answer = measured.compute(scheduled)
    computed = thread_time_ns()
    measured.update(scheduled, answer)
    return (planned - began + thread_time_ns() - computed) / 1e6


def main(started: Callable[[int, int, int], Measured]) -> None:
    """Measure one cell; `started`: a scheduler for so many rows of such a length at most."""
    rows, waiting, steps, prompt_len, output_len = map(int, sys.argv[1:])
    measured = started(rows, prompt_len, output_len)
    fill(measured, rows, waiting, prompt_len, output_len)
    times = [step(measured) for _ in range(steps)]
    if measured.queues() != (rows, waiting):
        found = "{} decode and {} wait".format(*measured.queues())
        raise SystemExit(f"{found}, not {rows} and {waiting}")
    print(json.dumps(times), file=protected_output())
