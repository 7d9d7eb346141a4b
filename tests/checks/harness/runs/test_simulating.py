"""Simulations decide what judged runs decide, step by step, on random workloads and traces."""

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.policy import evidence_of
from checks.harness.runs.serving import run_workload, scheduler_of, served_by
from checks.harness.runs.settings import Settings
from checks.harness.runs.simulating import simulate, simulated_steps
from checks.harness.system import ENGINE, Scheduler
from checks.registry import claims_of
from engine.core.clock import CostModel
from engine.core.decisions import Decisions
from engine.vllm_v1.decisions import DecisionObserver
from engine.workloads import read_workload
from spec.core.requests import Prompt, Request
from tests.checks.harness.test_random_runs import random_case
from tests.requests import request

COUNTED = ("preempt", "pause", "jump_tkv")


def decided(step: Decisions) -> dict[str, Any]:
    """What a step decided, to be compared."""
    return {
        "step": (step.index, step.time, step.kind),
        "work": step.work,
        "scheduled": (step.tokens, step.requests),
        "sampled": [*step.sampled],
        "left": ([*step.finished], [*step.aborted]),
        "refusal": step.refusal,
        "counted": {name: step.transitions.get(name, 0) for name in COUNTED},
        "after": (step.waiting, step.is_idle),
    }


def recorded(step: Any) -> dict[str, Any]:
    """Scheduled tokens by request, preemptions, hits and blocks, of the record of a step."""
    return {
        "scheduled": step.scheduled,
        "events": [event for event in step.events if event.transition not in ("loaded",)],
        "tables": {row.id: row.blocks for row in step.after.present},
        "free": [*step.after.pool.free],
    }


def engine_of(case: Case) -> Scheduler[Any]:
    engine = evidence_of(case.config.policy).engine
    assert engine is not None
    return engine.under_test(case)


def assert_same_decisions(case: Case, cost: CostModel) -> int:
    """Compare the decisions of a simulation with those of a run, and its records too."""
    config, records = case.config, list[Any]()
    run = [*served_by(engine_of(case), case, cost)]
    simulated = [*map(decided, simulated_steps(case, cost))]
    in_records = [*map(decided, simulated_steps(case, cost, records.append))]
    decisions = presentation_of(config.policy).decisions
    expected = [decided(decisions(config, step)) for step in run]
    assert simulated == expected
    assert in_records == expected
    for step, record in zip_longest(run, records):
        assert recorded(record) == recorded(step)
    return len(run)


CASES = 30


@pytest.mark.parametrize("policy", ["vllm-v1", "nano-vllm", "spyre"])
def test_random_workloads_are_decided_as_in_a_run(policy: str) -> None:
    steps = 0
    for number in range(CASES):
        config, requests = random_case(policy, number, ENGINE)
        steps += assert_same_decisions(
            Case(config, requests), CostModel(prefill_time=2, per_row=0.25, per_cached_token=0.125)
        )
    assert steps > 10 * CASES


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["vllm-v1", "nano-vllm", "spyre"])
@pytest.mark.parametrize(
    "trace", ["AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"]
)
def test_every_step_of_a_whole_trace_is_decided_as_in_a_run(trace: str, policy: str) -> None:
    """Where the environment variable LOCKSTEP_TRACES names the directory that they are in."""
    path = Path(os.environ.get("LOCKSTEP_TRACES", "")) / trace
    if not path.is_file():
        pytest.skip(f"{trace} is not in LOCKSTEP_TRACES")
    whole_prompts = {"max_num_batched_tokens": 131_072} if policy == "nano-vllm" else {}
    config = claims_of(policy).config(max_model_len=131_072, **whole_prompts)
    case, cost = Case(config, tuple(read_workload(path).requests)), CostModel(prefill_time=2)
    decisions = presentation_of(policy).decisions

    run, steps = served_by(engine_of(case), case, cost), 0
    for step, simulated in zip_longest(run, simulated_steps(case, cost)):
        assert decided(decisions(config, step)) == decided(simulated)
        steps += 1

    assert steps > 10_000


def shared_streams(count: int) -> Iterator[Request]:
    """Requests whose prompts share beginnings, in named parts that end within blocks."""
    for number in range(count):
        parts = [("system", 37), (f"user {number % 3}", 5 + number % 7), (f"turn {number % 4}", 9)]
        yield Request(
            id=str(number),
            prompt=Prompt.of_parts(parts[: 1 + number % 3]),
            max_tokens=3 + number % 29,
            arrival_time=number / 2,
        )


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        ("vllm-v1", {"block_size": 4, "num_blocks": 34}),
        ("vllm-v1", {"block_size": 1, "num_blocks": 99, "num_speculative_tokens": 2}),
        ("nano-vllm", {"block_size": 4, "num_blocks": 30, "max_num_seqs": 8}),
        ("nano-vllm", {"block_size": 4, "num_blocks": 30, "hit_check": "nothing"}),
        ("spyre", {"block_size": 8, "chunk_size": 16, "num_blocks": 30, "reservation": False}),
    ],
)
def test_shared_prompts_hit_and_preempted_requests_find_their_tokens_as_in_a_run(
    policy: str, keys: dict[str, Any]
) -> None:
    config = claims_of(policy).config(**keys, max_model_len=96)
    case = Case(config, tuple(shared_streams(60)))
    assert_same_decisions(case, CostModel(prefill_time=2))
    summary = simulate(Settings(config, CostModel()), case.requests).summary

    assert summary.reused_tokens > 200
    assert summary.preemptions + summary.pauses > 0


def test_metrics_are_those_of_a_run() -> None:
    for policy in ("vllm-v1", "nano-vllm", "spyre", "vllm-v0"):
        config = claims_of(policy).config(block_size=8, max_model_len=96)
        settings = Settings(config, CostModel(per_chunk_token=0.5, per_attended_token=0.25))
        requests = [*shared_streams(30)]
        run = run_workload(settings, requests, using=scheduler_of(None, config))
        simulated = simulate(settings, requests)

        assert simulated.summary == run.summary
        assert simulated.latencies == run.latencies


def test_token_ids_of_a_workload_are_looked_at() -> None:
    """One prompt is another with its sampled tokens, which only the tokens tell."""
    first = request("a", 8, 5)
    tokens = [*first.prompt.tokens(), *first.output_tokens(5)]
    second = evolve(request("b", 1, 2, arrival=9), prompt=Prompt.of_tokens(tokens))
    config = claims_of("vllm-v1").config(block_size=4, max_model_len=32)
    case = Case(config, (first, second))

    assert_same_decisions(case, CostModel())
    assert simulate(Settings(config, CostModel()), case.requests).summary.reused_tokens == 12


def test_steps_that_repeat_for_ever_end_the_simulation() -> None:
    # One request is alone and too large for the pool, in a reading that admits it all the same.
    config = claims_of("nano-vllm").config(
        block_size=4, num_blocks=3, max_model_len=64, oversized="queued"
    )
    requests: Sequence[Request] = [request("0", 20, 4)]
    simulated = simulate(Settings(config, CostModel()), requests)
    run = run_workload(Settings(config, CostModel()), requests)

    (unmet,) = simulated.broken
    assert unmet == run.broken[-1]
    assert (unmet.rule.id, simulated.steps) == ("NANO-LIF-6", run.steps)


def test_a_decision_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_observer: object, _plan: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(DecisionObserver, "_transitions", none)
    config = claims_of("vllm-v1").config(block_size=4, num_blocks=34, max_model_len=96)
    case = Case(config, tuple(shared_streams(60)))
    with pytest.raises(AssertionError):
        assert_same_decisions(case, CostModel(prefill_time=2))
