"""The scheduler step by example, in the order of the text: padding, decode, priority, caching."""

from typing import Any

import pytest
from attrs import evolve

from spec.core.records import Event
from spec.core.requests import Prompt
from spec.spyre.records import Step
from spec.spyre.state import State
from spec.spyre.variants import Admission, Queue
from tests.reference.scenes import arrived, of_parts, steps_from, steps_to_the_end
from tests.reference.spyre.scenes import batch, log, machine, tkvs
from tests.requests import request

LARGE: dict[str, Any] = {"block_size": 64, "chunk_size": 128, "max_model_len": 512}

# --- prefill padding ------------------------------------------------------------------------------


def test_prompt_of_302_tokens_is_prefilled_in_three_steps() -> None:
    """Block 64, chunk 128: a block of padding in front, 18 tokens of it behind."""
    scene = machine(request("a", 302, 3), **LARGE)

    steps = steps_to_the_end(scene, arrived(scene))

    chunks = [step.chunk for step in steps[:3] if step.chunk]
    assert [(chunk.left_padding, chunk.right_padding) for chunk in chunks] == [(64, 18)] * 3
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(0, 64), (64, 192), (192, 302)]
    assert [chunk.block_table for chunk in chunks] == [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]
    assert [chunk.writes for chunk in chunks] == [(0, 1), (2, 3), (4, 5)]
    assert [step.scheduled for step in steps] == [{"a": tokens} for tokens in (64, 128, 110, 1, 1)]
    assert [list(step.outputs) for step in steps] == [[], [], ["a"], ["a"], ["a"]]
    assert [step.tkv for step in steps] == [302, 302, 302, 303, 304]
    assert [step.volume for step in steps] == [step.tkv for step in steps]
    assert [step.finished for step in steps] == [(), (), (), (), ("a",)]


# --- decode: padding and tkv ----------------------------------------------------------------------


def test_two_requests_decode_under_one_width_and_jump_as_the_text_says() -> None:
    """Blocks of 4. B, padded, crosses a block; then A, the longest, does; then A leaves."""
    scene = machine(request("a", 9, 6), request("b", 3, 9))

    steps = steps_to_the_end(scene, arrived(scene))

    assert log(steps) == ["a 1/2", "a 2/2", "a", "b 1/1", *["b+a"] * 4, *["b"] * 4]
    assert [tkvs(step) for step in steps[4:]] == [
        {"a": 11, "b": 12},  # B is padded by two blocks
        {"a": 12, "b": 9},  # B crosses into its second block and gives up one of padding
        {"a": 13, "b": 14},  # A crosses into its fourth block: B gets one more of padding
        {"a": 14, "b": 15},  # nothing happens; then A has its six tokens
        {"b": 8},  # no longer row is there: all padding of B goes
        {"b": 9},
        {"b": 10},
        {"b": 11},
    ]
    assert [step.volume for step in steps[4:]] == [24, 24, 28, 30, 8, 9, 10, 11]
    all_jumps = [(step.index, jump) for step in steps for jump in step.happened("jump_tkv")]
    jumps = {index: (jump.id, jump.before, jump.after) for index, jump in all_jumps}
    assert len(all_jumps) == len(jumps)
    assert jumps == {4: ("b", 3, 12), 5: ("b", 12, 9), 6: ("b", 9, 14), 8: ("b", 15, 8)}


def test_longer_request_that_joins_pads_those_that_were_there() -> None:
    scene = machine(request("a", 2, 9), request("b", 9, 4))

    steps = steps_to_the_end(scene, arrived(scene))

    assert log(steps[:6]) == ["a 1/1", "a", "b 1/2", "a", "b 2/2", "b+a"]
    assert [tkvs(step) for step in (steps[3], steps[5])] == [{"a": 4}, {"b": 10, "a": 9}]
    assert steps[5].happened("jump_tkv") == [Event("jump_tkv", "a", "SPY-TKV-7", 4, 9)]


# --- priority rules -------------------------------------------------------------------------------


def test_with_interleaving_a_decode_step_follows_every_prefill_step() -> None:
    scene = machine(request("a", 3, 9), request("b", 20, 2))

    steps = steps_to_the_end(scene, arrived(scene))

    assert log(steps[:8]) == ["a 1/1", "a", "b 1/3", "a", "b 2/3", "a", "b 3/3", "b+a"]
    assert [step.refusal for step in steps[:6]] == [None, "SPY-PRI-3"] * 3


