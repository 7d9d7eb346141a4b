"""Common properties of the machines of all policies."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from spec.core.errors import WorkloadError
from spec.vllm_v1.config import Connector
from tests.reference.nano_vllm import scenes as nano_vllm
from tests.reference.scenes import arrived
from tests.reference.spyre import scenes as spyre
from tests.reference.vllm_v1 import scenes as vllm_v1
from tests.requests import request

MACHINES: dict[str, Callable[..., Any]] = {
    "spyre": spyre.machine,
    "nano-vllm": nano_vllm.machine,
    "vllm-v1": vllm_v1.machine,
}

each_machine = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


@each_machine
def test_request_that_could_never_be_served_is_refused_when_the_machine_is_made(
    machine: Callable[..., Any],
) -> None:
    with pytest.raises(WorkloadError, match=r"found 65; allowed: at most max_model_len \(64\)"):
        machine(request("a", 3), request("b", 60, 5))


@each_machine
def test_step_notes_its_number_and_its_time_and_changes_no_state(
    machine: Callable[..., Any],
) -> None:
    scene = machine(request("a", 3), request("b", 9))
    state = arrived(scene)
    before = pickle.dumps(state)

    step = scene.step(state, index=7, time=2.5)

    assert (step.index, step.time) == (7, 2.5)
    assert evolve(step, index=0, time=0.0) == scene.step(state)
    assert (pickle.dumps(state), step.before is state) == (before, True)


@each_machine
def test_client_that_goes_away_while_the_model_runs_is_one_that_goes_away_between_steps(
    machine: Callable[..., Any],
) -> None:
    scene = machine(request("a", 6), request("b", 3))
    running = scene.step(arrived(scene)).after

    assert scene.abort_running(running, "a") == scene.abort(running, "a") != running


def test_what_a_connector_of_vllm_v1_brings_is_there_unless_it_is_lost() -> None:
    scene = vllm_v1.machine(request("a", 8), external={"a": 4}, connector=Connector.SYNC)

    step = scene.step(arrived(scene))

    assert (step.scheduled, step.failed_loads) == ({"a": 4}, ())
