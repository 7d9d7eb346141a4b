"""Measure one cell of the table that `benchmarks/scheduler.py --against DRIVER` prints.

It is run by the Python of a release's environment, which has no other project code:

    PYTHON benchmarks/released.py DRIVER ROWS WAITING STEPS PROMPT_LEN OUTPUT_LEN DRAFTS CACHING

ROWS requests decode, at random positions in their blocks, while WAITING requests wait. The output
is a JSON list with the processor time of each step's schedule and update, in milliseconds, without
the model runner between them.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from time import thread_time_ns
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "checks" / "drivers"))

SPREAD = 63  # tokens by which the prompts of the rows are shorter at most


class Sizes(NamedTuple):
    """The measured cell; lengths in tokens. Drafts and caching apply if the release has them."""

    rows: int
    prompt_len: int
    output_len: int
    drafts: int
    caching: bool


def nano_vllm_config(sizes: Sizes) -> dict[str, Any]:
    """A configuration with room for all tokens of the rows.

    The budget of a prefill step keeps requests waiting: their prompts are one token longer than it,
    those of the rows are not. The sequence limit cannot do so, because it limits the batch.
    """
    block_size = 256  # the least that the release accepts
    longest = sizes.prompt_len + sizes.output_len
    return {
        "block_size": block_size,
        "num_blocks": sizes.rows * (longest // block_size + 1),
        "max_num_seqs": sizes.rows,
        "max_num_batched_tokens": sizes.prompt_len - 1,
        "max_model_len": longest,
    }


def vllm_v1_config(sizes: Sizes) -> dict[str, Any]:
    """The release's defaults with one slot for each row, so that other requests wait."""
    block_size = 16
    return {
        "block_size": block_size,
        "num_blocks": sizes.rows * (8_192 // block_size),
        "max_num_seqs": sizes.rows,
        "max_num_batched_tokens": 8_192,
        "max_model_len": 8_192,
        "chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "scheduling": "fcfs",
        "prefix_caching": sizes.caching,
        "num_speculative_tokens": sizes.drafts,
        "num_lookahead_tokens": 0,
        "connector": "none",
        "reserve_full_prompt": True,
        "steps_in_flight": 0,
    }


def without_notes(driver: Any) -> None:
    """Remove the notes that the driver of vLLM V1 takes inside the measured calls."""
    driver.listen = lambda: None
    start = driver.start

    def started(config: dict[str, Any]) -> None:
        start(config)
        driver.scheduler._update_after_schedule = driver.counts_as_computed
        driver.planned = {"waiting": []}

    driver.start = started


def sendnn_config(sizes: Sizes) -> dict[str, Any]:
    """The release's defaults with one slot for each row, so that other requests wait."""
    block_size, rows = 64, sizes.rows
    longest = sizes.prompt_len + sizes.output_len + block_size
    return {
        "chunk_size": 512,
        "max_model_len": 32_768,
        "max_num_seqs": rows,
        "max_batch_tkv_limit": 2 * rows * longest,
        "num_blocks": 2 * rows * longest // block_size,
        "interleave": True,
        "prefix_caching": True,
        "pausing": True,
        "long_output_first": False,
        "max_overtakes": 0,  # for a queue order that the release does not have
    }


class Released(NamedTuple):
    """A driver: its module and class, its scheduler's update method, its configuration.

    `prepare`: called with the driver before it starts.
    """

    module: str
    driver: str
    update: str
    config: Callable[[Sizes], dict[str, Any]]
    prepare: Callable[[Any], None] = lambda _driver: None


RELEASED = {
    "nano-vllm": Released("nano_vllm", "NanoVllm", "postprocess", nano_vllm_config),
    "sendnn": Released("sendnn", "Sendnn", "update_from_output", sendnn_config),
    "vllm-v1": Released("vllm_v1", "VllmV1", "update_from_output", vllm_v1_config, without_notes),
}


class Timed:
    """A wrapped method of a scheduler; `taken`: nanoseconds of all its calls."""

    def __init__(self, scheduler: Any, name: str) -> None:
        self._method = getattr(scheduler, name)
        self.taken = 0
        setattr(scheduler, name, self)

    def __call__(self, *arguments: Any) -> Any:
        """Call the method and add its time."""
        began = thread_time_ns()
        result = self._method(*arguments)
        self.taken += thread_time_ns() - began
        return result


def fill(driver: Any, rows: int, waiting: int, prompt_len: int, output_len: int) -> None:
    """Let `rows` requests reach decoding one after the other, then let `waiting` arrive."""
    draw = Random(rows)
    lengths = [prompt_len - draw.randint(1, SPREAD) for _ in range(rows)] + [prompt_len] * waiting
    requests = [request(index, length, output_len) for index, length in enumerate(lengths)]
    driver.requests = {arriving["id"]: arriving for arriving in requests}
    for index, arriving in enumerate(requests):
        driver.arrive(arriving["id"])
        while index < rows and driver.scheduler.waiting:
            driver.run()


def request(index: int, prompt_len: int, output_len: int) -> dict[str, Any]:
    """A request with its own prompt and a long output."""
    prompt = [2 + (index * prompt_len + place) % 49_000 for place in range(prompt_len)]
    return {
        "id": str(index),
        "prompt": [2 + index % 49_000, *prompt[1:]],
        "max_tokens": output_len,
        "output_len": output_len,
        "output": [7] * output_len,
    }


def main() -> None:
    """Measure one cell."""
    from lockstep_driver import answer, protected_output

    released = RELEASED[sys.argv[1]]
    rows, waiting, steps, prompt_len, output_len, drafts, caching = map(int, sys.argv[2:])
    answers = protected_output()
    driver = getattr(import_module(released.module), released.driver)()
    driver.action = {}
    released.prepare(driver)
    config = released.config(Sizes(rows, prompt_len, output_len, drafts, bool(caching)))
    started = answer(driver, {"do": "start", "config": config, "requests": []})
    if "error" in started:
        raise SystemExit(f"{sys.argv[1]} does not start: {started['error']}")
    fill(driver, rows, waiting, prompt_len, output_len)
    timed = [Timed(driver.scheduler, name) for name in ("schedule", released.update)]
    times, before = [], 0
    for _ in range(steps):
        driver.run()
        taken = sum(run.taken for run in timed)
        times.append((taken - before) / 1e6)
        before = taken
    counts = len(driver.scheduler.running), len(driver.scheduler.waiting)
    if counts != (rows, waiting):
        raise SystemExit(f"{counts[0]} decode and {counts[1]} wait, not {rows} and {waiting}")
    print(json.dumps(times), file=answers)


if __name__ == "__main__":
    main()