def test_without_interleaving_prefill_steps_run_back_to_back() -> None:
    scene = machine(request("a", 3, 9), request("b", 20, 2), interleave=False)

    steps = steps_from(scene, arrived(scene), 5)

    assert log(steps) == ["a 1/1", "b 1/3", "b 2/3", "b 3/3", "b+a"]


@pytest.mark.parametrize(
    ("queue", "order"),
    [
        (Queue.FCFS, ["a+b+c", "a+b+c", "long 1/1", "long+b+c"]),
        (Queue.OVERTAKING, ["a+b+c", "short 1/1", "short+a+b+c", "long 1/1"]),
    ],
)
def test_refused_request_is_waited_for_or_overtaken(queue: Queue, order: list[str]) -> None:
    """Limit 28: with the long request four rows would be at 4 x 8; when A has left, 3 x 8."""
    scene = machine(
        *(request(id_, 1, tokens) for id_, tokens in (("a", 3), ("b", 4), ("c", 4))),
        request("long", 7, 2),
        request("short", 1, 2),
        max_batch_tkv_limit=28,
        max_num_seqs=5,
        queue=queue,
    )
    state = batch(scene, a=(1, 0), b=(1, 0), c=(1, 0))
    state = scene.arrive(scene.arrive(state, "long"), "short")

    steps = steps_from(scene, evolve(state, last_kind="prefill"), 4)

    assert log(steps) == order
    assert steps[1].refusal == "SPY-VOL-4"


# --- last-chunk constraints -----------------------------------------------------------------------


def test_last_chunk_is_held_back_until_a_request_with_much_to_come_has_left() -> None:
    """As in the text: two of three chunks are computed, then the model length is in the way."""
    requests = request("0", 10, 400, output_len=22), request("1", 300, 20)
    scene = machine(*requests, **LARGE, admission=Admission.DOCUMENTED)

    steps = steps_to_the_end(scene, arrived(scene))

    computed = {step.index: log([step])[0] for step in steps if step.chunk}
    assert computed == {0: "0 1/1", 2: "1 1/3", 4: "1 2/3", 24: "1 3/3"}
    assert {step.refusal for step in steps[6:24]} == {"SPY-LEN-2"}
    assert steps[23].finished == ("0",)


@pytest.mark.parametrize(("limit", "deferred"), [(1756, 0), (1755, 1), (1536, 45)])
def test_prefill_is_deferred_until_the_volume_allows_it(limit: int, deferred: int) -> None:
    """With D four rows would be at tkv 439 when C, after 45 steps, ends; without C there is room.

    A then needs a seventh block and D, with 375 tokens, reaches 55 tokens into it.
    """
    sizes = {"a": (300, 101), "b": (150, 151), "c": (150, 76), "d": (330, 97)}
    requests = [request(id_, *size) for id_, size in sizes.items()]
    scene = machine(*requests, **LARGE | {"chunk_size": 512}, max_batch_tkv_limit=limit)
    state = scene.arrive(batch(scene, a=(340, 0), b=(200, 128), c=(180, 192)), "d")

    steps = steps_to_the_end(scene, state)

    assert log(steps[: deferred + 1]) == [*["a+b+c"] * deferred, "d 1/1"]
    assert {step.refusal for step in steps[:deferred]} <= {"SPY-VOL-4"}
    assert max(step.volume for step in steps) <= limit


# --- prefix caching -------------------------------------------------------------------------------


def test_prompt_that_is_cached_whole_computes_its_last_chunk_again() -> None:
    """16 tokens in two chunks of two blocks: three blocks are shared, the last is duplicated."""
    scene = machine(of_parts("a", ("s", 16)), of_parts("b", ("s", 16)), prefix_caching=True)

    *_, step = steps_from(scene, arrived(scene), 4)

    assert log([step]) == ["b 2/2"]
    assert step.chunk is not None
    assert (step.chunk.start, step.chunk.end) == (8, 16)
    assert (step.chunk.cached_tokens, step.chunk.inner_padding) == (8, 4)
    assert step.chunk.block_table == (1, 2, 3, 6)
    assert step.chunk.writes == (0, 6)  # the third is read, what is computed of it thrown away
    assert step.scheduled == {"b": 8}
    assert step.after.pool.references == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1}


def after_three_cached_blocks(own_tokens: int) -> list[Step]:
    """A request whose first three blocks are cached, and so many tokens more; chunks of two."""
    scene = machine(
        of_parts("a", ("s", 12), max_tokens=1),
        of_parts("b", ("s", 12), ("b", own_tokens), max_tokens=1),
        prefix_caching=True,
    )
    cached = steps_to_the_end(scene, arrived(scene, "a"))[-1].after
    return steps_to_the_end(scene, scene.arrive(cached, "b"))


