"""Random cases of every policy: judged, with the tokens of each request, traced and replayed."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import evolve, fields

from checks.export.trace.reading import read_trace, steps_of
from checks.export.trace.writing import TraceWriter
from checks.harness.campaigns.campaign import Plan
from checks.harness.campaigns.replaying import replay_of
from checks.harness.policy import Own, evidence_of
from checks.harness.runs.serving import run_workload
from checks.harness.runs.settings import Settings
from checks.harness.system import REFERENCE
from engine.core.clock import CostModel
from spec.core.records import HISTORY
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, released_2_6_3
from tests.requests import request

SERVED = {"oversized": "refused"}  # others never end
PINNED: dict[str, list[dict[str, Any]]] = {
    "spyre": [
        *(SERVED, SERVED),
        SERVED | {"reservation": False, "pausing": False, "admission": "exact"},
    ],
    "nano-vllm": [
        SERVED
        | {"hit_check": "hash", "full_hit": "last_computed", "token_gate": "new_tokens"}
        | {"sequence_limit": "running"}
    ],
    "vllm-v1": [
        # 0.28.0 never ends a pooled prompt as long as the model.
        SERVED
        | {"connector": "none", "pooling": False}
        | {"release": release, "accepted_drafts": accepted}
        for release, accepted in (("0.28.0", 0), ("0.11.2", 1), ("0.28.0", 3), ("0.11.2", 3))
    ],
}
# Else a request that leaves between two chunks leaves blocks to be found that it never filled; the
# engine, which lacks this, does not cut prompts.
OF_REFERENCE = {"nano-vllm": {"hashing": "computed"}}
OFTEN = ("admit", "prefix_hit", "preempt", "finish", "abort")
HAPPENS = {
    "spyre": {
        *(*OFTEN, "reserve", "allocate", "chunk", "join", "decode", "jump_tkv", "pause", "resume"),
        *("waited", "shared"),
    },
    "nano-vllm": {*OFTEN, "shared"},
    "vllm-v1": {*OFTEN, "rollback", "shared"},
}


def random_case(
    policy: str, number: int, using: str = REFERENCE
) -> tuple[Any, tuple[Request, ...]]:
    """A configuration and its requests, which in every other case arrive on the clock."""
    pinned = PINNED[policy][number % len(PINNED[policy])]
    if using == REFERENCE:
        pinned = pinned | OF_REFERENCE.get(policy, {})
    case = Plan(Own(policy, using), pinned=pinned).case(number)
    if number % 2:
        return case.config, case.requests
    return case.config, tuple(
        evolve(request, arrival=0, arrival_time=float(request.arrival)) for request in case.requests
    )


def episode(policy: str, number: int, path: Path) -> Counter[str]:
    """Check one run in every respect; return its counted situations."""
    config, requests = random_case(policy, number)
    settings, steps = Settings(config, CostModel.from_mapping({}, config)), list[Any]()
    with TraceWriter(path, config, requests, full=True) as trace:
        watching = (trace.write, steps.append)
        run = run_workload(settings, requests, using=REFERENCE, observers=watching)
    assert (run.refused, steps[-1].after.is_idle) == (None, True)
    # A turn never comes if the client of the one before has left.
    assert run.summary.unfinished == 0 or any(row.continued_by for row in requests)
    broken = {violation.rule.id for violation in run.broken}
    assert [rule for rule in broken if not evidence_of(policy).expected_reason(rule, config)] == []
    if run.device is not None and run.device.steps:  # none with drafts in flight
        thrown_away = (
            run.device.sampled - run.summary.output_tokens
        )  # of aborts with a step in flight
        most = getattr(config, "steps_in_flight", 0) * len(steps[-1].after.aborted)
        assert run.device.wrong == []
        assert 0 <= thrown_away <= most
    assert_own_tokens(requests, steps)
    written = read_trace(path)
    assert (written.config, tuple(written.requests.values())) == (config, requests)
    assert list(steps_of(written)) == [*map(without_history, steps)]
    again = replay_of(written)
    assert (again.difference, len(again.steps)) == (None, len(steps))
    return sum(map(happened, steps), Counter[str]())


def without_history(step: Any) -> Any:
    """The step as a trace has it: without what states remember of the steps before."""
    places = [key.name for key in fields(type(step)) if key.name in ("before", "planned", "after")]
    states = {name: getattr(step, name) for name in places}
    history = [key.name for key in fields(type(step.after)) if key.metadata == HISTORY]
    nothing: dict[str, Any] = dict.fromkeys(history)
    return evolve(step, **{name: evolve(state, **nothing) for name, state in states.items()})


def assert_own_tokens(requests: tuple[Request, ...], steps: list[Any]) -> None:
    """Each request gets the tokens that it samples alone, up to its end or abort."""
    for client in requests:
        sampled = [token for step in steps for token in step.outputs.get(client.id, ())]
        assert sampled == [client.output_token(index) for index in range(len(sampled))]
        if client.id in steps[-1].after.finished:
            assert len(sampled) == client.end


def happened(step: Any) -> Counter[str]:
    seen = Counter(event.transition for event in step.events)
    seen["abort"] += len(step.aborted)
    seen["waited"] += any(row.waited_steps for row in getattr(step.after, "paused", ()))
    seen["shared"] += 2 in step.after.pool.references.values()
    return seen


@pytest.mark.parametrize("policy", PINNED)
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(range(24), id="some"),
        pytest.param(range(24, 400), id="many", marks=pytest.mark.thorough),
    ],
)
def test_random_run_keeps_the_rules_and_replays(
    policy: str, numbers: range, tmp_path: Path
) -> None:
    seen = sum(
        (episode(policy, number, tmp_path / "t.jsonl") for number in numbers), Counter[str]()
    )

    assert {name for name, count in seen.items() if count} >= HAPPENS[policy]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("configured", [SpyreConfig, released_2_6_3])
def test_long_runs_in_the_sizes_of_the_figures_break_no_rule(configured: Any, seed: int) -> None:
    draw = Random(seed)
    lengths = [(draw.randint(1, 400), draw.randint(1, 112)) for _ in range(60)]
    requests = [
        request(str(index), *length, arrival=draw.randint(0, 1_200))
        for index, length in enumerate(lengths)
    ]
    sizes: dict[str, Any] = {"block_size": 64, "chunk_size": 128, "max_model_len": 512}
    sizes |= {"max_num_seqs": 4, "max_batch_tkv_limit": 1536, "num_blocks": 40}
    config, steps = configured(**sizes), list[Any]()
    settings = Settings(config, CostModel.from_mapping({}, config))

    run = run_workload(settings, requests, using=REFERENCE, observers=[steps.append])

    assert run.holds
    assert run.steps > 600
    assert len(run.rules) > 60
    assert_own_tokens(tuple(requests), steps)
