"""The engine, observed on the paged device, takes the steps of the reference."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.export.trace.requests import request_as_json
from checks.harness.campaign import Plan, own_system
from checks.harness.case import Case
from checks.harness.comparison import compare
from checks.harness.finding import Episode, Finding
from checks.harness.judging import Judge
from checks.harness.policy import Own
from checks.harness.serving import run_workload, scheduler_for, served, served_by
from checks.harness.settings import Settings
from checks.harness.system import ENGINE, REFERENCE, Action
from checks.policies.vllm_v1.engine import engine, engine_under_test, without_device
from checks.registry import claims_of
from engine.core.clock import CostModel
from engine.workloads import fit_for, read_workload
from engine.workloads.own import request_of
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig
from spec.vllm_v1.config import Connector, Release, Scheduling, VllmV1Config, refuse_unservable
from tests.requests import request

EXAMPLES = Path(__file__).parents[4] / "examples"
SMALL: Any = {"block_size": 4, "max_num_seqs": 3, "num_blocks": 150, "max_model_len": 512}


def fitting(workload: str, config: VllmV1Config) -> list[Request]:
    """The requests of an example that can be served."""
    read = read_workload(EXAMPLES / workload)
    return fit_for(read, lambda one: refuse_unservable(one, config))[0]


# --- workloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "config"),
    [
        ("first.jsonl", VllmV1Config(**SMALL)),
        ("shared_prefix.jsonl", VllmV1Config(**SMALL, num_speculative_tokens=2, accepted_drafts=1)),
        ("azure_sample.csv", VllmV1Config(num_blocks=1_000, max_num_seqs=8)),
        ("azure_sample.csv", VllmV1Config(num_blocks=1_000, prefix_caching=False)),
    ],
)
def test_example_workloads_are_served_as_by_the_reference(
    workload: str, config: VllmV1Config
) -> None:
    case = Case(config, tuple(fitting(workload, config)))

    found = list(served(case, ENGINE))

    assert found == list(served(case))
    assert found == list(served_by(without_device(case), case))


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
        one.id for step in served(Case(config, requests), using) for one in step.happened("loaded")
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
    for one in case.requests:
        scheduler.arrive(one.id)

    lost = Action(accepted={}, lost=("long",))
    steps = [scheduler.step(n, lost if n == 1 else Action(accepted={})) for n in range(12)]

    assert [one for step in steps for one in judge.observe(step)] == []
    assert {one.id for one in steps[2].after.queued} == {"long"}
    assert steps[-1].after.finished == {one.id for one in case.requests}


# --- random cases -------------------------------------------------------------------------------


def episodes(count: int, seed: int, **pinned: Any) -> Iterator[Episode]:
    """What becomes of so many random cases; `pinned`: keys that are not drawn."""
    source = Own("vllm-v1", ENGINE)
    plan = Plan(source, seed, pinned=pinned)
    return (
        compare(source.open(), plan.case(index), plan.terms_of(index)) for index in range(count)
    )


def findings(found: Iterable[Episode]) -> list[Finding]:
    return [episode.finding for episode in found if episode.finding is not None]


def test_random_cases_are_served_as_by_the_reference() -> None:
    found = list(episodes(60, seed=4))

    assert findings(found) == []
    happened = sum((Counter(episode.counts) for episode in found), Counter[str]())
    for what in ("prefix_hit", "preempt", "chunk", "accepted draft", "loaded", "load_failed"):
        assert happened[what], what


def test_random_cases_of_the_older_release_are_served_as_by_the_reference() -> None:
    assert findings(episodes(30, seed=5, release=Release.V0_11_2)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_many_random_cases_are_served_as_by_the_reference(seed: int) -> None:
    assert findings(episodes(600, seed=1_000 + seed)) == []


# --- devices ------------------------------------------------------------------------------------


def test_device_is_that_of_the_configuration() -> None:
    case = Case(VllmV1Config(**SMALL), (request("a", 3, 4),))

    assert engine(case).engine.scheduler.state.config is case.config


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


@pytest.mark.parametrize(
    "pinned", [{"connector": "async"}, {"connector": "async", "release": "0.11.2"}], ids=str
)
def test_engine_is_the_reference_where_loads_are_frequent(pinned: dict[str, Any]) -> None:
    plan = Plan(Own("vllm-v1", ENGINE), seed=7, pinned=pinned)

    for episode in range(40):
        case, terms = plan.case(episode), plan.terms_of(episode)
        assert compare(own_system(plan.system), case, terms).finding is None
