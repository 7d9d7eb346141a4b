"""Steps of the vLLM V1 machine where text and release leave room for doubt."""

from typing import Any

import pytest

from reference.core.guards import GuardError
from reference.vllm_v1 import transitions
from reference.vllm_v1.step import Environment
from reference.vllm_v1.transitions import Plan
from spec.core.errors import WorkloadError
from spec.vllm_v1.config import Connector, Release, Scheduling
from spec.vllm_v1.records import Load, Statistics, Step
from tests.reference.scenes import arrived, of_parts, steps_from, steps_to_the_end
from tests.reference.vllm_v1.scenes import accepting, ids, machine
from tests.refusals import refusal
from tests.requests import request


def test_fully_cached_prompt_of_12_tokens_computes_its_last_block_of_4_again() -> None:
    prompts = [of_parts(name, ("same", 12), max_tokens=1) for name in ("first", "again")]
    scene = machine(*prompts, prefix_caching=True)
    state = scene.step(arrived(scene, "first")).after

    step = scene.step(scene.arrive(state, "again"))

    assert step.scheduled == {"again": 4}
    assert len(step.happened("prefix_hit")[0].after) == 2  # blocks


def test_requests_of_one_step_share_blocks_that_the_first_of_them_writes() -> None:
    scene = machine(
        of_parts("0", ("same", 8), ("a", 2)),
        of_parts("1", ("same", 8), ("b", 3)),
        prefix_caching=True,
    )

    step = scene.step(arrived(scene))

    assert step.scheduled == {"0": 10, "1": 3}
    assert [one.blocks for one in step.planned.running] == [(1, 2, 3), (1, 2, 4)]


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
    def free_after(release: Release) -> tuple[int, ...]:
        scene = machine(request("0", 10, 1), num_blocks=5, release=release, prefix_caching=True)
        return tuple(scene.step(arrived(scene)).after.pool.free)

    assert free_after(Release.V0_11_2) == (4, 5, 3, 2, 1)
    assert free_after(Release.V0_28_0) == (3, 4, 5, 2, 1)  # block 3 has no hash: it is partial


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


def test_request_that_loads_is_not_schedulable_until_the_load_has_ended() -> None:
    scene = machine(
        request("0", 8), external={"0": 8}, connector=Connector.ASYNC, prefix_caching=True
    )
    first, second = steps_from(scene, arrived(scene), 2)
    assert (first.scheduled, second.scheduled) == ({}, {})
    (loading,) = second.after.skipped
    assert (loading.load, loading.computed, len(loading.blocks)) == (Load.LOADING, 8, 2)

    step = scene.step(scene.end_load(second.after, "0"))

    assert step.scheduled == {"0": 1}  # its last token is computed again
    assert len(step.outputs["0"]) == 1


def test_request_whose_load_failed_computes_all_itself() -> None:
    scene = machine(
        request("0", 8), external={"0": 8}, connector=Connector.ASYNC, prefix_caching=True
    )
    state = scene.end_load(scene.step(arrived(scene)).after, "0", failed=True)

    assert scene.step(state).scheduled == {"0": 8}


