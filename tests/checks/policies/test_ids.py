"""Request ids with any characters do not change a scheduler or a check."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.search import explore
from checks.export.trace.reading import read_trace, steps_of
from checks.export.trace.writing import TraceWriter
from checks.harness.campaigns.campaign import Plan, own_system
from checks.harness.campaigns.replaying import replay_of
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.policy import Own, evidence_of
from checks.harness.runs.serving import run_workload
from checks.harness.runs.settings import Settings
from checks.harness.system import REFERENCE
from checks.registry import POLICIES
from engine.core.clock import CostModel
from spec.core.requests import Prompt, Request

ODD = (
    "a",
    "a/1",
    "a/1/1",
    "a/2",
    "a: b, step",
    "arrive a",
    "ends #2 and",
    "e/é ü",
    "日本/語",
    "🂡 ",
)
EXPLORED = {
    "spyre": "preemption",
    "nano-vllm": "budget",
    "vllm-v0": "forks, several",
    "vllm-v1": "lookahead",
}


# The device refuses what other choices hand to it.
SERVABLE: dict[str, Any] = {"nano-vllm": {"hit_check": "hash", "full_hit": "last_computed"}}


def odd_names(ids: list[str]) -> dict[str, str]:
    """Odd names, in the order of the ids that they replace."""
    names = sorted({*ODD, *(f"{name}/{number}" for number in range(9) for name in ODD)})
    return dict(zip(sorted(ids), names, strict=False))


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The value with renamed ids in keys and sets."""
    match value:
        case dict():
            return {names.get(key, key): renamed(item, names) for key, item in value.items()}
        case frozenset():
            return frozenset(names[request_id] for request_id in value)
    return value


def with_odd_names(case: Case) -> Case:
    names = odd_names([request.id for request in case.requests])
    requests = tuple(
        evolve(request, id=names[request.id], prompt=_prompt(request, names))
        for request in case.requests
    )
    return Case(case.config, requests, surroundings=renamed(dict(case.surroundings), names))


def _prompt(request: Request, names: dict[str, str]) -> Prompt:
    """Its prompt, whose own tokens are known by the request's name in files."""
    own = {f"own:{request.id}": f"own:{names[request.id]}"}
    parts = tuple(
        (own.get(part[0], part[0]), part[1]) if isinstance(part[0], str) else part
        for part in request.prompt.parts
    )
    return evolve(request.prompt, parts=parts)


@pytest.mark.parametrize("policy", EXPLORED)
def test_exploring_finds_the_same_with_odd_ids(policy: str) -> None:
    instances = {instance.name: instance for instance in machine_of(policy).instances}
    usual: Instance[Any] = instances[EXPLORED[policy]]
    names = odd_names([request.id for request in usual.requests])
    odd = evolve(
        usual,
        requests=tuple(evolve(request, id=names[request.id]) for request in usual.requests),
        **{
            key: renamed(getattr(usual, key), names)
            for key in ("aborts", "early_ends", "external", "failing", "leavers")
        },
    )

    assert _explored(policy, odd) == _explored(policy, usual)


def _explored(policy: str, instance: Instance[Any]) -> tuple[int, int, set[str]]:
    model = machine_of(policy).model(instance)
    found = explore(model, properties_of(model).all, keep_going=True)
    return found.states, found.transitions, {violation.rule for violation in found.violations}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["reference", "engine"])
def test_random_cases_with_odd_ids_are_served_alike(policy: str, name: str) -> None:
    if name == "engine" and evidence_of(policy).engine is None:
        pytest.skip("no engine")
    system = own_system(Own(policy, name))
    plan = Plan(Own(policy, name))

    episodes = [compare(system, with_odd_names(plan.case(number)), Terms()) for number in range(5)]

    assert [episode.findings for episode in episodes if episode.findings] == []
    assert sum(episode.steps for episode in episodes) > 50


@pytest.mark.parametrize("policy", POLICIES)
def test_traces_with_odd_ids_are_written_read_and_replayed(policy: str, tmp_path: Path) -> None:
    for number in range(2):
        plan = Plan(Own(policy, "reference"), pinned=SERVABLE.get(policy, {}))
        case = with_odd_names(plan.case(number))
        settings = Settings(case.config, CostModel.from_mapping({}, case.config))
        steps: list[Any] = []
        path = tmp_path / f"{number}.jsonl"
        with TraceWriter(path, case.config, case.requests, full=True) as trace:
            run_workload(
                settings, case.requests, using=REFERENCE, observers=(trace.write, steps.append)
            )

        written = read_trace(path)

        assert [*written.requests.values()] == [*case.requests]
        assert [*steps_of(written)] == steps
        assert replay_of(written).difference is None
