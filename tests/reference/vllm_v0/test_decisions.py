"""Decisions of vLLM V0's steps by example: order, refusals, and numbers of tokens."""

from typing import Any

import pytest
from attrs import evolve

from reference.core.block_pool import allocate, new_pool
from reference.core.frozen_map import FrozenMap
from reference.vllm_v0 import preemption, queues, tokens, transitions
from reference.vllm_v0.decisions import Decisions, Environment
from reference.vllm_v0.memory import EngineEnds
from reference.vllm_v0.step import batch_order, schedule_chunked_prefill, scheduler_step
from spec.core.blocks import BlockPool, block_count
from spec.vllm_v0.config import Scheduling, VllmV0Config
from spec.vllm_v0.records import Group, Sequence, State, context_of
from spec.vllm_v0.variants import Reading, Strategy
from tests.requests import request

ENVIRONMENT = Environment(
    ends=lambda _one: False, accepted=lambda _one, _count: 0, preempts=lambda _one: False
)
CHUNKED: dict[str, Any] = {"chunked_prefill": True, "prefix_caching": True}


def group(name: str, prompt: int, computed: int = 0) -> Group:
    """A group of one sequence that has computed so much of its prompt."""
    return Group(name, prompt, (Sequence(name, slots=prompt),), computed=computed)


def decoding(name: str, prompt: int, generated: int, n: int = 1) -> Group:
    """A group of `n` sequences: the newest token of each has no slot yet."""
    computed = prompt + generated - 1
    names = (name, *(f"{name}/{index}" for index in range(1, n)))
    sequences = tuple(Sequence(sequence_id, generated, slots=computed) for sequence_id in names)
    return Group(name, prompt, sequences, computed=computed, is_prefill=False)


def with_tables(
    pool: BlockPool, groups: tuple[Group, ...], block_size: int
) -> tuple[BlockPool, tuple[Group, ...]]:
    """The groups with blocks for their slots, none of them shared."""
    placed = []
    for group in groups:
        sequences = []
        for sequence in group.sequences:
            pool, blocks = allocate(pool, int(block_count(sequence.slots, block_size)))
            sequences.append(evolve(sequence, blocks=blocks))
        placed.append(evolve(group, sequences=tuple(sequences)))
    return pool, tuple(placed)


def run_of(
    running: tuple[Group, ...] = (),
    waiting: tuple[Group, ...] = (),
    swapped: tuple[Group, ...] = (),
    asked: dict[str, Any] | None = None,
    **config: Any,
) -> Decisions:
    """A step that begins with these groups; blocks of four tokens, sixteen on each device.

    `asked`: more of each request.
    """
    sizes = {"block_size": 4, "num_blocks": 16, "num_cpu_blocks": 16, "max_num_seqs": 4}
    settings = VllmV0Config(**{**sizes, "max_num_batched_tokens": 64, "max_model_len": 64} | config)
    requests = [
        request(
            group.id,
            group.prompt_len,
            16,
            n=len(group.sequences),
            **(asked or {}).get(group.id, {}),
        )
        for group in (*running, *waiting, *swapped)
    ]
    pool, running = with_tables(new_pool(settings.pool_blocks), running, 4)
    cpu, swapped = with_tables(new_pool(settings.num_cpu_blocks), swapped, 4)
    swapped = tuple(evolve(group, is_swapped=True) for group in swapped)
    state = State(pool, cpu, marks=FrozenMap(), waiting=waiting, running=running, swapped=swapped)
    return Decisions(context_of(settings, requests), state, env=ENVIRONMENT)


def test_a_prompt_gets_no_tokens_of_a_budget_that_is_overdrawn() -> None:
    run = run_of(waiting=(group("a", 8),), chunked_prefill=True)
    run.budget.remaining = -1

    assert tokens.new_tokens(run, run.state.waiting[0], None) == (0, 0)


# --- how many tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "found"), [(15, 0), (16, 0), (17, 17)])
def test_in_several_steps_at_once_a_prompt_of_the_limit_is_all_or_nothing(
    length: int, found: int
) -> None:
    """One that is longer than the limit of 16 is refused for its whole length."""
    several: dict[str, Any] = {"num_scheduler_steps": 2, "num_lookahead_slots": 1}
    run = run_of(
        waiting=(group("a", length),), chunked_prefill=True, max_num_batched_tokens=16, **several
    )
    run.budget.remaining = 4

    assert tokens.new_tokens(run, run.state.waiting[0], None)[0] == found


@pytest.mark.parametrize(("reading", "found"), [(Reading.REPAIRED, 1), (Reading.RELEASED, 0)])
def test_only_the_release_wants_a_block_of_the_budget_for_a_decode(
    reading: Reading, found: int
) -> None:
    run = run_of((decoding("a", 4, 1),), reading=reading, **CHUNKED)
    run.budget.remaining = 3

    assert tokens.new_tokens(run, run.state.running[0], None) == (found, 0)


