"""The engine, observed on the paged device, takes the steps of the reference."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparison import compare
from checks.harness.finding import Episode, Finding
from checks.harness.policy import Own
from checks.harness.serving import served, served_by
from checks.harness.system import ENGINE
from checks.policies.nano_vllm.engine import engine, without_device
from engine.workloads import fit_for, read_workload
from spec.core.requests import Request
from spec.nano_vllm.config import (
    FullHit,
    HitCheck,
    NanoVllmConfig,
    NewBlock,
    refuse_unservable,
    repaired,
)
from tests.requests import request

EXAMPLES = Path(__file__).parents[4] / "examples"
SMALL: Any = {"block_size": 4, "max_num_seqs": 3, "num_blocks": 120, "max_model_len": 512}


def fitting(workload: str, config: NanoVllmConfig) -> list[Request]:
    """The requests of an example that can be served."""
    read = read_workload(EXAMPLES / workload)
    return fit_for(read, lambda one: refuse_unservable(one, config))[0]


# --- workloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "config", "steps"),
    [
        ("first.jsonl", repaired(**SMALL), 88),
        ("shared_prefix.jsonl", repaired(**SMALL), 240),
        ("azure_sample.csv", NanoVllmConfig(num_blocks=90), 255),
        ("mooncake_sample.jsonl", repaired(max_model_len=16_384, num_blocks=200), 128),
    ],
)
def test_example_workloads_are_served_as_by_the_reference(
    workload: str, config: NanoVllmConfig, steps: int
) -> None:
    case = Case(config, tuple(fitting(workload, config)))

    found = list(served(case, ENGINE))

    assert found == list(served(case))
    assert found == list(served_by(without_device(case), case))
    assert len(found) == steps


def test_blocks_taken_at_the_boundary_are_taken_as_by_the_reference() -> None:
    """Where no prompt ends with its block; there the reference stops and the device refuses."""
    config = repaired(new_block=NewBlock.AT_BOUNDARY, **SMALL)
    requests = tuple(request(str(index), 4 * index + 3, 9, arrival=index) for index in range(6))
    case = Case(config, requests)

    assert list(served(case, ENGINE)) == list(served(case))


# --- random cases -------------------------------------------------------------------------------


def episodes(count: int, seed: int, **pinned: Any) -> Iterator[Episode]:
    """What becomes of so many random cases; `pinned`: keys that are not drawn."""
    source = Own("nano-vllm", ENGINE)
    plan = Plan(source, seed, pinned=pinned)
    return (compare(source.open(), plan.case(index), plan.terms) for index in range(count))


def findings(found: Iterable[Episode]) -> list[Finding]:
    return [episode.finding for episode in found if episode.finding is not None]


def test_random_cases_are_served_as_by_the_reference() -> None:
    found = list(episodes(80, seed=4))

    assert findings(found) == []
    happened = sum((Counter(episode.counts) for episode in found), Counter[str]())
    for what in ("prefix_hit", "preempt", "allocate", "early end", "abort, running"):
        assert happened[what], what


def test_random_cases_on_the_device_are_served_as_by_the_reference() -> None:
    can_do = {"hit_check": HitCheck.HASH, "full_hit": FullHit.LAST_COMPUTED}

    assert findings(episodes(30, seed=5, **can_do)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_many_random_cases_are_served_as_by_the_reference(seed: int) -> None:
    assert findings(episodes(1_000, seed=1_000 + seed)) == []


def test_device_is_that_of_the_configuration() -> None:
    case = Case(repaired(**SMALL), (request("a", 3, 4),))

    assert engine(case).engine.scheduler.state.config is case.config
