"""vLLM V1's engine with loads, drafts, lookahead and requests that nothing can serve."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checks.export.trace.requests import request_as_json
from checks.harness.case import Case
from checks.harness.judging import Judge
from checks.harness.runs.serving import run_workload, scheduler_for, served, served_by
from checks.harness.runs.settings import Settings
from checks.harness.system import ENGINE, REFERENCE, Action
from checks.policies.vllm_v1.engine import engine_under_test, without_device
from checks.registry import claims_of
from engine.core.clock import CostModel
from engine.workloads import read_workload
from engine.workloads.own import request_of
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.releases import Release
from spec.vllm_v1.requests import refuse_unservable
from tests.requests import request

SMALL: Any = {"block_size": 4, "max_num_seqs": 3, "num_blocks": 150, "max_model_len": 512}


LINES = (  # what a connector has of them, and what a drafter foresees
    {"id": "a", "prompt_len": 20, "max_tokens": 9, "external": 16, "right_drafts": "110"},
    {"id": "b", "prompt_len": 20, "max_tokens": 9, "arrival": 1, "right_drafts": "0"},
    {"id": "c", "prompt_len": 9, "max_tokens": 3, "arrival": 1, "external": 9},
)


@pytest.mark.parametrize("connector", [Connector.SYNC, Connector.ASYNC])
def test_a_workload_says_what_connector_and_drafter_have(
    connector: Connector, tmp_path: Path
) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    config = VllmV1Config(**SMALL, connector=connector, num_speculative_tokens=2)

    requests = read_workload(file).requests
    case = Case(config, requests)
    found = list(served(case, ENGINE))
    run = run_workload(Settings(config, CostModel.from_mapping({}, config)), requests)

    assert found == list(served(case)) == list(served_by(without_device(case), case))
    computed = sum((Counter(step.scheduled) for step in found), Counter())
    accepted = sum((Counter(step.accepted) for step in found), Counter())
    assert computed["a"] < 20 < computed["b"]
    assert accepted["b"] == 0 < accepted["a"]
    assert run.holds
    loads = sum(len(step.happened("loaded")) for step in found)
    assert loads == (2 if connector is Connector.ASYNC else 0)


def steps_of_both(config: VllmV1Config, requests: tuple[Request, ...]) -> list[Any]:
    """The steps of the engine, which are those of the reference."""
    case = Case(config, requests)
    found = [*served(case, ENGINE)]
    assert found == [*served(case)]
    return found


def test_slots_can_be_set_aside_although_nothing_is_drafted() -> None:
    config = VllmV1Config(block_size=4, num_blocks=40, max_model_len=64, num_lookahead_tokens=3)
    requests = tuple(request(name, length, 12) for name, length in (("a", 5), ("b", 6), ("c", 7)))

    steps = steps_of_both(config, requests)

    grown = [len(row.blocks) * 4 - row.tokens for step in steps for row in step.after.running]
    assert min(grown) >= 2  # room behind the newest token


def test_cached_blocks_that_none_holds_count_among_those_that_a_whole_prompt_takes() -> None:
    config = VllmV1Config(
        block_size=4,
        num_blocks=6,
        max_model_len=24,
        max_num_batched_tokens=4,
        reserve_full_prompt=True,
    )
    first = Request(id="a", prompt=Prompt.of_parts([("shared", 8), ("a", 1)]), max_tokens=1)
    holds = request("b", 7, 12, arrival=4)
    long = Request(
        id="c", prompt=Prompt.of_parts([("shared", 8), ("c", 8)]), max_tokens=1, arrival=7
    )

    steps = steps_of_both(config, (first, holds, long))

    # Of three free blocks two are cached: four are needed for all of it, three for its next chunk.
    assert (steps[8].refusal, len(steps[8].before.pool.free)) == ("V1-KV-1", 3)
    assert steps[-1].after.is_idle


@pytest.mark.parametrize("using", [REFERENCE, ENGINE])
def test_a_load_whose_client_has_gone_ends_too(using: str) -> None:
    config = VllmV1Config(**SMALL, connector=Connector.ASYNC)
    requests = (request("a", 20, 9, external=16, abort_at=1), request("b", 3, 2, arrival=2))

    run = run_workload(Settings(config, CostModel.from_mapping({}, config)), requests, using=using)

    assert run.holds
    assert run.summary.finished == 1
    ended = [
        event.id
        for step in served(Case(config, requests), using)
        for event in step.happened("loaded")
    ]
    assert ended == ["a"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"external": 4}, "external: found 4; allowed: 0 without a connector"),
        (
            {"right_drafts": "1"},
            "right_drafts: found '1'; allowed: no such key where num_speculative_tokens is 0",
        ),
    ],
)
def test_what_nothing_uses_is_refused(keys: dict[str, Any], message: str) -> None:
    line = {"id": "a", "prompt_len": 20, "max_tokens": 9, **keys}

    with pytest.raises(WorkloadError) as refused:
        refuse_unservable(request_of(line), VllmV1Config())

    assert str(refused.value) == message
    assert request_as_json(request_of(line)) == {"arrival": 0, **line}


def test_other_policies_refuse_what_only_this_one_knows() -> None:
    line = {"id": "a", "prompt_len": 20, "max_tokens": 9, "external": 4}

    with pytest.raises(WorkloadError, match="external: found 4; allowed: 0 under policy nano-vllm"):
        claims_of("nano-vllm").refuse_unservable(request_of(line), NanoVllmConfig())


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("scheduling", Scheduling)
@pytest.mark.parametrize("using", [REFERENCE, ENGINE])
def test_a_request_that_lost_its_load_and_is_too_long_for_the_step_keeps_its_place(
    using: str, scheduling: Scheduling, release: Release
) -> None:
    config = VllmV1Config(
        block_size=2,
        num_blocks=40,
        max_model_len=12,
        max_num_batched_tokens=12,
        chunked_prefill=False,
        connector=Connector.ASYNC,
        scheduling=scheduling,
        release=release,
    )
    short = [request(f"short {n}", 2, 6) for n in range(3)]
    case = Case(config, (*short, request("long", 10, 1, external=4)))
    reference: Any = scheduler_for(REFERENCE, case)
    scheduler, judge = scheduler_for(using, case), Judge(reference.machine.ctx)
    for client in case.requests:
        scheduler.arrive(client.id)

    lost = Action(accepted={}, lost=("long",))
    steps = [scheduler.step(n, lost if n == 1 else Action(accepted={})) for n in range(12)]

    assert [violation for step in steps for violation in judge.observe(step)] == []
    assert {request.id for request in steps[2].after.queued} == {"long"}
    assert steps[-1].after.finished == {request.id for request in case.requests}


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "is_served"),
    [
        ({}, True),
        ({"scheduling": "priority"}, False),
        ({"connector": "sync"}, False),
        ({"connector": "sync", "prefix_caching": False}, True),
        ({"connector": "async"}, True),
    ],
)
def test_cases_in_which_a_false_hit_can_be_are_compared_without_a_device(
    keys: dict[str, Any], is_served: bool
) -> None:
    case = Case(VllmV1Config(**SMALL, **keys), (request("a", 3, 4),))

    assert hasattr(engine_under_test(case).engine, "_device") == is_served
