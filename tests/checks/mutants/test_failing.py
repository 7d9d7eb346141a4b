"""Failing devices lose no request; as trials of mutants they notice faults of recovery."""

from collections.abc import Iterator
from typing import Any

import pytest

from checks.explore.policy import machine_of
from checks.harness.case import Case
from checks.harness.runs.endless import EndlessError
from checks.harness.runs.serving import served, served_by
from checks.harness.system import Action
from checks.mutants.failing import FailingDevice, LostError, Recovery
from checks.mutants.serving import (
    ENDLESS,
    LOST,
    REFUSED,
    WRONG_TOKEN,
    Crowd,
    Failing,
    first_error,
)
from checks.policies.vllm_v1.engine import engine_under_test, new_device
from engine.core.faults import Failure
from engine.nano_vllm import apply as nano_vllm
from engine.spyre.scheduler import apply as spyre
from engine.vllm_v1 import apply as vllm_v1
from spec.vllm_v1.config import VllmV1Config
from tests.requests import request

ENGINES = ("spyre", "nano-vllm", "vllm-v1")
CASE = Case(
    VllmV1Config(block_size=4, num_blocks=40, max_num_seqs=2, max_model_len=64),
    tuple(request(name, 9, 6) for name in "abc"),
)


def recovering(fails: dict[int, Failure]) -> tuple[Any, Recovery]:
    """An engine on a device that fails in these steps, and the log of its recovery."""
    device = FailingDevice(new_device(CASE.config), fails)
    scheduler = engine_under_test(CASE, lambda _: device)
    return scheduler, Recovery(scheduler, device)


def test_a_run_on_a_device_that_fails_is_that_of_one_that_does_not() -> None:
    undisturbed = [*served_by(engine_under_test(CASE), CASE)]
    scheduler, recovery = recovering({1: Failure.STEP_FAILED, 4: Failure.RESULT_LOST})

    assert [*served_by(scheduler, CASE)] == undisturbed
    assert recovery.restarts == 0


def test_a_run_goes_on_with_another_device_and_nothing_is_lost() -> None:
    scheduler, recovery = recovering({3: Failure.STOPPED, 7: Failure.STOPPED})

    assert first_error(CASE, served_by(scheduler, CASE), recovery) is None
    assert recovery.restarts == 2


@pytest.mark.parametrize("policy", ENGINES)
def test_cases_on_devices_that_fail_and_crowds_are_served_right(policy: str) -> None:
    verdicts = [Failing(policy, episode).verdict() for episode in range(12)]

    assert verdicts.count("clean") >= 2
    assert {*verdicts} <= {"clean", None}
    assert {Crowd(policy, 0).verdict()} == {"clean"}


def losing(restart: Any) -> Any:
    """A restart that loses one of the requests that wait."""

    def restarted(state: Any) -> None:
        restart(state)
        for waiting in [*state.queue][:1]:
            state.queue.remove(waiting)

    return restarted


@pytest.mark.parametrize(
    ("policy", "module"), [("spyre", spyre), ("nano-vllm", nano_vllm), ("vllm-v1", vllm_v1)]
)
def test_a_restart_that_forgets_to_is_noticed(
    policy: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = module.restart

    def noticed(restart: Any) -> set[str | None]:
        monkeypatch.setattr(module, "restart", restart)
        found = {Failing(policy, episode).killer("clean") for episode in usable}
        return found - {None}

    usable = [number for number in range(16) if Failing(policy, number).verdict() == "clean"]

    assert noticed(right) == set()
    assert LOST in noticed(lambda _state: None)
    assert LOST in noticed(losing(right))


def test_a_failed_step_that_leaves_a_trace_is_noticed() -> None:
    scheduler, _ = recovering({0: Failure.STEP_FAILED})
    for client in CASE.requests:
        scheduler.arrive(client.id)
    taken = scheduler.engine.step

    def careless(*given: Any) -> Any:
        result = taken(*given)
        if result.failure is not None:
            scheduler.engine.scheduler.abort("c")
        return result

    scheduler.engine.step = careless

    with pytest.raises(LostError, match="changed the state"):
        scheduler.step(0, Action())


def test_a_wrong_token_and_a_refused_step_are_noticed_in_a_run() -> None:
    steps = [*served_by(engine_under_test(CASE), CASE)]
    other = Case(CASE.config, tuple(request(name, 9, 7) for name in "abc"))

    assert first_error(CASE, iter(steps)) is None
    assert first_error(other, iter(steps[:0])) == WRONG_TOKEN
    small = engine_under_test(CASE, lambda _: new_device(VllmV1Config(block_size=4, num_blocks=2)))
    assert (first_error(CASE, served_by(small, CASE)) or "").startswith(REFUSED)


def test_a_run_that_repeats_for_ever_is_an_error_unless_it_is_known_to() -> None:
    def repeating() -> Iterator[Any]:
        raise EndlessError(0, 1, [])
        yield

    (found,) = (it for it in machine_of("nano-vllm").instances if it.name == "oversized")
    oversized = Case(found.config, found.requests)

    assert first_error(CASE, repeating()) == ENDLESS
    assert first_error(oversized, served(oversized)) is None
