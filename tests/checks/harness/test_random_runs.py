"""Random workloads under random configurations of nano-vLLM and vLLM V1: run, traced, replayed."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checks.cli.configuration import read_settings
from checks.export.trace.reading import read_trace, steps_of
from checks.export.trace.writing import TraceWriter
from checks.harness.replaying import replay_of
from checks.harness.serving import Settings, run_workload
from checks.harness.system import REFERENCE
from spec.core.requests import Prompt, Request

SIZES = ["block_size=4", "max_model_len=64"]
KEPT = ["hit_check=hash", "full_hit=last_computed", "token_gate=new_tokens"]
KEPT += ["sequence_limit=running"]

# What the texts promise and no reading of them keeps: see the chapters.
NOT_KEPT = {"NANO-PRE-4", "NANO-PFX-6", "NANO-PFX-9", "V1-BUD-4"}

VARIANTS: dict[str, list[Any]] = {
    "chunked_prefill": [True, True, False],
    "num_speculative_tokens": [0, 0, 1, 3],
    "accepted_drafts": [0, 1, 3],
    "scheduling": ["fcfs", "priority"],
    "release": ["0.28.0", "0.11.2"],
    "prefix_caching": [True, False],
    "reserve_full_prompt": [True, False],
    "long_prefill_token_threshold": [0, 5],
}


def settings_of(random: Random, policy: str) -> Settings:
    sizes = [f"max_num_seqs={random.randint(1, 6)}", f"num_blocks={random.randint(16, 24)}"]
    if policy == "nano-vllm":
        more = [f"max_num_batched_tokens={random.randint(64, 120)}", *KEPT]
        return read_settings(None, [f"policy={policy}", *SIZES, *sizes, *more])
    chosen = {key: random.choice(values) for key, values in VARIANTS.items()}
    budget = random.randint(4, 80) if chosen["chunked_prefill"] else 64
    more = [f"{key}={str(value).lower()}" for key, value in chosen.items()]
    more.append(f"max_num_batched_tokens={budget}")
    return read_settings(None, [f"policy={policy}", *SIZES, *sizes, *more])


def requests_of(random: Random) -> list[Request]:
    """Prompts that share beginnings; some clients go away, some answers end early."""
    made = []
    for index in range(random.randint(2, 9)):
        shared, own = (f"common {random.randrange(2)}", random.randint(1, 24)), random.randint(1, 6)
        arrival, most = random.randint(0, 6), random.randint(1, 20)
        made.append(
            Request(
                id=str(index),
                prompt=Prompt.of_parts([shared, (str(index), own)]),
                max_tokens=most,
                arrival=arrival,
                output_len=random.choice([None, random.randint(1, most)]),
                abort_at=random.choice([None, None, random.randint(arrival, 40)]),
                priority=random.randint(0, 2),
            )
        )
    return made


def episode(policy: str, seed: int, path: Path) -> Counter[str]:
    """One run, held against everything that is asked of one; what happened in it."""
    random = Random(seed)
    settings, requests = settings_of(random, policy), requests_of(random)
    steps: list[Any] = []
    with TraceWriter(path, settings.config, requests, full=True) as trace:
        watching = (trace.write, steps.append)
        run = run_workload(settings, requests, using=REFERENCE, observers=watching)
    assert run.refused is None
    assert run.device is not None
    assert run.device.wrong == []
    assert run.device.sampled == run.summary.output_tokens
    assert {one.rule.id for one in run.broken} <= NOT_KEPT
    assert run.summary.unfinished == 0
    written = read_trace(path)
    assert list(steps_of(written)) == steps
    again = replay_of(written)
    assert (again.difference, len(again.steps)) == (None, len(steps))
    return Counter(event.transition for step in steps for event in step.events)


@pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v1"])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(8), id="some"),
        pytest.param(range(8, 200), id="many", marks=pytest.mark.thorough),
    ],
)
def test_random_run_keeps_the_rules_and_replays(policy: str, seeds: range, tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds:
        happened += episode(policy, seed, tmp_path / "t.jsonl")

    often = {"admit", "prefix_hit", "preempt", "finish"}
    assert often <= happened.keys()
    if policy == "vllm-v1":
        assert happened["rollback"] > 0
