"""Steps of the vLLM V1 machine where text and release leave room for doubt."""

from typing import Any

import pytest

from reference.core.guards import GuardError
from reference.vllm_v1 import transitions
from reference.vllm_v1.step import Environment
from reference.vllm_v1.transitions import Plan
from spec.core.errors import WorkloadError
from spec.vllm_v1.config import Connector, Release, Scheduling
from spec.vllm_v1.records import Step
from tests.reference.scenes import arrived, of_parts, steps_from, steps_to_the_end
from tests.reference.vllm_v1.scenes import accepting, ids, machine
from tests.refusals import refusal
from tests.requests import request


def test_victim_loses_its_progress_but_may_find_its_blocks_again() -> None:
    """The text: all progress is lost. Its counter is, yet full blocks stay hashed."""
    scene = machine(
        request("0", 4, 4), request("1", 8, 4), num_blocks=4, prefix_caching=True, max_num_seqs=2
    )
    first, second, *others = steps_to_the_end(scene, arrived(scene))

    assert first.scheduled == {"0": 4, "1": 8}
    assert second.preempted == ("1",)
    (back,) = (step for step in others if step.admitted)
    hit = back.happened("prefix_hit")[0]
    assert (hit.id, len(hit.after)) == ("1", 2)
    assert back.scheduled["1"] == 1


def test_priority_victim_that_was_scheduled_is_refunded() -> None:
    """A victim that stands before the request that needs its blocks: its tokens are free again."""
    scene = machine(
        request("0", 3, 6, priority=1),
        request("1", 3, 6, priority=2),
        request("2", 4, 6, priority=0),
        num_blocks=3,
        scheduling=Scheduling.PRIORITY,
    )
    state = scene.step(arrived(scene, "0", "1")).after
    state = scene.step(scene.arrive(state, "2")).after
    assert ids(state) == {"running": ["0", "1", "2"]}

    steps = steps_to_the_end(scene, state)

    (refund,) = (
        step
        for step in steps
        if any(event.id in step.preempted for event in step.happened("catch_up"))
    )
    assert refund.budget_left == 64 - sum(refund.scheduled.values())
    assert not refund.scheduled.keys() & {*refund.preempted}


def test_0_11_2_steps_over_a_prompt_that_the_budget_would_cut_and_0_28_0_stops() -> None:
    sizes: dict[str, Any] = {"max_num_batched_tokens": 20, "chunked_prefill": False}
    requests = [request("0", 9), request("1", 12), request("2", 2)]

    newer = machine(*requests, **sizes)
    older = machine(*requests, **sizes, release=Release.V0_11_2, reserve_full_prompt=False)

    assert newer.step(arrived(newer)).scheduled == {"0": 9}
    step = older.step(arrived(older))
    assert step.scheduled == {"0": 9, "2": 2}
    assert ids(step.after)["waiting"] == ["1"]


def test_free_list_of_0_11_2_puts_all_freed_blocks_at_the_end_tail_first() -> None:
    def free_blocks(release: Release) -> tuple[int, ...]:
        scene = machine(request("0", 10, 1), num_blocks=5, release=release, prefix_caching=True)
        return tuple(scene.step(arrived(scene)).after.pool.free)

    assert free_blocks(Release.V0_11_2) == (4, 5, 3, 2, 1)
    assert free_blocks(Release.V0_28_0) == (3, 4, 5, 2, 1)  # block 3 has no hash: it is partial


def test_fresh_request_with_one_token_is_padded_to_the_length_of_the_others() -> None:
    scene = machine(request("0", 5), request("1", 1), num_speculative_tokens=3)
    state = scene.step(arrived(scene, "0")).after

    step = scene.step(scene.arrive(state, "1"), accepting(3))

    assert step.scheduled == {"0": 4, "1": 4}
    assert step.accepted == {"0": 3, "1": 0}
    (_, padded) = step.after.running
    assert (padded.computed, padded.tokens) == (1, 2)


@pytest.mark.parametrize(("most", "accepted"), [(1, 1), (5, 3), (None, 3)])
def test_of_3_drafts_as_many_are_accepted_as_the_configuration_says(
    most: int | None, accepted: int
) -> None:
    scene = machine(request("0", 5), num_speculative_tokens=3, accepted_drafts=most)

    _, step = steps_from(scene, arrived(scene), 2)

    assert step.accepted == {"0": accepted}


