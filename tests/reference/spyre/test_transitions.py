"""Each transition by example: what it does where its guard holds, and that it refuses elsewhere."""

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from reference.core.frozen_map import FrozenMap
from reference.core.guards import GuardError
from reference.spyre import transitions
from reference.spyre.machine import SpyreMachine
from spec.core.records import Event
from spec.spyre.state import State
from tests.reference.scenes import arrived, of_parts, steps_from, steps_to_the_end
from tests.reference.spyre.scenes import admitted, batch, ids, machine
from tests.requests import request

AB = machine(request("a", 1, 20), request("b", 1, 20))
ABC = machine(*(request(id_, 1, 30) for id_ in "abc"))
PAUSING = machine(request("a", 1, 20), request("b", 1, 20), pausing=True)
UNRESERVED = machine(request("a", 1, 20), reservation=False)

# --- arrive and abort -----------------------------------------------------------------------------


def test_arrivals_queue_up_in_their_order() -> None:
    scene = machine(request("a", 3), request("b", 9))

    state = arrived(scene, "b", "a")

    assert [(one.id, one.prefill_len) for one in state.waiting] == [("b", 9), ("a", 3)]


def test_request_arrives_once_and_not_again_after_leaving() -> None:
    scene = machine(request("a", 3, 1))
    waiting = arrived(scene)
    finished = scene.step(waiting).after
    gone = scene.abort(waiting, "a")

    for state in (waiting, finished, gone):
        with pytest.raises(GuardError, match="arrive is not allowed here: LIF-1"):
            scene.arrive(state, "a")


def test_request_that_is_aborted_while_waiting_leaves_the_queue() -> None:
    scene = machine(request("a", 3), request("b", 3))

    assert ids(scene.abort(arrived(scene), "a")) == {"waiting": ["b"], "aborted": ["a"]}


def test_request_that_is_aborted_in_its_prefill_gives_its_blocks_and_its_promise_back() -> None:
    scene = machine(request("a", 20))
    prefilling = scene.step(arrived(scene)).after
    assert prefilling.prefilling is not None
    assert (prefilling.prefilling.blocks, prefilling.prefilling.reserved) == ((1,), 6)

    state = scene.abort(prefilling, "a")

    assert ids(state) == {"aborted": ["a"]}
    assert state.pool.references == {}
    assert state.pool.free == tuple(range(1, 41))


def test_request_that_is_aborted_while_decoding_leaves_the_others_alone() -> None:
    decoding = batch(AB, a=(9, 0), b=(2, 8))

    state = AB.abort(decoding, "a")

    assert ids(state) == {"decoding": ["b"], "aborted": ["a"]}
    assert state.decoding == decoding.decoding[1:]
    assert state.pool.references == {4: 1}
    assert state.pool.free[:3] == (3, 2, 1)


def test_request_that_is_aborted_while_it_is_paused_gives_its_blocks_back() -> None:
    decoding = batch(PAUSING, a=(9, 0), b=(2, 8))
    paused, _ = transitions.pause(PAUSING.ctx, decoding, decoding.decoding[0])

    state = PAUSING.abort(paused, "a")

    assert ids(state) == {"decoding": ["b"], "aborted": ["a"]}
    assert state.pool.references == {4: 1}


def test_what_is_set_aside_stays_so_in_the_release_unless_the_client_leaves_while_it_runs() -> None:
    scene = machine(request("a", 20), request("b", 20), reading="released")
    prefilling = scene.step(arrived(scene, "a")).after

    between, running = scene.abort(prefilling, "a"), scene.abort_running(prefilling, "a")
    again = scene.abort(scene.step(arrived(scene, "b", after=between)).after, "b")

    assert (between.orphaned, running.orphaned, again.orphaned) == (6, 0, 12)
    assert between.pool.free == running.pool.free == tuple(range(1, 41))