def first_step_in_which_the_load_of_a_is_lost(*leavers: str) -> Step:
    """Both begin with the same 8 tokens, which a connector was to bring for "a"."""
    served = machine(
        *(of_parts(one, ("system", 8), (one, 2)) for one in "ab"),
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


def test_next_one_computes_the_blocks_of_a_lost_load_whose_client_left_meanwhile() -> None:
    step = first_step_in_which_the_load_of_a_is_lost("a")

    assert ids(step.after) == {"running": ["b"], "aborted": ["a"]}
    assert step.failed_loads == ("b",)
    assert [row.computed for row in step.after.running] == [0]


def test_request_that_shares_only_what_was_cached_before_a_lost_load_is_not_concerned() -> None:
    """The first 4 tokens are cached here, the next 4 should have been brought."""
    served = machine(
        of_parts("0", ("system", 4), ("0", 2), max_tokens=1),
        of_parts("a", ("system", 4), ("a", 6)),
        of_parts("b", ("system", 4), ("b", 6)),
        external={"a": 8},
        connector=Connector.SYNC,
        prefix_caching=True,
    )
    state = served.step(arrived(served, "0")).after
    lost = Environment(served.ends_as_said, loses=lambda request_id: request_id == "a")

    step = served.step(arrived(served, "a", "b", after=state), lost)

    assert step.failed_loads == ("a",)
    assert {row.id: row.computed for row in step.after.running} == {"a": 4, "b": 10}


def test_sharer_of_a_lost_load_keeps_what_the_first_computes_behind_it_in_the_step() -> None:
    """Both have 12 tokens in common: 8 that do not come, 4 that the first computes."""
    served = machine(
        *(of_parts(one, ("system", 12), (one, 2)) for one in "ab"),
        external={"a": 8},
        connector=Connector.SYNC,
        prefix_caching=True,
    )
    lost = Environment(served.ends_as_said, loses=lambda request_id: request_id == "a")

    step = served.step(arrived(served), lost)

    assert {row.id: row.computed for row in step.after.running} == {"a": 0, "b": 12}


def test_client_that_leaves_while_the_model_runs_gets_no_token() -> None:
    served = machine(request("a", 4), request("b", 4))

    step = served.step(arrived(served), Environment(served.ends_as_said, leavers=("a",)))

    assert list(step.scheduled) == ["a", "b"]
    assert list(step.outputs) == ["b"]
    assert ids(step.after) == {"running": ["b"], "aborted": ["a"]}
    assert step.after.unreported == {"a"}


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


@pytest.mark.parametrize(("num_blocks", "loading"), [(4, {"a"}), (5, {"a", "first"})])
def test_load_of_a_better_priority_leaves_the_2_blocks_that_a_load_under_way_still_lacks(
    num_blocks: int, loading: set[str]
) -> None:
    """One block of three is brought for "a"; "first" is looked at before it."""
    scene = machine(
        request("a", 12, 1, priority=1),
        request("first", 8, 1, priority=0),
        num_blocks=num_blocks,
        external={"a": 4, "first": 8},
        connector=Connector.ASYNC,
        scheduling=Scheduling.PRIORITY,
    )
    state = scene.step(arrived(scene, "a")).after

    step = scene.step(scene.arrive(state, "first"))

    assert {one.id for one in step.after.skipped} == loading


def test_blocks_of_a_request_aborted_while_it_loads_are_free_when_the_load_has_ended() -> None:
    scene = machine(request("0", 8), external={"0": 8}, connector=Connector.ASYNC)
    state = scene.abort(scene.step(arrived(scene)).after, "0")
    assert len(state.pool.references) == 2

    assert not scene.end_load(state, "0").pool.references


def test_request_that_left_is_reported_by_the_next_step_and_by_no_other() -> None:
    scene = machine(request("0", 4, 1), request("1", 4, 3))
    first, second = steps_from(scene, arrived(scene), 2)
    third, fourth = steps_from(scene, scene.abort(second.after, "1"), 2)

    assert [one.reported for one in (first, second, third, fourth)] == [(), ("0",), ("1",), ()]


def test_requests_that_left_together_are_reported_by_name() -> None:
    names = [str(number) for number in range(10, 22)]
    scene = machine(*(request(name, 1, 1) for name in names), max_num_seqs=12)

    _, second = steps_from(scene, arrived(scene, *names[::-1]), 2)

    assert second.reported == tuple(names)


def test_statistics_count_the_queues_and_the_part_of_the_pool_that_is_held() -> None:
    scene = machine(request("0", 8), request("1", 4), num_blocks=8, max_num_seqs=1)

    assert scene.step(arrived(scene)).statistics == Statistics(waiting=1, running=1, usage=0.25)


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


def test_threshold_within_the_budget_does() -> None:
    scene = machine(request("0", 10), **UNCUT, long_prefill_token_threshold=8)
    steps = steps_to_the_end(scene, arrived(scene))
    assert [step.scheduled["0"] for step in steps] == [8, 2, *[1] * 7]


def test_transition_is_refused_where_its_guard_does_not_hold() -> None:
    scene = machine(request("0", 4))
    state = arrived(scene)

    with pytest.raises(GuardError, match="V1-OUT-1"):
        transitions.catch_up(scene.ctx, Plan(state, 8), state.waiting[0], 4)
    with pytest.raises(GuardError, match="V1-LIF-1"):
        scene.arrive(state, "0")
