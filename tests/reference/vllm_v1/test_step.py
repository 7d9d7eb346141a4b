"""Steps of the vLLM V1 machine where text and release leave room for doubt."""

from typing import Any

import pytest
from attrs import evolve

from reference.core.guards import GuardError
from reference.vllm_v1 import groups, transitions
from reference.vllm_v1.step import Environment
from reference.vllm_v1.transitions import Plan
from spec.core.blocks import BlockPool
from spec.core.errors import WorkloadError
from spec.core.requests import Oversized, Prompt
from spec.vllm_v1.config import Connector
from spec.vllm_v1.groups import group_key
from spec.vllm_v1.records import Sequence, Step
from tests.reference.scenes import arrived, of_parts, steps_from
from tests.reference.vllm_v1.scenes import ids, machine
from tests.requests import request


@pytest.mark.parametrize(("most", "accepted"), [(1, 1), (5, 3), (None, 3)])
def test_of_3_drafts_as_many_are_accepted_as_the_configuration_says(
    most: int | None, accepted: int
) -> None:
    scene = machine(request("0", 5), num_speculative_tokens=3, accepted_drafts=most)

    _, step = steps_from(scene, arrived(scene), 2)

    assert step.accepted == {"0": accepted}


def test_what_a_drafter_does_not_propose_is_not_verified() -> None:
    scene = machine(request("a", 5), request("b", 3), num_speculative_tokens=3)
    proposes = Environment(scene.ends_as_said, proposes=lambda row, _most: {"a": 0, "b": 2}[row.id])

    first = scene.step(arrived(scene), proposes)
    second = scene.step(first.after, proposes)

    assert first.proposed == {"a": 0, "b": 2}
    assert (second.scheduled, second.drafts) == ({"a": 1, "b": 3}, {"b": 2})


@pytest.mark.parametrize(
    ("release", "room", "scheduled", "encoded"),
    [
        ("0.28.0", 4, 4, (0, 1)),  # both images; the second one is read ahead
        ("0.28.0", 3, 3, (0,)),  # the drafter must not come to the second one
        ("0.33.0", 3, 4, (0,)),  # it reads the plain token there
    ],
)
def test_a_drafter_that_reads_ahead_needs_an_image_a_token_earlier(
    release: str, room: int, scheduled: int, encoded: tuple[int, ...]
) -> None:
    prompt = Prompt.of_stream("0", 6).with_spans(((0, 2, "a"), (4, 2, "b")))
    scene = machine(
        evolve(request("0", 6), prompt=prompt),
        max_num_batched_tokens=4,
        num_speculative_tokens=1,
        drafter_reads_ahead=True,
        encoder_cache_size=room,
        release=release,
    )

    (step,) = steps_from(scene, arrived(scene), 1)

    assert (step.scheduled, dict(step.encoded)) == ({"0": scheduled}, {"0": encoded})


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


def test_of_a_lost_load_the_whole_blocks_that_came_are_kept() -> None:
    loads = request("a", 14, external=12, external_if_lost=11)
    served = machine(loads, connector=Connector.SYNC)
    lost = Environment(served.ends_as_said, loses=lambda _request_id: True)

    step = served.step(arrived(served), lost)

    assert step.failed_loads == ("a",)
    assert [row.computed for row in step.after.running] == [8]


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


UNCUT: dict[str, Any] = {"chunked_prefill": False, "max_num_batched_tokens": 8}  # tokens


def test_transition_is_refused_where_its_guard_does_not_hold() -> None:
    scene = machine(request("0", 4))
    state = arrived(scene)

    with pytest.raises(GuardError, match="V1-OUT-1"):
        transitions.catch_up(scene.ctx, Plan(state, 8), state.waiting[0], 4)
    with pytest.raises(GuardError, match="V1-LIF-1"):
        scene.arrive(state, "0")


def test_request_that_the_pool_can_never_hold_is_refused_or_waits_with_all_behind_it() -> None:
    with pytest.raises(WorkloadError, match="found 4; allowed: at most num_blocks"):
        machine(request("a", 9), num_blocks=2)
    scene = machine(request("a", 9), request("b", 1), num_blocks=2, oversized=Oversized.QUEUED)

    steps = steps_from(scene, arrived(scene), 3)

    assert [(dict(step.scheduled), step.refusal) for step in steps] == [({}, "V1-KV-1")] * 3
    assert ids(steps[-1].after) == {"waiting": ["a", "b"]}


def test_state_in_a_block_that_held_it_before_is_new_all_the_same() -> None:
    ctx = machine(request("0", 4), kv_groups="mamba", prefix_caching=True).ctx
    key = group_key(ctx.keys, "0", ctx.config.groups[0], 0)
    pool = BlockPool(2, (1,), {2: 1}, {2: key}, {key: (2,)})
    row = Sequence("0", 4, blocks=(1,), tables=((2,),))

    assert groups.fresh_states(ctx, pool, pool, row, ()) == {key}
    assert groups.fresh_states(ctx, pool, pool, row, ((2,),)) == frozenset()
