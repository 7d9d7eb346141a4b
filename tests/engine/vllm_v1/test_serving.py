"""vLLM V1's engine on a device: what a step yields, and devices that fail in every phase."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from checks.harness.failing import FailingDevice
from checks.policies.vllm_v1.engine import Foreseen, connector_of
from engine.core.faults import ConstraintError, Failure
from engine.core.scheduler import StalePlanError
from engine.paged.device import PagedDevice
from engine.vllm_v1.model_input import paged_shape
from engine.vllm_v1.observing import Observer
from engine.vllm_v1.plan import Admission, LoadStart
from engine.vllm_v1.serving import Engine, StepResult
from reference.core.block_pool import empty_pool
from spec.core.errors import WorkloadError
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import State
from tests.engine.device.runs import Run, alone
from tests.engine.scenes import sharing
from tests.requests import request


def config(**overrides: Any) -> VllmV1Config:
    """Blocks of 4, three requests, room for everything else."""
    small = {"block_size": 4, "max_num_seqs": 3, "max_model_len": 64, "num_blocks": 40}
    return VllmV1Config(**(small | {"max_num_batched_tokens": 16} | overrides))


def device(settings: VllmV1Config) -> PagedDevice:
    return PagedDevice(paged_shape(settings))


REQUESTS = [sharing(name, 9, 4 * index, 9) for index, name in enumerate("abcd")]
REQUESTS.append(request("e", 21, 12, output_len=5))
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "preempting": {"num_blocks": 8, "reserve_full_prompt": False},
    "by priority": {"num_blocks": 9, "scheduling": "priority", "prefix_caching": False},
    "drafting": {"num_speculative_tokens": 3, "accepted_drafts": 2},
}


def run_of(settings: VllmV1Config, fails: Mapping[int, Failure] | None = None) -> Run:
    """A run on a device that fails in these steps."""

    def all_wait(before: State, after: State) -> None:
        """Those that ran stand in front, nothing is held, nothing found in the cache."""
        waiting = [row.id for row in (*before.running, *before.waiting)]
        assert {row.id for row in after.waiting} == {*waiting}
        if settings.scheduling == "fcfs":
            assert [row.id for row in after.waiting] == waiting
        assert after.running == ()
        assert after.pool == empty_pool(after.pool.free)
        assert after.pool.size == settings.pool_blocks
        assert sorted(after.pool.free) == list(range(1, settings.pool_blocks + 1))

    failing = FailingDevice(device(settings), fails or {})
    return Run(
        Engine(settings, failing, Foreseen(settings)),
        lambda scheduler: Observer(scheduler).state(),
        lambda: device(settings),
        all_wait,
    )


# --- without failures ---------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_request_gets_the_tokens_of_being_served_alone(setting: str) -> None:
    run = run_of(config(**SETTINGS[setting])).serve(REQUESTS)

    assert run.tokens == {one.id: alone(one) for one in REQUESTS}
    assert {name for result in run.results for name in result.finished} == set("abcde")


def test_drafts_that_the_device_samples_itself_are_accepted() -> None:
    settings = config(**SETTINGS["drafting"])
    engine = Engine(settings, device(settings), Foreseen(settings))
    engine.add(request("a", 5, 9))

    results = [engine.step() for _ in range(3)]

    assert [len(result.outputs["a"]) for result in results] == [1, 3, 3]
    assert [result.outcome and result.outcome.accepted for result in results] == [
        {},
        {"a": 2},
        {"a": 2},
    ]


def test_without_a_drafter_a_draft_is_accepted_only_by_chance() -> None:
    settings = config(num_speculative_tokens=3)
    engine = Engine(settings, device(settings))
    engine.add(request("a", 5, 9))

    assert [len(engine.step().outputs["a"]) for _ in range(4)] == [1, 1, 1, 1]


def test_step_yields_tokens_and_statistics() -> None:
    engine = Engine(config(), device(config()))
    for one in (request("a", 10, 3), request("b", 3, 2), *(request(name, 3, 2) for name in "cd")):
        engine.add(one)

    result = engine.step()

    assert result.tokens == {
        name: request(name, 10 if name == "a" else 3, 3).output_token(0) for name in "abc"
    }
    statistics = result.statistics
    assert (statistics.waiting, statistics.running, statistics.free_blocks) == (1, 3, 35)


def test_request_that_cannot_be_served_is_refused_at_once() -> None:
    engine = Engine(config(), device(config()))

    with pytest.raises(WorkloadError):
        engine.add(request("a", 64, 1))

    assert not engine.has_requests


def test_client_may_go_away_while_its_request_decodes() -> None:
    engine = Engine(config(), device(config()))
    engine.add(request("a", 3, 9))
    plan = engine.scheduler.schedule()
    assert engine.abort("a")

    with pytest.raises(StalePlanError):
        engine.scheduler.update(plan)
    assert not engine.abort("a")
    assert not engine.has_requests
    assert engine.step().statistics.free_blocks == 40


def test_clients_that_leave_while_the_model_runs_get_nothing_of_the_step() -> None:
    engine = Engine(config(), device(config()))
    for name in "ab":
        engine.add(request(name, 3, 9))
    engine.step()

    result = engine.step(leavers=("a",))

    assert result.outputs.keys() == {"b"}
    assert result.statistics.free_blocks == 39


# --- with a connector ---------------------------------------------------------------------------


def connected(**overrides: Any) -> Engine:
    """An engine whose connector brings what another instance has computed."""
    settings = config(**overrides)
    paged = device(settings)
    return Engine(settings, paged, connector=connector_of(paged, settings.block_size))


def test_external_tokens_that_come_within_the_step_are_read() -> None:
    engine, one = connected(connector="sync"), request("a", 14, 3)
    engine.add(one, external=12)

    first = engine.step()

    assert [turn.computed for turn in first.plan.turns] == [12]
    assert first.outputs == {"a": [one.output_token(0)]}
    assert engine.step().outputs == {"a": [one.output_token(1)]}


def test_external_tokens_that_are_lost_within_the_step_are_computed_in_the_next() -> None:
    engine, one = connected(connector="sync"), request("a", 14, 3)
    engine.add(one, external=12)

    first = engine.step(lost=("a",))

    assert first.outcome is not None
    assert (first.outputs, first.outcome.undone) == ({}, {"a": (14, 0)})
    assert engine.step().outputs == {"a": [one.output_token(0)]}


@pytest.mark.parametrize("failed", [False, True])
def test_external_tokens_that_come_between_steps_are_read_or_computed(failed: bool) -> None:
    engine, one = connected(connector="async"), request("a", 14, 3)
    engine.add(one, external=12)

    first = engine.step()
    assert [type(move) for move in first.plan.moves] == [LoadStart]
    assert engine.step().outputs == {}
    assert engine.end_load("a", failed)
    assert not engine.end_load("a", failed)
    last = engine.step()

    (turn,) = last.plan.turns
    assert (turn.computed, turn.new) == ((0, 14) if failed else (12, 2))
    assert last.outputs == {"a": [one.output_token(0)]}


def test_blocks_are_kept_while_a_load_writes_to_them() -> None:
    engine = connected(connector="async")
    engine.add(request("a", 14, 3), external=12)
    engine.step()
    assert engine.abort("a")

    assert engine.step().statistics.free_blocks == 37
    assert engine.end_load("a")
    assert engine.step().statistics.free_blocks == 40


def test_loads_end_with_the_device_that_they_wrote_to() -> None:
    engine = connected(connector="async")
    for name in "ab":
        engine.add(request(name, 14, 3), external=12)
    engine.step()
    assert engine.abort("a")

    engine.replace_device(device(config()))

    assert not engine.end_load("b")
    state = Observer(engine.scheduler).state()
    assert ([row.id for row in state.waiting], state.draining) == (["b"], ())
    assert len(state.pool.free) == 40


# --- with failures ------------------------------------------------------------------------------


def phases(results: Iterable[StepResult]) -> dict[str, int]:
    """The first step, by number, that is of each kind worth failing in."""
    found: dict[str, int] = {}
    for index, result in enumerate(results):
        plan = result.plan
        admissions = [one for one in plan.turns if isinstance(one, Admission)]
        kinds = {
            "end": bool(result.finished),
            "admission": bool(admissions),
            "hit": any(one.hits for one in admissions),
            "decode": plan.batch is not None,
            "new block": bool(plan.grown),
            "chunk": any(not one.samples for one in plan.turns),
            "preemption": bool(plan.preempted),
            "drafts": any(one.drafts for one in plan.turns),
        }
        for name, is_there in kinds.items():
            if is_there:
                found.setdefault(name, index)
    return found


PHASES = {
    "roomy": ("admission", "hit", "chunk", "decode", "new block", "end"),
    "preempting": ("admission", "decode", "preemption", "end"),
    "by priority": ("decode", "preemption"),
    "drafting": ("admission", "drafts", "end"),
}
CASES = [(setting, phase) for setting, names in PHASES.items() for phase in names]


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize(("setting", "phase"), CASES)
def test_failed_step_loses_nothing(setting: str, phase: str, failure: Failure) -> None:
    settings = config(**SETTINGS[setting])
    undisturbed = run_of(settings).serve(REQUESTS)
    at = phases(undisturbed.results)[phase]

    run = run_of(settings, {at: failure}).serve(REQUESTS)

    assert [result.failure for result in run.results].count(failure) == 1
    assert run.tokens == undisturbed.tokens
    if failure is not Failure.STOPPED:
        assert run.states == undisturbed.states
    last = run.states[-1]
    assert last.finished == set("abcde")
    assert sorted(last.pool.free) == list(range(1, settings.pool_blocks + 1))
    assert (last.pool.references, last.is_idle) == ({}, True)


@pytest.mark.parametrize("setting", SETTINGS)
def test_device_that_fails_again_and_again(setting: str) -> None:
    kinds = list(Failure)
    fails = {step: kinds[step // 5 % 2] for step in range(0, 200, 5)} | {8: Failure.STOPPED}

    run = run_of(config(**SETTINGS[setting]), fails).serve(REQUESTS)

    assert run.tokens == {one.id: alone(one) for one in REQUESTS}
    assert {result.failure for result in run.results} == {None, *Failure}


def test_refused_step_changes_nothing() -> None:
    engine = Engine(config(), device(config(max_num_seqs=1)))
    for name in "ab":
        engine.add(request(name, 5, 3))
    before = Observer(engine.scheduler).state()

    with pytest.raises(ConstraintError):
        engine.step()

    assert Observer(engine.scheduler).state() == before