@pytest.mark.parametrize("computed", [0, 4, 8])
def test_the_release_ends_where_a_prompt_comes_back_with_more_than_is_cached(computed: int) -> None:
    run = run_of(swapped=(group("a", 12, computed),), reading=Reading.RELEASED, **CHUNKED)
    swapped = evolve(run.state.swapped[0], cached=4)

    if computed <= 4:
        assert tokens.new_tokens(run, swapped, None) == (8, 4 - computed)
    else:
        with pytest.raises(EngineEnds, match="fewer tokens are cached"):
            tokens.new_tokens(run, swapped, None)


def test_places_of_prompts_are_left_by_those_that_end_and_those_that_decode() -> None:
    """Two prompts may be under way: `b` ends in this step, and `c` decodes."""
    run = run_of(
        (group("a", 8, 7), group("b", 8, 4), decoding("c", 4, 1)),
        chunked_prefill=True,
        max_num_partial_prefills=2,
    )
    assert not tokens._leaves_a_place(run)

    run.scheduled = {"b": 4}

    assert tokens._leaves_a_place(run)


# --- swapped groups -------------------------------------------------------------------------------


def swapped_out(**config: Any) -> Decisions:
    """`a` is swapped out, `b` and `c` may wait; the lower its priority, the more urgent one is."""
    urgency = {"a": {"priority": 2}, "b": {"priority": 1}, "c": {"priority": 3}}
    return run_of(
        waiting=(group("b", 4), group("c", 4)),
        swapped=(decoding("a", 4, 1),),
        asked=urgency,
        scheduling=Scheduling.PRIORITY,
        **config,
    )


def test_swapped_groups_wait_for_victims_of_priority_and_for_a_more_urgent_request() -> None:
    run = swapped_out()
    assert preemption.keeps_swapped_out(run)

    run.state = evolve(run.state, waiting=run.state.waiting[1:])
    assert not preemption.keeps_swapped_out(run)
    run.by_priority.append("d")
    assert preemption.keeps_swapped_out(run)


def test_under_the_release_swapped_groups_wait_for_none_of_that() -> None:
    run = swapped_out(reading=Reading.RELEASED)
    run.by_priority.append("d")

    assert not preemption.keeps_swapped_out(run)


def test_a_prompt_without_budget_stays_swapped_out() -> None:
    run = run_of(swapped=(group("a", 8, 4),), chunked_prefill=True)
    run.budget.remaining = 0

    queues.schedule_swapped(run)

    assert (run.swapped_in, run.scheduled) == ([], {})


@pytest.mark.parametrize(("chunked", "scheduled"), [(True, {"a": 3}), (False, {})])
def test_a_prompt_comes_back_in_part_where_prompts_are_chunked(
    chunked: bool, scheduled: dict[str, int]
) -> None:
    run = run_of(swapped=(group("a", 8, 4),), chunked_prefill=chunked)
    run.budget.remaining = 3

    queues.schedule_swapped(run)

    assert run.scheduled == scheduled


def test_a_group_that_came_back_can_be_dropped_from_what_lookups_remember_again() -> None:
    run = run_of(swapped=(decoding("a", 4, 1),), **CHUNKED)
    dropped, _ = transitions.forget(run.ctx, run.state, run.state.swapped[0])
    assert dropped.swapped[0].is_forgotten

    back, _, _ = transitions.swap_in(run.ctx, dropped, dropped.swapped[0])

    assert not back.running[0].is_forgotten


def test_a_prompt_that_is_dropped_is_looked_up_anew_as_often_as_that_happens() -> None:
    run = run_of(swapped=(group("a", 8, 4),), **CHUNKED)
    asked = evolve(run.state.swapped[0], cached=4)
    state = evolve(run.state, swapped=(asked,))

    dropped, _ = transitions.forget(run.ctx, state, asked)

    assert (dropped.swapped[0].cached, dropped.swapped[0].is_forgotten) == (None, False)


@pytest.mark.parametrize(("n", "generated"), [(1, 1), (2, 2), (2, 1)])
def test_the_release_ends_where_a_sequence_is_dropped_that_was_only_forked(
    n: int, generated: int
) -> None:
    run = run_of(swapped=(decoding("a", 4, generated, n=n),), **CHUNKED)
    (swapped,) = run.state.swapped

    if n == 1 or generated > 1:
        assert transitions.forget(run.ctx, run.state, swapped)[0].swapped[0].is_forgotten
    else:
        with pytest.raises(EngineEnds, match="dropped twice"):
            transitions.forget(run.ctx, run.state, swapped)


# --- waiting groups -------------------------------------------------------------------------------


def test_the_first_refusal_is_the_one_that_is_reported() -> None:
    """Of 16 blocks `a` lacks one, and `b` finds no budget; the text looks on behind both."""
    run = run_of(
        (decoding("r", 4, 1),),
        (group("a", 64), group("b", 4)),
        reading=Reading.DOCUMENTED,
        max_num_batched_tokens=64,
    )
    run.budget.remaining = 3

    queues.schedule_prefills(run, share=None)

    assert (run.refusal, run.new) == ("V0-ADM-1", [])


