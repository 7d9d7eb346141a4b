"""The engine on a device: what a step yields, and devices that fail in every phase."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from checks.harness.failing import FailingDevice
from engine.core.faults import ConstraintError, Failure
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput, SpyreDevice
from engine.spyre.observing import Observer
from engine.spyre.scheduler import DecodePlan, PrefillPlan
from engine.spyre.serving import Engine, StepResult
from reference.core.block_pool import empty_pool
from spec.core.errors import WorkloadError
from spec.spyre.config import SpyreConfig
from spec.spyre.state import State
from tests.engine.device.runs import Run, alone
from tests.engine.scenes import config, sharing
from tests.requests import request


def run_of(settings: SpyreConfig, fails: Mapping[int, Failure] | None = None) -> Run:
    """A run on a device that fails in these steps."""

    def all_wait(before: State, after: State) -> None:
        """Those that were admitted stand in front, nothing is held, nothing found in the cache."""
        ongoing = () if before.prefilling is None else (before.prefilling,)
        admitted = [row.id for row in (*before.paused, *reversed(before.decoding), *ongoing)]
        waiting = [row.id for row in before.waiting]
        assert [row.id for row in after.waiting] == admitted + waiting
        assert not after.admitted
        size = settings.pool_blocks
        assert after.pool == empty_pool(after.pool.free)
        assert after.pool.size == size
        assert sorted(after.pool.free) == list(range(1, size + 1))

    return Run(
        Engine(settings, FailingDevice(SpyreDevice(settings), fails or {})),
        lambda scheduler: Observer(scheduler).state(),
        lambda: SpyreDevice(settings),
        all_wait,
    )


REQUESTS = [sharing(name, 9, 4 * index, 9) for index, name in enumerate("abcd")]
REQUESTS.append(request("e", 21, 12, output_len=5))
SETTINGS: dict[str, dict[str, Any]] = {
    "reserved": {},
    "preempting": {"reservation": False, "num_blocks": 9, "max_num_seqs": 3},
    "pausing": {"pausing": True, "max_batch_tkv_limit": 44},
}


# --- without failures ---------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_request_gets_the_tokens_of_being_served_alone(setting: str) -> None:
    run = run_of(config(**SETTINGS[setting])).serve(REQUESTS)

    assert run.tokens == {one.id: alone(one) for one in REQUESTS}
    assert {name for result in run.results for name in result.finished} == set("abcde")


def test_step_yields_tokens_and_statistics() -> None:
    engine = Engine(config(), SpyreDevice(config()))
    for one in (request("a", 10, 3), request("b", 3, 2)):
        engine.add(one)

    seen = [engine.step() for _ in range(3)]

    token = request("a", 10, 3).output_token
    assert [result.tokens for result in seen] == [{}, {"a": token(0)}, {"a": token(1)}]
    statistics = seen[1].statistics
    assert (statistics.waiting, statistics.prefilling, statistics.decoding) == (1, 0, 1)
    assert (statistics.paused, statistics.free_blocks, statistics.reserved_blocks) == (0, 37, 1)


def test_request_that_cannot_be_served_is_refused_at_once() -> None:
    with pytest.raises(WorkloadError):
        Engine(config(), SpyreDevice(config())).add(request("a", 64, 1))


def test_client_may_go_away_while_its_request_decodes() -> None:
    engine = Engine(config(), SpyreDevice(config()))
    engine.add(request("a", 3, 9))
    engine.step()

    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_requests
    assert engine.step().statistics.free_blocks == 40


# --- with failures ------------------------------------------------------------------------------


def phases(results: Iterable[StepResult]) -> dict[str, int]:
    """The first step, by number, that is of each kind worth failing in."""
    found: dict[str, int] = {}
    for index, result in enumerate(results):
        match result.plan:
            case PrefillPlan(is_new=is_new, chunk=chunk, hit_blocks=hits):
                found.setdefault("admission", index)
                found.setdefault("last chunk" if chunk.is_last else "other chunk", index)
                found.setdefault("hit" if is_new and hits else "no hit", index)
            case DecodePlan(
                preempted=preempted, newly_paused=newly_paused, resumed=resumed, growing=growing
            ):
                found.setdefault("decode", index)
                for name, happened in (
                    ("preemption", preempted),
                    ("pause", newly_paused),
                    ("resume", resumed),
                    ("new block", growing),
                    ("end", result.finished),
                ):
                    if happened:
                        found.setdefault(name, index)
    return found


PHASES = {
    "reserved": ("admission", "other chunk", "last chunk", "hit", "decode", "new block", "end"),
    "preempting": ("admission", "last chunk", "decode", "preemption", "end"),
    "pausing": ("hit", "decode", "pause", "resume", "new block", "end"),
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
    assert run.results[-1].statistics.reserved_blocks == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_device_that_fails_again_and_again(setting: str) -> None:
    kinds = list(Failure)
    fails = {step: kinds[step // 5 % 2] for step in range(0, 200, 5)} | {23: Failure.STOPPED}

    run = run_of(config(**SETTINGS[setting]), fails).serve(REQUESTS)

    assert run.tokens == {one.id: alone(one) for one in REQUESTS}
    assert {result.failure for result in run.results} == {None, *Failure}


@pytest.mark.parametrize("failure", Failure)
def test_client_goes_away_after_a_failed_step(failure: Failure) -> None:
    settings = config()
    engine = Engine(settings, FailingDevice(SpyreDevice(settings), {3: failure}))
    for one in REQUESTS:
        engine.add(one)
    results = [engine.step() for _ in range(4)]
    assert results[-1].failure is failure

    engine.abort("a")
    if failure is Failure.STOPPED:
        engine.replace_device(SpyreDevice(settings))
    while engine.has_requests:
        results.append(engine.step())

    for one in REQUESTS[1:]:
        tokens = [result.tokens[one.id] for result in results if one.id in result.tokens]
        assert tokens == alone(one)
    assert results[-1].statistics.free_blocks == settings.pool_blocks


class Refusing:
    """A device to which nothing is right."""

    def prefill(self, given: PrefillInput) -> Tensor:
        SpyreDevice(config(block_size=8)).prefill(given)
        return np.zeros(1, np.int64)

    def decode(self, given: DecodeInput) -> Tensor:
        raise NotImplementedError


def test_refused_step_changes_nothing() -> None:
    engine = Engine(config(), Refusing())
    engine.add(request("a", 10, 3))
    before = Observer(engine.scheduler).state()

    with pytest.raises(ConstraintError):
        engine.step()

    assert Observer(engine.scheduler).state() == before
