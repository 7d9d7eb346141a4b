"""The engine, observed on the simulated device, takes the steps of the reference."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import generated
from checks.cli.configuration import read_settings
from checks.harness.campaign import Plan, own_system
from checks.harness.case import Case
from checks.harness.comparison import compare
from checks.harness.failing import FailingDevice
from checks.harness.finding import Episode, Finding, Kind
from checks.harness.own_engine import EngineScheduler
from checks.harness.policy import Own
from checks.harness.serving import served, served_by
from checks.harness.system import ENGINE, Action
from checks.policies.spyre.engine import (
    engine,
    engine_under_test,
    on_device,
    without_device,
)
from engine.core.blocks import PrefixHit
from engine.core.faults import Failure
from engine.spyre.device import SpyreDevice
from engine.spyre.serving import Engine
from engine.workloads import read_workload
from spec.core.errors import WorkloadError
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.records import Step
from spec.spyre.variants import Admission, Queue
from tests.engine.workload_files import fit
from tests.requests import request

EXAMPLES = Path(__file__).parents[4] / "examples"


# --- workloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "changes", "steps"),
    [
        ("first.jsonl", {}, 54),
        ("tiny.jsonl", {}, 7),
        ("shared_prefix.jsonl", {}, 131),
        ("mooncake_sample.jsonl", {"max_num_seqs": 4}, 532),
        ("azure_sample.csv", {"admission": Admission.SHIPPED, "queue": Queue.OVERTAKING}, 322),
        ("azure_sample.csv", {"pausing": True, "max_batch_tkv_limit": 40_000}, 352),
    ],
)
def test_example_workloads_are_served_as_by_the_reference(
    workload: str, changes: dict[str, Any], steps: int
) -> None:
    name = EXAMPLES / workload
    own = name.with_suffix(".toml")
    config: Any = read_settings(own).config if own.exists() else SpyreConfig(**changes)
    case = Case(config, tuple(fit(read_workload(name), config)[0]))

    found = list(served(case, ENGINE))

    assert found == list(served(case))
    assert len(found) == steps


@pytest.mark.parametrize("workload", ["first.jsonl", "shared_prefix.jsonl"])
def test_the_engine_without_a_device_takes_the_same_steps(workload: str) -> None:
    config: Any = read_settings(EXAMPLES / "first.toml").config
    case = Case(config, tuple(fit(read_workload(EXAMPLES / workload), config)[0]))

    steps = list(served_by(without_device(case), case))

    assert steps == list(served_by(engine(case), case))
    assert len(steps) > 50


REAL_SIZES = {
    "default": SpyreConfig(),
    "2.6.3": released_2_6_3(reading="text"),
    "2.6.3 without pausing": released_2_6_3(reading="text", pausing=False),
    "overtaking in a tight pool": SpyreConfig(
        queue=Queue.OVERTAKING, num_blocks=900, max_batch_tkv_limit=40_000
    ),
    "preemption": SpyreConfig(reservation=False, num_blocks=600),
    "documented": SpyreConfig(admission=Admission.DOCUMENTED),
}


@pytest.mark.thorough
@pytest.mark.parametrize("config", REAL_SIZES.values(), ids=REAL_SIZES)
def test_real_sizes_are_served_as_by_the_reference(config: SpyreConfig) -> None:
    case = Case(config, tuple(generated(300)))

    steps = 0
    for expected, found in zip(served(case), served_by(engine_under_test(case), case), strict=True):
        assert found == expected
        steps += 1
    assert steps > 3_800


# --- random cases -------------------------------------------------------------------------------


def episodes(count: int, seed: int) -> Iterator[Episode]:
    """What becomes of so many random cases."""
    source = Own("spyre", ENGINE)
    plan = Plan(source, seed)
    return (compare(source.open(), plan.case(index), plan.terms) for index in range(count))


def findings(found: Iterable[Episode]) -> list[Finding]:
    return [episode.finding for episode in found if episode.finding is not None]


def test_random_cases_are_served_as_by_the_reference() -> None:
    found = list(episodes(80, seed=4))

    assert findings(found) == []
    happened = sum((Counter(episode.counts) for episode in found), Counter[str]())
    for what in ("prefix_hit", "eviction", "preempt", "pause", "resume", "jump_tkv", "early end"):
        assert happened[what], what


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_many_random_cases_are_served_as_by_the_reference(seed: int) -> None:
    assert findings(episodes(1_000, seed=1_000 + seed)) == []


def test_a_lookup_that_is_trusted_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other faults of the engine are those of `engine_faults`."""
    never = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(PrefixHit, "is_stale", never)

    found = (one for episode in episodes(60, seed=2) for one in findings([episode]))

    assert Kind.CRASH in (one.kind for one in found)


# --- the engine as a scheduler ------------------------------------------------------------------


def two(max_model_len: int = 512) -> EngineScheduler[Engine, Step]:
    """The engine, to which `a` has arrived and `b` has not."""
    requests = request("a", 3, 4), request("b", 3, 4)
    scheduler = engine_under_test(Case(SpyreConfig(max_model_len=max_model_len), requests))
    scheduler.arrive("a")
    return scheduler


def test_request_that_can_never_be_served_is_refused() -> None:
    with pytest.raises(WorkloadError, match="prompt_len"):
        two(max_model_len=6)


def test_step_has_the_request_whose_client_left_before_it() -> None:
    scheduler = two()
    scheduler.arrive("b")
    scheduler.abort("b")
    scheduler.abort("b")

    assert scheduler.step(0, Action()).aborted == ("b",)
    assert scheduler.step(1, Action(time=8.0)).aborted == ()


def test_step_has_the_requests_that_were_made_to_end() -> None:
    assert two().step(0, Action(ends=("a", "b"))).ended == ("a",)


def test_device_does_not_fail() -> None:
    config = SpyreConfig()
    device = FailingDevice(SpyreDevice(config), {0: Failure.RESULT_LOST})
    scheduler = on_device(device, Case(config, (request("a", 3, 4),)))
    scheduler.arrive("a")

    with pytest.raises(RuntimeError, match=r"^the device failed: result lost$"):
        scheduler.step(0, Action())


@pytest.mark.parametrize(
    "pinned",
    [
        {"reservation": False, "max_num_seqs": 4, "block_size": 2},
        {"queue": "overtaking", "reservation": False, "block_size": 2},
        {"queue": "overtaking", "reservation": True, "prefix_caching": True},
        {"queue": "overtaking", "pausing": True},
    ],
    ids=str,
)
def test_engine_is_the_reference_where_switches_meet(pinned: dict[str, Any]) -> None:
    plan = Plan(Own("spyre", ENGINE), pinned=pinned)

    for episode in range(50):
        case, terms = plan.case(episode), plan.terms_of(episode)
        assert compare(own_system(plan.system), case, terms).finding is None
