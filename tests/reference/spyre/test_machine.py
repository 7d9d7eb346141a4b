"""The machine as a whole by example; on random workloads it runs in `test_random_runs`."""

import pickle

import pytest
from attrs import evolve

from spec.core.errors import WorkloadError
from spec.spyre.variants import Admission
from tests.reference.scenes import arrived, steps_to_the_end
from tests.reference.spyre.scenes import batch, machine
from tests.requests import request


def test_at_first_no_request_is_there_and_every_block_is_free() -> None:
    state = machine(request("a", 3), num_blocks=5).initial()

    assert state.is_idle
    assert state.pool.free == (1, 2, 3, 4, 5)
    assert state.last_kind == "idle"


def test_request_that_could_never_be_served_is_refused_when_the_machine_is_made() -> None:
    with pytest.raises(WorkloadError, match="found 65; allowed: at most max_model_len \\(64\\)"):
        machine(request("a", 3), request("b", 60, 5))


def test_request_alone_takes_a_step_a_chunk_and_a_step_a_token() -> None:
    scene = machine(request("a", 20, 5))

    steps = steps_to_the_end(scene, arrived(scene))

    assert [step.kind for step in steps] == ["prefill"] * 3 + ["decode"] * 4
    assert [step.tkv for step in steps] == [20, 20, 20, 21, 22, 23, 24]
    assert steps[-1].after.pool.references == {}
    assert steps[-1].after.finished == {"a"}


def test_request_ends_with_the_token_that_it_says_is_its_last() -> None:
    scene = machine(request("a", 3, 9, output_len=2), request("b", 3, 9, output=(5, 6, 7)))

    steps = steps_to_the_end(scene, arrived(scene))

    tokens = {id_: [one for step in steps for one in step.outputs.get(id_, ())] for id_ in "ab"}
    assert tokens == {
        "a": [request("a", 3).output_token(0), request("a", 3).output_token(1)],
        "b": [5, 6, 7],
    }


def test_step_notes_its_number_and_its_time_and_does_not_look_at_them() -> None:
    scene = machine(request("a", 3))

    step = scene.step(arrived(scene), index=7, time=2.5)

    assert (step.index, step.time) == (7, 2.5)
    assert evolve(step, index=0, time=0.0) == scene.step(arrived(scene))


def test_step_leaves_the_state_that_it_was_given_alone_and_does_the_same_again() -> None:
    scene = machine(request("a", 1, 20), request("b", 1, 20), request("c", 9), prefix_caching=True)
    state = scene.arrive(batch(scene, a=(8, 0), b=(4, 4)), "c")
    before = pickle.dumps(state)

    first, second = scene.step(state), scene.step(state)

    assert first == second
    assert pickle.dumps(state) == before
    assert first.before is state


def test_tkv_of_the_last_step_is_kept_for_the_rule_that_looks_at_it_alone() -> None:
    for admission in Admission:
        scene = machine(request("a", 1, 20), admission=admission)
        after = scene.step(batch(scene, a=(8, 0))).after
        assert after.last_tkv == (9 if admission is Admission.SHIPPED else 0)


@pytest.mark.parametrize("steps", range(8))
def test_request_that_is_aborted_in_any_phase_leaves_nothing_behind(steps: int) -> None:
    """Waiting, after each of three chunks, while decoding."""
    scene = machine(request("a", 20, 5), prefix_caching=True)
    state = arrived(scene)
    for _ in range(steps):
        state = scene.step(state).after
    if "a" in state.finished:
        assert steps == 7
        return

    gone = scene.abort(state, "a")

    assert gone.is_idle
    assert gone.aborted == {"a"}
    assert gone.pool.references == {}
    assert sorted(gone.pool.free) == list(range(1, 41))