def test_blocks_that_another_request_holds_survive_an_abort() -> None:
    scene = machine(of_parts("a", ("s", 8)), of_parts("b", ("s", 8), ("b", 1)), prefix_caching=True)
    state = steps_from(scene, arrived(scene), 3)[-1].after
    assert [one.blocks for one in state.decoding] == [(1, 2, 4), (1, 2, 3)]

    assert scene.abort(state, "a").pool.references == {1: 1, 2: 1, 4: 1}


# --- prefill --------------------------------------------------------------------------------------


def test_admitted_request_moves_from_the_queue_into_the_slot() -> None:
    scene = machine(request("a", 3), request("b", 3))
    state = arrived(scene)

    moved, events = transitions.admit(scene.ctx, state, state.waiting[1])

    assert ids(moved) == {"waiting": ["a"], "prefilling": ["b"]}
    assert events == (Event("admit", "b", "SPY-ADM-1"),)


def test_request_takes_the_cached_blocks_of_its_prompt_and_counts_those_of_whole_chunks() -> None:
    """Chunks of two blocks; three blocks are cached: one chunk is skipped, the third block read."""
    scene = machine(
        of_parts("a", ("s", 12)), of_parts("b", ("s", 12), ("b", 9)), prefix_caching=True
    )
    state = steps_to_the_end(scene, arrived(scene, "a"))[-1].after
    state = scene.arrive(state, "b")
    state, _ = transitions.admit(scene.ctx, state, state.waiting[0])

    moved, events = transitions.prefix_hit(scene.ctx, state)

    assert moved.prefilling is not None
    assert (moved.prefilling.blocks, moved.prefilling.hit_blocks) == ((1, 2, 3), 3)
    assert moved.prefilling.computed == 8
    assert moved.pool.references == {1: 1, 2: 1, 3: 1}
    assert events == (Event("prefix_hit", "b", "SPY-PFX-3", (), (1, 2, 3)),)


def test_request_that_finds_nothing_in_the_cache_is_as_it_was() -> None:
    scene = machine(request("a", 12), prefix_caching=True)
    state, _ = transitions.admit(scene.ctx, arrived(scene), arrived(scene).waiting[0])

    assert transitions.prefix_hit(scene.ctx, state) == (state, ())


def test_reservation_sets_the_worst_case_aside_beyond_the_cached_blocks() -> None:
    """12 tokens of prompt and 8 to generate are five blocks of 4."""
    scene = machine(request("a", 12, 8))
    state, _ = transitions.admit(scene.ctx, arrived(scene), arrived(scene).waiting[0])

    moved, events = transitions.reserve(scene.ctx, state)

    assert moved.prefilling is not None
    assert moved.prefilling.reserved == 5
    assert moved.pool == state.pool
    assert events == (Event("reserve", "a", "SPY-RES-2", 0, 5),)


def test_reservation_is_refused_if_the_free_blocks_are_promised_to_others() -> None:
    scene = machine(request("a", 1, 7), request("b", 1, 7), num_blocks=3)
    first = batch(scene, a=(2, 0))
    promised = evolve(first, decoding=(evolve(first.decoding[0], reserved=1),))
    state = scene.arrive(promised, "b")
    state, _ = transitions.admit(scene.ctx, state, state.waiting[0])

    with pytest.raises(GuardError, match="reserve is not allowed here: SPY-RES-1"):
        transitions.reserve(scene.ctx, state)


def test_chunk_takes_its_blocks_out_of_those_set_aside() -> None:
    """A prompt of 20 tokens is five blocks behind one of padding: three chunks of two."""
    scene = machine(request("a", 20, 8))
    state = admitted(scene)

    state, chunk, events = transitions.chunk(scene.ctx, state)

    assert (chunk.chunk, chunk.chunks, chunk.start, chunk.end) == (0, 3, 0, 4)
    assert (chunk.left_padding, chunk.block_table, chunk.writes) == (4, (0, 1), (0, 1))
    assert state.prefilling is not None
    assert (state.prefilling.computed, state.prefilling.reserved) == (4, 6)
    assert events == (
        Event("allocate", "a", "SPY-CHK-1", (), (1,)),
        Event("chunk", "a", "SPY-CHK-3", 0, 4),
    )

    state, chunk, _ = transitions.chunk(scene.ctx, state)
    assert (chunk.start, chunk.end, chunk.writes) == (4, 12, (2, 3))
    state, chunk, _ = transitions.chunk(scene.ctx, state)
    assert (chunk.start, chunk.end, chunk.writes) == (12, 20, (4, 5))
    assert chunk.block_table == (0, 1, 2, 3, 4, 5)
    assert chunk.is_last


