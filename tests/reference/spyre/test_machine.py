"""The machine as a whole: pure, deterministic, and every request gets all that it asked for."""

import pickle
import random
from collections.abc import Sequence as Seq
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from checks.harness.judging import Judge
from reference.spyre.machine import SpyreMachine
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.records import Step
from spec.spyre.rules import applicable
from spec.spyre.state import State
from spec.spyre.variants import Admission, Queue
from tests.reference.scenes import arrived, steps_to_the_end
from tests.reference.spyre.scenes import batch, machine
from tests.requests import request

# --- by example -----------------------------------------------------------------------------------


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


# --- drawn workloads ------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {},
    "not interleaved": {"interleave": False},
    "overtaking": {"queue": Queue.OVERTAKING},
    "without reservation": {"reservation": False},
    "pausing": {"pausing": True},
    "most generated first": {"pausing": True, "long_output_first": True},
    "shipped": {"admission": Admission.SHIPPED, "queue": Queue.OVERTAKING},
}


@composite
def workloads(draw: DrawFn) -> tuple[dict[str, Any], list[Request]]:
    """Sizes that bind, and two to five requests, some of which begin alike or end early."""
    size = draw(st.integers(1, 4))
    requests = []
    for index in range(draw(st.integers(2, 5))):
        common, own = draw(st.integers(0, 10)), draw(st.integers(1, 8))
        prompt = Prompt.of_parts([("common", common), (f"own {index}", own)])
        tokens = draw(st.integers(1, 8))
        end = draw(st.integers(1, tokens))
        requests.append(Request(id=str(index), prompt=prompt, max_tokens=tokens, output_len=end))
    longest = max(one.prompt_len + one.max_tokens for one in requests)
    sizes = {
        "block_size": size,
        "chunk_size": size * draw(st.integers(1, 3)),
        "max_model_len": 32,
        "max_num_seqs": draw(st.integers(1, 4)),
        "max_batch_tkv_limit": longest + draw(st.integers(0, 40)),
        "num_blocks": -(-longest // size) + draw(st.integers(0, 20)),
    }
    return sizes, requests


def check_run(machine: SpyreMachine, numbers: random.Random) -> list[Step]:
    """Serve with arrivals strewn in; judge every step; each request gets its own tokens."""
    judge = Judge(machine.ctx)
    coming = list(machine.ctx.requests.values())
    state, steps = machine.initial(), list[Step]()
    while coming or not state.is_idle:
        while coming and (state.is_idle or numbers.random() < 0.3):
            state = machine.arrive(state, coming.pop(0).id)
        steps.append(machine.step(state, index=len(steps)))
        assert judge.observe(steps[-1]) == []
        state = steps[-1].after
        assert len(steps) < 2_000, "no end in sight"
    check_outputs(machine.ctx.requests.values(), steps, state)
    return steps


def check_outputs(requests: Any, steps: Seq[Step], end: State) -> None:
    assert end.finished == {one.id for one in requests}
    for one in requests:
        sampled = [token for step in steps for token in step.outputs.get(one.id, ())]
        assert sampled == [one.output_token(index) for index in range(one.end)]


@pytest.mark.parametrize("variant", VARIANTS)
@given(workload=workloads(), seed=st.integers(0, 3), caching=st.booleans())
def test_every_request_gets_its_own_tokens_and_no_rule_is_broken(
    variant: str, workload: tuple[dict[str, Any], list[Request]], seed: int, caching: bool
) -> None:
    sizes, requests = workload
    config = SpyreConfig(**sizes, prefix_caching=caching, **VARIANTS[variant])

    check_run(SpyreMachine.of(config, requests), random.Random(seed))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_long_runs_in_the_sizes_of_the_figures_break_no_rule(seed: int) -> None:
    numbers = random.Random(seed)
    requests = [
        request(str(index), numbers.randint(1, 400), numbers.randint(1, 112)) for index in range(60)
    ]
    sizes: dict[str, Any] = {"block_size": 64, "chunk_size": 128, "max_model_len": 512}
    sizes |= {"max_num_seqs": 4, "max_batch_tkv_limit": 1536, "num_blocks": 40}
    for config in (SpyreConfig, released_2_6_3):
        scene = SpyreMachine.of(config(**sizes), requests)
        steps = check_run(scene, random.Random(seed))
        assert len(steps) > 600
        assert len(applicable(scene.ctx.config)) > 60
