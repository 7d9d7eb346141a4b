"""Measure the scheduler of sendnn-inference, `schedule` plus `update_from_output`, as released.

Run by the Python of the release's environment, for one row of the table that
`benchmarks/scheduler.py --against sendnn` prints:

    PYTHON benchmarks/released_scheduler.py ROWS WAITING STEPS PROMPT_LEN OUTPUT_LEN

So many rows decode while so many requests wait for a free slot. The released model runner, whose
part is left out, runs in between with a model that computes nothing. Writes the processor time of
each step, in milliseconds, as a JSON list.
"""

# mypy: disable-error-code="import-not-found"

import json
import random
import sys
from pathlib import Path
from time import thread_time_ns
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "checks" / "drivers"))

import sendnn  # the driver's file alone: this environment has nothing else of ours

BLOCK = 64


def released(rows: int, waiting: int, prompt_len: int, output_len: int) -> sendnn.Released:
    """The released scheduler in which so many requests decode and so many wait."""
    draw = random.Random(rows)
    decoding = [
        request(index, draw.randint(prompt_len - BLOCK + 1, prompt_len), output_len)
        for index in range(rows)
    ]
    queued = [request(rows + index, prompt_len, output_len) for index in range(waiting)]
    live = sendnn.Released(sendnn.base_config(), config(rows, prompt_len, output_len), [])
    live.requests = {one["id"]: one for one in (*decoding, *queued)}
    for one in decoding:
        live.arrive(one["id"])
        while live.scheduler.waiting:
            step(live)
    for one in queued:
        live.arrive(one["id"])
    return live


def config(rows: int, prompt_len: int, output_len: int) -> dict[str, Any]:
    """As released, with a slot for each row and room for all that they may generate."""
    longest = prompt_len + output_len + BLOCK
    return {
        "chunk_size": 512,
        "max_model_len": 32_768,
        "max_num_seqs": rows,
        "max_batch_tkv_limit": 2 * rows * longest,
        "num_blocks": 2 * rows * longest // BLOCK,
        "interleave": True,
        "prefix_caching": True,
        "pausing": True,
        "long_output_first": False,
    }


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


def step(live: sendnn.Released) -> float:
    """One step; the milliseconds that the scheduler took."""
    began = thread_time_ns()
    scheduled = live.scheduler.schedule()
    planned = thread_time_ns()
    answer = live.execute(scheduled, {})
    computed = thread_time_ns()
    live.scheduler.update_from_output(scheduled, answer)
    return (planned - began + thread_time_ns() - computed) / 1e6


def main() -> None:
    """Measure one row of the table."""
    rows, waiting, steps, prompt_len, output_len = map(int, sys.argv[1:])
    sendnn.init_none_hash(sendnn.sha256)
    live = released(rows, waiting, prompt_len, output_len)
    times = [step(live) for _ in range(steps)]
    found = len(live.scheduler.running), len(live.scheduler.waiting)
    if found != (rows, waiting):
        raise SystemExit(f"{found[0]} decode and {found[1]} wait, not {rows} and {waiting}")
    print(json.dumps(times), file=sendnn.ANSWERS)


if __name__ == "__main__":
    main()