def test_full_blocks_of_a_chunk_can_be_found_at_once_the_last_partial_one_cannot() -> None:
    scene = machine(request("a", 7), prefix_caching=True)

    state, _, _ = transitions.chunk(scene.ctx, admitted(scene))

    assert dict(state.pool.keys) == {1: scene.ctx.keys.of("a", 1)[0]}


def test_request_joins_in_front_of_the_batch_with_its_first_token() -> None:
    scene = machine(request("a", 1, 20), request("b", 3))
    state = scene.arrive(batch(scene, a=(9, 0)), "b")
    state, _, _ = transitions.chunk(scene.ctx, admitted(scene, state))

    joined, events = transitions.join(scene.ctx, state)

    assert ids(joined) == {"decoding": ["b", "a"]}
    assert (joined.decoding[0].computed, joined.decoding[0].generated) == (3, 1)
    assert events == (Event("join", "b", "SPY-CHK-4"),)


def test_a_hit_inside_a_chunk_counts_as_computed_in_the_release() -> None:
    requests = of_parts("a", ("s", 5)), of_parts("b", ("s", 4), ("b", 20))
    slots = []
    for reading in ("text", "released"):
        scene = machine(*requests, prefix_caching=True, reading=reading)
        served = steps_from(scene, arrived(scene), 3)
        slots.append(next(one.after.prefilling for one in served if one.after.prefilling))

    text, released = slots
    assert (text.computed, released.computed) == (8, 12)
    assert len(released.blocks) == len(text.blocks) + 1


# --- decode ---------------------------------------------------------------------------------------


def decoded(state: State) -> tuple[State, list[tuple[str, int, int]]]:
    """The batch after one token each, and every jump of a tkv as (id, from, to)."""
    state, jumps = transitions.pad(ABC.ctx, state)
    state, _ = transitions.extend(ABC.ctx, state)
    state, _ = transitions.decode(ABC.ctx, state)
    return state, [(jump.id, jump.before, jump.after) for jump in jumps]


def tkvs(state: State) -> dict[str, int]:
    return {row.id: row.tkv for row in state.decoding}


Row = tuple[int, int]


TKVS: dict[str, tuple[dict[str, Row], dict[str, int], list[tuple[str, int, int]]]] = {
    "by one where no row crosses a block": ({"a": (9, 0), "b": (2, 8)}, {"a": 10, "b": 11}, []),
    "back for a padded row that crosses a block and gives up a padding block": (
        {"a": (9, 0), "b": (4, 8)},
        {"a": 10, "b": 9},
        [("b", 12, 9)],
    ),
    "forward for all others where an unpadded row crosses a block": (
        {"a": (8, 0), "b": (2, 4), "c": (5, 0)},
        {"a": 9, "b": 11, "c": 10},
        [("b", 6, 11), ("c", 5, 10)],
    ),
    "by one for a row that crosses with the longest and takes the new column": (
        {"a": (8, 0), "b": (4, 4)},
        {"a": 9, "b": 9},
        [],
    ),
    "forward where a longer request has joined": (
        {"a": (9, 0), "b": (2, 0)},
        {"a": 10, "b": 11},
        [("b", 2, 11)],
    ),
}


@pytest.mark.parametrize(("rows", "after", "jumps"), TKVS.values(), ids=TKVS)
def test_tkv_of_a_row_grows(
    rows: dict[str, Row], after: dict[str, int], jumps: list[tuple[str, int, int]]
) -> None:
    state, jumped = decoded(batch(ABC, **rows))

    assert (tkvs(state), jumped) == (after, jumps)


