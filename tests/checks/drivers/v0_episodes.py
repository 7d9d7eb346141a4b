"""Episodes for the driver of vLLM V0, by hand or random, and what is wrong with an answer.

There is no machine of this policy yet. What is judged needs none: blocks add up and belong to a
request, limits are kept, no step is without work, each request ends once, with the tokens that the
script gave, and holds nothing at the end.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest
from attrs import field, frozen

from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of

Json = dict[str, Any]

PATIENCE = 400  # steps; no episode here needs half of them


@frozen
class Episode:
    """A configuration by V0's keys, requests, and for each step arrivals and aborts."""

    config: Json
    requests: Sequence[Json]
    actions: Sequence[Json]


@frozen
class Answer:
    """The records of the steps that were taken, and the error that ended them early, if one did."""

    records: Sequence[Json]
    failure: Json = field(factory=dict)


def asks(name: str, prompt: int, output: int, **others: Any) -> Json:
    """A request with so many tokens of its own, that runs to its `max_tokens`."""
    mark = 1000 * (1 + sum(name.encode()))
    request = {
        "id": name,
        "prompt": [mark + index for index in range(prompt)],
        "max_tokens": output,
        "output_len": output,
        "output": [mark + 500 + index for index in range(output)],
    }
    return request | others


def random_episode(seed: int) -> Episode:
    """A small pool under pressure; each seed switches features of the scheduler on or off."""
    draw = Random(seed)
    chunked, block_size = draw.random() < 0.5, draw.choice((2, 4))
    length = block_size * draw.randint(4, 8)
    config: Json = {
        "block_size": block_size,
        "num_gpu_blocks": draw.randint(6, 14),
        "num_cpu_blocks": draw.choice((0, 24)),
        "max_model_len": length,
        "max_num_seqs": draw.randint(1, 4),
        "max_num_batched_tokens": draw.randint(4, length) if chunked else length,
        "chunked_prefill": chunked,
        "prefix_caching": draw.random() < 0.5,
        "scheduling": draw.choice(("fcfs", "priority")),
        "watermark": draw.choice((0.01, 0.2)),
    }
    if config["num_cpu_blocks"]:
        config["preemption_mode"] = draw.choice(("swap", "recompute", None))
    requests = [_request(draw, str(number), config) for number in range(draw.randint(2, 6))]
    actions: list[Json] = [{} for _ in range(PATIENCE)]
    for request in requests:
        arrival = draw.randint(0, 12)
        actions[arrival].setdefault("arrive", []).append(request["id"])
        if draw.random() < 0.2:
            actions[arrival + draw.randint(1, 12)].setdefault("abort", []).append(request["id"])
    return Episode(config, requests, actions)


def _request(draw: Random, name: str, config: Json) -> Json:
    prompt = draw.randint(1, config["max_model_len"] - 1)
    output = draw.randint(1, config["max_model_len"] - prompt)
    priority = draw.randint(0, 2) if config["scheduling"] == "priority" else 0
    asked = asks(name, prompt, output, priority=priority, output_len=draw.randint(1, output))
    if draw.random() < 0.5:  # a prefix that others have, too
        asked["prompt"] = list(range(prompt))
    return asked