def test_padding_cut_by_the_threshold_is_rolled_back_as_far_as_it_was_scheduled() -> None:
    """0.28.0 rolls back all three drafts here, to -1 computed tokens."""
    scene = machine(
        request("0", 2), request("1", 1), num_speculative_tokens=3, long_prefill_token_threshold=2
    )
    state = scene.step(arrived(scene, "0")).after

    step = scene.step(scene.arrive(state, "1"), accepting(0))

    assert (step.scheduled["1"], step.drafts["1"]) == (2, 1)
    assert step.after.running[1].computed == 1


def first_step_in_which_the_load_of_a_is_lost(*leavers: str) -> Step:
    """Both begin with the same 8 tokens, which a connector was to bring for "a"."""
    served = machine(
        *(of_parts(name, ("system", 8), (name, 2)) for name in "ab"),
        external={"a": 8},
        connector=Connector.SYNC,
        prefix_caching=True,
    )
    lost = Environment(
        served.ends_as_said, loses=lambda request_id: request_id == "a", leavers=leavers
    )
    return served.step(arrived(served), lost)


def test_first_that_holds_the_blocks_of_a_lost_load_computes_them_for_all() -> None:
    step = first_step_in_which_the_load_of_a_is_lost()

    assert step.failed_loads == ("a", "b")
    assert {row.id: row.computed for row in step.after.running} == {"a": 0, "b": 8}
    assert step.outputs == {}


def test_sharer_of_a_lost_load_keeps_what_the_first_computes_behind_it_in_the_step() -> None:
    """Both have 12 tokens in common: 8 that do not come, 4 that the first computes."""
    served = machine(
        *(of_parts(name, ("system", 12), (name, 2)) for name in "ab"),
        external={"a": 8},
        connector=Connector.SYNC,
        prefix_caching=True,
    )
    lost = Environment(served.ends_as_said, loses=lambda request_id: request_id == "a")

    step = served.step(arrived(served), lost)

    assert {row.id: row.computed for row in step.after.running} == {"a": 0, "b": 12}


@pytest.mark.parametrize(("num_blocks", "loading"), [(4, []), (5, ["1"])])
def test_load_of_2_blocks_leaves_the_2_that_a_prompt_in_chunks_still_lacks(
    num_blocks: int, loading: list[str]
) -> None:
    """After its first chunk a prompt of 12 tokens holds one block of three."""
    scene = machine(
        request("0", 12, 1),
        request("1", 8, 1),
        num_blocks=num_blocks,
        external={"1": 8},
        connector=Connector.ASYNC,
        long_prefill_token_threshold=4,
    )

    step = scene.step(arrived(scene))

    assert step.scheduled == {"0": 4}
    assert ids(step.after).get("skipped", []) == loading


def test_request_larger_than_the_pool_is_refused_not_queued() -> None:
    assert refusal(WorkloadError, machine, request("0", 10, 8), num_blocks=4) == (
        "blocks of prompt_len + max_tokens - 1: found 5; allowed: at most num_blocks (4)"
    )


UNCUT: dict[str, Any] = {"chunked_prefill": False, "max_num_batched_tokens": 8}  # tokens


def test_threshold_above_the_budget_does_not_make_a_long_prompt_servable() -> None:
    """It would cut 10 tokens to 9, which no step of 8 holds: the request would wait for ever."""
    sizes = UNCUT | {"long_prefill_token_threshold": 9}

    assert refusal(WorkloadError, machine, request("0", 10), **sizes) == (
        "prompt_len + max_tokens - 1: found 17; "
        "allowed: at most max_num_batched_tokens (8) without chunked prefill"
    )


def test_transition_is_refused_where_its_guard_does_not_hold() -> None:
    scene = machine(request("0", 4))
    state = arrived(scene)

    with pytest.raises(GuardError, match="V1-OUT-1"):
        transitions.catch_up(scene.ctx, Plan(state, 8), state.waiting[0], 4)
    with pytest.raises(GuardError, match="V1-LIF-1"):
        scene.arrive(state, "0")
