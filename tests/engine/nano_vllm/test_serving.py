"""nano-vLLM's engine on a device: what a step yields, and devices that fail in every phase."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from checks.harness.failing import FailingDevice
from engine.core.faults import ConstraintError, Failure
from engine.core.scheduler import StalePlanError
from engine.nano_vllm.model_input import paged_shape
from engine.nano_vllm.observing import Observer
from engine.nano_vllm.plan import PrefillPlan
from engine.nano_vllm.serving import Engine, StepResult
from engine.paged.device import PagedDevice
from reference.core.block_pool import empty_pool
from spec.core.errors import WorkloadError
from spec.nano_vllm.config import NanoVllmConfig, Oversized, repaired
from spec.nano_vllm.records import State
from tests.engine.device.runs import Run, alone
from tests.engine.scenes import sharing
from tests.requests import request


def config(**overrides: Any) -> NanoVllmConfig:
    """Blocks of 4, three sequences, room for everything else."""
    small = {"block_size": 4, "max_num_seqs": 3, "max_model_len": 64, "num_blocks": 40}
    return repaired(**(small | {"max_num_batched_tokens": 64} | overrides))


def device(settings: NanoVllmConfig) -> PagedDevice:
    return PagedDevice(paged_shape(settings))


REQUESTS = [sharing(name, 9, 4 * index, 9) for index, name in enumerate("abcd")]
REQUESTS.append(request("e", 21, 12, output_len=5))
SETTINGS: dict[str, dict[str, Any]] = {"roomy": {}, "preempting": {"num_blocks": 8}}


def run_of(settings: NanoVllmConfig, fails: Mapping[int, Failure] | None = None) -> Run:
    """A run on a device that fails in these steps."""

    def all_wait(before: State, after: State) -> None:
        """Those that ran stand in front, nothing is held, nothing found in the cache."""
        waiting = [row.id for row in (*before.running, *before.waiting)]
        assert [row.id for row in after.waiting] == waiting
        assert after.running == ()
        assert after.pool == empty_pool(after.pool.free)
        assert after.pool.size == settings.pool_blocks
        assert sorted(after.pool.free) == list(range(settings.pool_blocks))

    return Run(
        Engine(settings, FailingDevice(device(settings), fails or {})),
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


def test_request_that_cannot_be_served_is_refused_at_once_or_waits() -> None:
    with pytest.raises(WorkloadError):
        Engine(config(), device(config())).add(request("a", 64, 1))

    queued = config(oversized=Oversized.QUEUED, num_blocks=2)
    engine = Engine(queued, device(queued))
    engine.add(request("a", 30, 1))

    assert engine.step().tokens == {}
    assert engine.has_requests


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


# --- with failures ------------------------------------------------------------------------------


def phases(results: Iterable[StepResult]) -> dict[str, int]:
    """The first step, by number, that is of each kind worth failing in."""
    found: dict[str, int] = {}
    for index, result in enumerate(results):
        plan = result.plan
        kinds = {"end": bool(result.finished)}
        if isinstance(plan, PrefillPlan):
            kinds |= {"prefill": True, "hit": any(one.hits for one in plan.admissions)}
        else:
            blocks = [block for _, block in plan.moves]
            kinds |= {"decode": True, "new block": bool(blocks), "preemption": None in blocks}
        for name, is_there in kinds.items():
            if is_there:
                found.setdefault(name, index)
    return found


PHASES = {
    "roomy": ("prefill", "hit", "decode", "new block", "end"),
    "preempting": ("prefill", "decode", "preemption", "end"),
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
    assert sorted(last.pool.free) == list(range(settings.pool_blocks))
    assert (last.pool.references, last.is_idle) == ({}, True)


@pytest.mark.parametrize("setting", SETTINGS)
def test_device_that_fails_again_and_again(setting: str) -> None:
    kinds = list(Failure)
    fails = {step: kinds[step // 5 % 2] for step in range(0, 200, 5)} | {13: Failure.STOPPED}

    run = run_of(config(**SETTINGS[setting]), fails).serve(REQUESTS)

    assert run.tokens == {one.id: alone(one) for one in REQUESTS}
    assert {result.failure for result in run.results} == {None, *Failure}


def test_refused_step_changes_nothing() -> None:
    engine = Engine(config(), device(config(max_num_seqs=1, max_num_batched_tokens=64)))
    for name in "ab":
        engine.add(request(name, 10, 3))
    before = Observer(engine.scheduler).state()

    with pytest.raises(ConstraintError):
        engine.step()

    assert Observer(engine.scheduler).state() == before