@contextmanager
def installed_release() -> Iterator["Live"]:
    """The driver of the installed release; the test is skipped where there is none."""
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    with Popen(command_of("vllm-v0"), stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:
        yield Live(process)
        process.kill()


class Live:
    """A running driver that is given one episode after the other."""

    def __init__(self, process: "Popen[bytes]") -> None:
        self.process = process
        self.hello = self._answer()

    def serve(self, episode: Episode) -> Answer:
        """The episode's answer, up to the step after which no request is left or will come."""
        start = {"do": "start", "config": episode.config, "requests": list(episode.requests)}
        answer = self._ask(start)
        records: list[Json] = []
        for first in range(0, len(episode.actions), 32):
            if "error" in answer:
                break
            answer = self._ask({"do": "play", "steps": [*episode.actions[first : first + 32]]})
            records += answer["steps"]
            if not (present(records[-1]) or any(episode.actions[first + 32 :])):
                break
        return Answer(records, answer.get("error", {}))

    def _ask(self, message: Json) -> Json:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Json:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer


def present(record: Mapping[str, Any]) -> list[str]:
    """Ids of all requests in a queue."""
    return [*record["waiting"], *record["running"], *record["swapped"]]


def faults(episode: Episode, answer: Answer) -> Iterator[str]:
    """What is wrong without any reference, with the step in front."""
    before: Mapping[str, Any] = {"waiting": [], "running": [], "swapped": []}
    for step, record in enumerate(answer.records):
        came = record.get("before", before)
        for fault in (*_block_faults(record), *_step_faults(episode.config, came, record)):
            yield f"step {step}: {fault}"
        before = record
    if answer.failure:
        yield "raised {type}: {message} ({at})".format(**answer.failure)
    else:
        yield from _end_faults(episode, answer)


def _block_faults(record: Json) -> Iterator[str]:
    """Blocks that are neither held nor free, or both, on both devices."""
    for pool, tables in (("blocks", "block_tables"), ("cpu_blocks", "cpu_block_tables")):
        blocks = record[pool]
        free, held = [*blocks["free_list"], *blocks["evictable"]], blocks["references"]
        holders = Counter(str(one) for table in record[tables].values() for one in table)
        if blocks["free"] != len(free) or len(free) + len(held) != blocks["total"]:
            yield f"{pool}: {len(held)} held and {blocks['free']} free of {blocks['total']}"
        if {int(one) for one in held} & set(free):
            yield f"{pool}: held and free at once"
        if dict(holders) != {str(one): count for one, count in held.items()}:
            yield f"{pool}: not the requests' own: {held}, tables {record[tables]}"


def _step_faults(config: Json, came: Mapping[str, Any], record: Json) -> Iterator[str]:
    """Limits of a batch, and a step in which nothing happens."""
    cached = sum(record["cached_blocks"].values()) * config["block_size"]
    tokens = sum(record["scheduled"].values())
    if tokens - cached > config["max_num_batched_tokens"]:
        yield f"{tokens} tokens, {cached} of them cached"
    if len(record["scheduled"]) > config["max_num_seqs"]:
        yield f"{len(record['scheduled'])} requests in the batch"
    if len(present(record)) != len(set(present(record))):
        yield "a request is in two queues"
    busy = ("scheduled", "ignored", "preempted", "swapped_out")
    if present(came) and not any(record[name] for name in busy):
        yield "nothing happens though a request is there"


def _end_faults(episode: Episode, answer: Answer) -> Iterator[str]:
    """Requests that have not ended once or have other tokens, and what is still held."""
    ends: Counter[str] = Counter()
    outputs: dict[str, list[int]] = {}
    for record in answer.records:
        ends.update((*record["finished"], *record["ignored"], *record["aborted"]))
        for name, tokens in record["outputs"].items():
            outputs.setdefault(name, []).extend(tokens)
    finished = {name for record in answer.records for name in record["finished"]}
    for request in episode.requests:
        name = request["id"]
        if ends[name] != 1:
            yield f"{name} ended {ends[name]} times"
        tokens, due = outputs.get(name, []), request["output"][: request["output_len"]]
        if tokens != (due if name in finished else due[: len(tokens)]):
            yield f"{name} got {tokens}"
    last = answer.records[-1]
    if present(last) or last["blocks"]["references"] or last["cpu_blocks"]["references"]:
        yield f"{present(last)} are left, and blocks are held"


def known_end(episode: Episode, answer: Answer) -> str | None:
    """The fact of `test_vllm_v0_facts.py` that explains what is wrong, by what happens there."""
    config, last = episode.config, answer.records[-1]
    swaps = config.get("preemption_mode") == "swap"
    if answer.failure:
        return _KNOWN_PLACES.get(answer.failure["at"].split()[-1]) if swaps else None
    if swaps and any(_is_stuck(record) for record in answer.records):
        return "never swapped in"
    if swaps and last["cpu_blocks"]["references"] and not present(last):
        return "CPU blocks kept"
    ending = answer.records[-4:]
    victims = sum(bool(record["preempted"]) for record in ending)
    is_loop = victims > 1 and not any(record["outputs"] for record in ending)
    return "preempted for ever" if config["chunked_prefill"] and is_loop else None


def _is_stuck(record: Json) -> bool:
    """Nothing runs though no request was swapped out in this step; until an abort, if one comes."""
    return bool(record["swapped"]) and record["kind"] == "idle" and not record["swapped_out"]


_KNOWN_PLACES = {
    "_schedule_prefills": "priority with swapping",
    "mark_blocks_as_accessed": "an abort with caching",
    "_get_num_new_uncached_and_cached_tokens": "a cached prompt, half done",
    "_swap_out": "no space on the CPU",
}