def test_the_wait_of_a_group_that_gave_way_in_this_step_does_not_count_for_the_delay() -> None:
    late, early = evolve(group("a", 4), waited=20.0), group("b", 4)
    run = run_of((decoding("r", 4, 1),), (late, early), delay_factor=1.0)
    run.state = evolve(run.state, has_prefilled=True)
    assert queues.passed_delay(run, run.state.waiting)

    run.preempted.append("a")

    assert not queues.passed_delay(run, run.state.waiting)


# --- prompts in chunks ----------------------------------------------------------------------------


def crowded(**config: Any) -> Decisions:
    """Prompt `a` ends with 5 tokens; of a budget of 8 no block is left for `b`. `d` may decode."""
    return run_of(
        (group("a", 9, 4), group("b", 12, 4)),
        swapped=(decoding("d", 4, 1),),
        max_num_batched_tokens=8,
        **CHUNKED | config,
    )


def test_prompts_without_budget_keep_their_places_from_swapped_groups() -> None:
    run = crowded(max_num_seqs=2)

    schedule_chunked_prefill(run)

    assert run.scheduled == {"a": 5}


def test_prompts_without_budget_let_swapped_groups_have_what_is_left() -> None:
    run = crowded(max_num_seqs=3)

    schedule_chunked_prefill(run)

    assert run.scheduled == {"a": 5, "d": 1}


def test_the_release_fills_the_gap_that_a_decode_leaves_whose_share_is_less_than_a_block() -> None:
    """Three prompts share a budget of 8: two tokens for each, and for `a`; `d` has all of it."""
    run = run_of(
        (decoding("a", 4, 1),),
        (group("x", 8), group("y", 8), group("z", 8)),
        (decoding("d", 4, 1),),
        reading=Reading.RELEASED,
        max_num_batched_tokens=8,
        max_num_partial_prefills=3,
        long_prefill_token_threshold=50,
        **CHUNKED,
    )

    schedule_chunked_prefill(run)

    assert run.scheduled == {"d": 1}


@pytest.mark.parametrize(
    ("left", "wanted", "found", "left_then"),
    [(2, True, False, 1), (2, False, True, 2), (0, True, True, 0)],
)
def test_a_group_with_slots_gives_way_for_a_test_as_often_as_is_left(
    left: int, wanted: bool, found: bool, left_then: int
) -> None:
    run = run_of((decoding("a", 4, 1),))
    run.env = evolve(ENVIRONMENT, preempts=lambda _one: wanted)
    run.state = evolve(run.state, artificial=left)

    assert queues.can_append(run, run.state.running[0]) is found
    assert run.state.artificial == left_then


def test_a_group_that_gave_way_keeps_swapped_groups_out_however_it_did() -> None:
    run = run_of()
    assert not run.preempts

    run.preempted.append("a")
    assert run.preempts

    run.by_priority.append("a")
    assert not run.preempts

    run.swapped_out.append("b")
    assert run.preempts


def test_a_decode_without_a_token_stands_before_those_that_have_one() -> None:
    """Two groups of two sequences, and a budget of three tokens."""
    run = run_of(
        (decoding("a", 1, 1, n=2), decoding("b", 1, 1, n=2)),
        chunked_prefill=True,
        max_num_batched_tokens=3,
    )

    schedule_chunked_prefill(run)

    assert [group.id for group in run.state.running] == ["b", "a"]


# --- the batch and what is reported ---------------------------------------------------------------


@pytest.mark.parametrize(("max_loras", "order"), [(2, ["b", "a"]), (0, ["a", "b"])])
def test_a_batch_is_in_the_order_of_adapters_where_they_are_distinguished(
    max_loras: int, order: list[str]
) -> None:
    adapters = {"a": {"lora": 2}, "b": {"lora": 1}}
    run = run_of(waiting=(group("a", 4), group("b", 4)), asked=adapters, max_loras=max_loras)

    queues.schedule_prefills(run, share=None)

    assert batch_order(run) == order


def test_what_is_decided_comes_before_what_it_comes_to_and_ignored_prompts_before_swapped() -> None:
    """`a` decodes its last token; `long` never fits the model's steps, `big` never its pool."""
    run = run_of(
        (decoding("a", 4, 15),),
        (group("long", 20),),
        (decoding("big", 40, 1),),
        strategy=Strategy.COMBINED,
        num_blocks=9,
        max_num_batched_tokens=16,
    )

    step = scheduler_step(run.ctx, run.state, ENVIRONMENT)

    assert step.ignored == ("long", "big")
    kinds = [event.transition for event in step.events]
    assert kinds == ["ignore", "ignore", "decode", "sample", "finish"]
