"""The engine, observed on the simulated device, takes the steps of the reference."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.fuzz.cases import case_of
from checks.fuzz.finding import Episode, Finding, Kind
from checks.fuzz.lockstep import run_case
from checks.fuzz.target import Subject
from checks.harness.running import duration_of, serve_with
from checks.harness.targets import EngineTarget, engine_target, reference_target

from benchmarks.measure import generated
from checks.cli.configuration import read_settings
from engine.core.faults import Failure
from engine.spyre.blocks import BlockManager, PrefixHit
from engine.spyre.device import SpyreDevice
from engine.spyre.scheduler import prefill
from engine.spyre.scheduler.requests import Batch
from engine.spyre.scheduler.state import SchedulerState
from engine.workloads import read_workload
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.records import Step
from spec.spyre.variants import Admission, Queue
from tests.engine.device.failing import FailingDevice
from tests.engine.workload_files import fit

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ENGINE = Subject("engine", engine_target)


# --- workloads ----------------------------------------------------------------------------------


def both(config: SpyreConfig, requests: Sequence[Request]) -> tuple[list[Step], list[Step]]:
    """The steps of the reference and of the engine."""
    targets = (reference_target(config, requests), engine_target(config, requests))
    duration = duration_of(config)
    expected, found = (list(serve_with(target, duration, requests)) for target in targets)
    return expected, found


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
    requests, _ = fit(read_workload(name), config)

    expected, found = both(config, requests)

    assert found == expected
    assert len(found) == steps


@pytest.mark.parametrize("workload", ["first.jsonl", "shared_prefix.jsonl"])
def test_the_engine_without_a_device_takes_the_same_steps(workload: str) -> None:
    config: Any = read_settings(EXAMPLES / "first.toml").config
    requests, _ = fit(read_workload(EXAMPLES / workload), config)
    targets = (
        EngineTarget.without_device(config, requests),
        EngineTarget.on(SpyreDevice(config), config, requests),
    )

    steps, expected = (
        list(serve_with(target, duration_of(config), requests)) for target in targets
    )

    assert steps == expected
    assert len(steps) > 50


REAL_SIZES = {
    "default": SpyreConfig(),
    "2.6.3": released_2_6_3(),
    "2.6.3 without pausing": released_2_6_3(pausing=False),
    "overtaking in a tight pool": SpyreConfig(
        queue=Queue.OVERTAKING, num_blocks=900, max_batch_tkv_limit=40_000
    ),
    "preemption": SpyreConfig(reservation=False, num_blocks=600),
    "documented": SpyreConfig(admission=Admission.DOCUMENTED),
}


@pytest.mark.thorough
@pytest.mark.parametrize("config", REAL_SIZES.values(), ids=REAL_SIZES)
def test_real_sizes_are_served_as_by_the_reference(config: SpyreConfig) -> None:
    requests = generated(300)
    targets = (reference_target(config, requests), engine_target(config, requests))

    steps = 0
    for expected, found in zip(
        *(serve_with(target, duration_of(config), requests) for target in targets), strict=True
    ):
        assert found == expected
        steps += 1
    assert steps > 3_800


# --- random cases -------------------------------------------------------------------------------


def episodes(count: int, seed: int) -> Iterator[Episode]:
    """What becomes of so many random cases."""
    return (run_case(ENGINE, case_of(seed, index)) for index in range(count))


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


# --- faults are noticed -------------------------------------------------------------------------


def release_head_first(patch: pytest.MonkeyPatch) -> None:
    release = BlockManager.release
    patch.setattr(BlockManager, "release", lambda pool, table: release(pool, table[::-1]))


def forget_evictions(patch: pytest.MonkeyPatch) -> None:
    def kept(blocks: BlockManager, block: int, key: bytes | None) -> None:
        blocks.keys[block] = None

    patch.setattr(BlockManager, "_evict", kept)


def join_behind(patch: pytest.MonkeyPatch) -> None:
    with_front = Batch.with_front

    def behind(batch: Batch, newcomer: Any) -> Batch:
        joined = with_front(batch, newcomer)
        return joined.of_rows([*range(1, len(joined)), 0])

    patch.setattr(Batch, "with_front", behind)


def keep_tkv_in_a_new_batch(patch: pytest.MonkeyPatch) -> None:
    without = Batch.without

    def stale(batch: Batch, rows: Sequence[int]) -> Batch:
        left = without(batch, rows)
        left.tkv = batch.tkv
        return left

    patch.setattr(Batch, "without", stale)


def trust_old_lookups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixHit, "is_stale", property(lambda _: False, lambda *_: None))


def promise_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefill, "promised_blocks", lambda *_, **__: 0)


def confuse_prefixes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchedulerState, "tokens_of", lambda *args: np.zeros(args[3] - args[2], np.int64))


FAULTS = {
    release_head_first: Kind.DIVERGENCE,
    forget_evictions: Kind.DIVERGENCE,
    join_behind: Kind.DIVERGENCE,
    keep_tkv_in_a_new_batch: Kind.DIVERGENCE,
    trust_old_lookups: Kind.CRASH,
    promise_nothing: Kind.DIVERGENCE,
    confuse_prefixes: Kind.DIVERGENCE,
}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.items(), ids=[one.__name__ for one in FAULTS])
def test_planted_fault_is_noticed(fault: Any, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)

    kinds = (finding.kind for episode in episodes(60, seed=9) for finding in findings([episode]))

    assert kind in kinds


# --- the target itself --------------------------------------------------------------------------


def two(config: SpyreConfig) -> EngineTarget:
    requests = [Request(id=name, prompt=Prompt.of_stream(name, 3), max_tokens=4) for name in "ab"]
    return engine_target(config, requests)


def test_request_that_can_never_be_served_is_refused() -> None:
    with pytest.raises(WorkloadError, match="prompt_len"):
        two(SpyreConfig(max_model_len=6))


def test_step_tells_who_went_away() -> None:
    target = two(SpyreConfig())
    target.arrive("a")
    target.arrive("b")
    target.abort("b")
    target.abort("b")

    assert target.step(0, 0.0).aborted == ("b",)
    assert target.step(1, 8.0).aborted == ()


def test_step_tells_who_was_made_to_end() -> None:
    target = two(SpyreConfig())
    target.arrive("a")

    assert target.step(0, 0.0, ends=["a", "b"]).ended == ("a",)


def test_device_of_a_target_does_not_fail() -> None:
    config = SpyreConfig()
    device = FailingDevice(SpyreDevice(config), {0: Failure.RESULT_LOST})
    one = Request(id="a", prompt=Prompt.of_stream("a", 3), max_tokens=4)
    target = EngineTarget.on(device, config, [one])
    target.arrive("a")

    with pytest.raises(RuntimeError, match=r"^the device of a target failed: result lost$"):
        target.step(0, 0.0)