def test_boundary_chunk_is_computed_again_and_does_not_write_the_cached_blocks() -> None:
    steps = after_three_cached_blocks(own_tokens=12)

    assert log(steps) == ["b 2/3", "b 3/3"]
    boundary, last = (step.chunk for step in steps if step.chunk)
    assert (boundary.start, boundary.end) == (8, 16)
    assert (boundary.cached_tokens, boundary.inner_padding) == (8, 4)
    assert (boundary.block_table, boundary.writes) == ((1, 2, 3, 4), (0, 4))
    assert (last.block_table, last.writes) == ((1, 2, 3, 4, 5, 6), (5, 6))


def test_cached_blocks_and_the_padding_in_front_of_them_make_up_whole_chunks() -> None:
    """One block of padding and three cached ones: two chunks are skipped."""
    steps = after_three_cached_blocks(own_tokens=8)

    assert log(steps) == ["b 3/3"]
    last = steps[0].chunk
    assert last is not None
    assert (last.left_padding, last.cached_tokens, last.inner_padding) == (4, 12, 0)
    assert (last.block_table, last.writes) == ((0, 1, 2, 3, 4, 5), (4, 5))


def test_prompt_finds_the_tokens_that_another_request_generated() -> None:
    """A dialogue: the second prompt is the first one, its answer, and a new question."""
    first = request("a", 6, 10)
    answer = [first.output_token(index) for index in range(10)]
    history = [*first.prompt.tokens(), *answer]
    second = evolve(first, id="b", prompt=Prompt.of_tokens([*history, 1, 2, 3]))
    scene = machine(first, second, prefix_caching=True)
    done = steps_to_the_end(scene, arrived(scene, "a"))[-1].after

    step = scene.step(scene.arrive(done, "b"))

    # 15 of the 16 tokens were computed: three full blocks.
    assert [event.after for event in step.happened("prefix_hit")] == [(1, 2, 3)]


# --- preemption -----------------------------------------------------------------------------------


def test_row_at_the_front_is_preempted_for_it_joined_last() -> None:
    scene = machine(*(request(id_, 1, 12) for id_ in "abc"), num_blocks=4, reservation=False)
    state = batch(scene, a=(4, 0), b=(4, 0), c=(5, 0))

    step = scene.step(state)

    assert [event.id for event in step.happened("preempt")] == ["a"]
    assert log([step]) == ["b+c"]
    assert [(request.id, request.prefill_len) for request in step.after.waiting] == [("a", 5)]


# --- pausing --------------------------------------------------------------------------------------


def crowd(limit: int, **config: bool) -> tuple[list[Step], State]:
    """A, B and C with 5, 3 and 4 tokens generated; the limit lets only some of them decode."""
    rows = [request(id_, 1, 9) for id_ in "abc"]
    scene = machine(*rows, max_batch_tkv_limit=limit, pausing=True, **config)
    state = batch(scene, a=(5, 0), b=(3, 4), c=(4, 4))
    return steps_from(scene, state, 4), state


def test_row_paused_longest_decodes_first_and_then_the_one_that_generated_least() -> None:
    """Limit 9: any two of them would be at 2 x 5 or more, so they decode one by one."""
    steps, _ = crowd(9)

    assert log(steps) == ["b", "c", "a", "b"]
    assert [[(row.id, row.waited_steps) for row in step.after.paused] for step in steps] == [
        [("c", 1), ("a", 1)],
        [("a", 2), ("b", 1)],
        [("b", 2), ("c", 1)],
        [("c", 2), ("a", 1)],
    ]


def test_row_that_generated_most_decodes_first_if_so_configured() -> None:
    steps, _ = crowd(9, long_output_first=True)

    assert log(steps) == ["a", "c", "b", "a"]


def test_row_that_does_not_fit_is_stepped_over_for_one_that_does() -> None:
    """Limit 22: B and C are at 2 x 8, with A the three would be at 3 x 12, B and A at 2 x 12."""
    scene = machine(*(request(id_, 1, 20) for id_ in "abc"), max_batch_tkv_limit=22, pausing=True)
    state = batch(scene, a=(8, 0), b=(7, 0), c=(7, 0))
    longest_paused = evolve(state.decoding[0], waited_steps=1)

    step = scene.step(state)
    other = scene.step(evolve(state, decoding=state.decoding[1:], paused=(longest_paused,)))

    assert (log([step]), step.volume) == (["b+c"], 16)
    assert (log([other]), other.volume) == (["a"], 9)