def test_rows_jump_back_when_the_longest_has_left() -> None:
    after, jumps = decoded(ABC.abort(batch(ABC, a=(9, 0), b=(2, 8), c=(5, 4)), "a"))

    assert tkvs(after) == {"b": 7, "c": 6}
    assert jumps == [("b", 10, 7), ("c", 9, 6)]


def test_rows_are_padded_to_equally_many_blocks_and_the_longest_not_at_all() -> None:
    after, _ = decoded(batch(ABC, a=(9, 0), b=(2, 8), c=(5, 4)))

    assert [row.left_padding for row in after.decoding] == [0, 8, 4]
    assert {row.left_padding // 4 + len(row.blocks) for row in after.decoding} == {3}


def test_row_gets_a_block_only_for_the_token_that_starts_one() -> None:
    extended, events = transitions.extend(ABC.ctx, batch(ABC, a=(8, 0), b=(7, 0), c=(4, 4)))

    assert [row.blocks for row in extended.decoding] == [(1, 2, 6), (3, 4), (5, 7)]
    assert events == (
        Event("allocate", "a", "SPY-DEC-5", (1, 2), (6,)),
        Event("allocate", "c", "SPY-DEC-5", (5,), (7,)),
    )


def test_block_that_a_row_fills_can_be_found_from_then_on() -> None:
    scene = machine(request("a", 1, 20), prefix_caching=True)
    state, _ = transitions.extend(scene.ctx, batch(scene, a=(2, 0)))

    third, _ = transitions.decode(scene.ctx, state)
    fourth, _ = transitions.decode(scene.ctx, third)

    assert dict(third.pool.keys) == {}
    assert dict(fourth.pool.keys) == {1: scene.ctx.keys.of("a", 1)[0]}


def test_rows_with_all_their_tokens_leave_and_so_do_those_that_sample_the_end() -> None:
    scene = machine(request("a", 1, 9), request("b", 1, 9), request("c", 1, 9))
    state = batch(scene, a=(9, 0), b=(2, 8), c=(5, 4))

    moved, events = transitions.finish(scene.ctx, state, lambda row: row.id == "b")

    assert ids(moved) == {"decoding": ["c"], "finished": ["a", "b"]}
    assert events == (Event("finish", "a", "LIF-3"), Event("finish", "b", "LIF-3"))
    assert set(moved.pool.references) == {5, 6}


def test_row_does_not_finish_before_the_end() -> None:
    state = batch(ABC, a=(9, 0))

    assert transitions.finish(ABC.ctx, state, lambda _row: False) == (state, ())


# --- preempt, pause, resume -----------------------------------------------------------------------


def test_preempted_request_waits_in_front_without_blocks_and_keeps_its_tokens() -> None:
    scene = machine(request("a", 3, 20), request("b", 1), request("c", 1), reservation=False)
    state = scene.arrive(batch(scene, a=(9, 0), b=(2, 8)), "c")

    moved, events = transitions.preempt(scene.ctx, state, state.decoding[0])

    assert ids(moved) == {"waiting": ["a", "c"], "decoding": ["b"]}
    again = moved.waiting[0]
    assert (again.prefill_len, again.generated, again.computed) == (3 + 7, 7, 0)
    assert (again.blocks, again.left_padding) == ((), 0)
    assert moved.pool.references == {4: 1}
    assert events == (Event("preempt", "a", "SPY-PRE-1"),)


def test_paused_row_keeps_its_tokens_and_blocks() -> None:
    state = batch(PAUSING, a=(9, 0), b=(2, 8))

    moved, events = transitions.pause(PAUSING.ctx, state, state.decoding[0])

    assert ids(moved) == {"decoding": ["b"], "paused": ["a"]}
    assert moved.paused == state.decoding[:1]
    assert moved.pool == state.pool
    assert events == (Event("pause", "a", "SPY-PAU-2"),)


def test_resumed_row_decodes_at_the_end_of_the_batch_and_has_waited_no_more() -> None:
    state = batch(PAUSING, a=(9, 0), b=(2, 8))
    state, _ = transitions.pause(PAUSING.ctx, state, state.decoding[0])
    state = transitions.sit_out(PAUSING.ctx, state, ["a"])
    assert state.paused[0].waited_steps == 1

    moved, events = transitions.resume(PAUSING.ctx, state, state.paused[0])

    assert ids(moved) == {"decoding": ["b", "a"]}
    assert moved.decoding[1].waited_steps == 0
    assert events == (Event("resume", "a", "SPY-PAU-3"),)


def test_rows_that_sit_out_wait_one_step_longer_in_the_order_of_their_judgement() -> None:
    state = batch(ABC, a=(2, 0), b=(2, 0))
    state = evolve(state, decoding=(), paused=state.decoding)

    moved = transitions.sit_out(ABC.ctx, state, ["b", "a"])

    assert [(row.id, row.waited_steps) for row in moved.paused] == [("b", 1), ("a", 1)]


# --- guards ---------------------------------------------------------------------------------------

WAITING = machine(request("a", 3), request("b", 3))
ROW = batch(AB, a=(4, 0)).decoding[0]
ROW_WITHOUT_BLOCKS = evolve(AB.initial(), decoding=(evolve(ROW, blocks=()),))
SLOT_TAKEN, _ = transitions.admit(WAITING.ctx, arrived(WAITING), arrived(WAITING).waiting[0])


@pytest.mark.parametrize(
    ("transition", "rule", "scene", "state", "arguments"),
    [
        ("admit", "SPY-PRI-1", WAITING, SLOT_TAKEN, SLOT_TAKEN.waiting[:1]),
        ("admit", "LIF-1", WAITING, arrived(WAITING), [ROW]),
        ("prefix_hit", "SPY-PFX-3", WAITING, arrived(WAITING), []),
        ("reserve", "SPY-RES-2", WAITING, arrived(WAITING), []),
        ("reserve", "SPY-RES-2", WAITING, admitted(WAITING), []),
        ("chunk", "SPY-PRI-1", WAITING, arrived(WAITING), []),
        ("join", "SPY-CHK-4", WAITING, SLOT_TAKEN, []),
        ("pad", "SPY-DEC-2", WAITING, arrived(WAITING), []),
        ("extend", "BLK-8", AB, ROW_WITHOUT_BLOCKS, []),
        ("decode", "BLK-8", AB, batch(AB, a=(4, 0)), []),
        ("finish", "LIF-3", WAITING, arrived(WAITING), [lambda _row: True]),
        ("preempt", "SPY-PRE-1", AB, batch(AB, a=(4, 0)), [ROW]),  # blocks are reserved
        ("preempt", "SPY-PRE-1", UNRESERVED, arrived(UNRESERVED), [ROW]),  # it is not there
        ("pause", "SPY-PAU-1", AB, arrived(AB), [ROW]),
        ("resume", "SPY-PAU-3", AB, batch(AB, a=(4, 0)), [ROW]),
        ("sit_out", "SPY-PAU-1", AB, batch(AB, a=(4, 0)), [["a"]]),
    ],
)
def test_guard_refuses_by_name(
    transition: str, rule: str, scene: SpyreMachine, state: State, arguments: Sequence[Any]
) -> None:
    with pytest.raises(GuardError) as refused:
        getattr(transitions, transition)(scene.ctx, state, *arguments)

    assert (refused.value.transition, refused.value.rule) == (transition, rule)
    assert str(refused.value) == f"{transition} is not allowed here: {rule}"


def test_request_that_is_not_there_is_not_aborted() -> None:
    with pytest.raises(GuardError, match="abort is not allowed here"):
        AB.abort(AB.initial(), "a")


def test_transitions_leave_the_state_that_they_were_given_alone() -> None:
    state = batch(ABC, a=(8, 0), b=(4, 4))
    before = repr(state)

    decoded(state)
    transitions.pause(ABC.ctx, state, state.decoding[0])
    ABC.abort(state, "b")

    assert repr(state) == before
    assert type(state.pool.references) is FrozenMap
