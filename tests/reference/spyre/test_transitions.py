"""Each transition by example: what it does where its guard holds, and that it refuses elsewhere."""

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from reference.core.frozen_map import FrozenMap
from reference.core.guards import GuardError
from reference.spyre import transitions
from reference.spyre.machine import SpyreMachine
from spec.spyre.state import State
from tests.reference.scenes import arrived, of_parts, steps_from
from tests.reference.spyre.scenes import admitted, batch, machine
from tests.requests import request

AB = machine(request("a", 1, 20), request("b", 1, 20))
ABC = machine(*(request(id_, 1, 30) for id_ in "abc"))
UNRESERVED = machine(request("a", 1, 20), reservation=False)

# --- arrive and abort -----------------------------------------------------------------------------


def test_request_arrives_once_and_not_again_after_leaving() -> None:
    scene = machine(request("a", 3, 1))
    waiting = arrived(scene)
    finished = scene.step(waiting).after
    gone = scene.abort(waiting, "a")

    for state in (waiting, finished, gone):
        with pytest.raises(GuardError, match="arrive is not allowed here: LIF-1"):
            scene.arrive(state, "a")


def test_what_is_set_aside_stays_so_in_the_release_unless_the_client_leaves_while_it_runs() -> None:
    scene = machine(request("a", 20), request("b", 20), reading="released")
    prefilling = scene.step(arrived(scene, "a")).after

    between, running = scene.abort(prefilling, "a"), scene.abort_running(prefilling, "a")
    again = scene.abort(scene.step(arrived(scene, "b", after=between)).after, "b")

    assert (between.orphaned, running.orphaned, again.orphaned) == (6, 0, 12)
    assert between.pool.free == running.pool.free == tuple(range(1, 41))


# --- prefill --------------------------------------------------------------------------------------


def test_a_hit_inside_a_chunk_counts_as_computed_in_the_release() -> None:
    requests = of_parts("a", ("s", 5)), of_parts("b", ("s", 4), ("b", 20))
    slots = []
    for reading in ("text", "released"):
        scene = machine(*requests, prefix_caching=True, reading=reading)
        served = steps_from(scene, arrived(scene), 3)
        slots.append(next(step.after.prefilling for step in served if step.after.prefilling))

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
