"""The waiting queue and the arrays of admitted requests: contents and bounded size."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.core import requests
from engine.core.requests import RequestState, Slots, WaitingQueue, as_prescribed
from engine.core.tensors import NO_TOKENS, Tensor
from tests.requests import request

# --- the queue ------------------------------------------------------------------------------------


def waiting(*names: str) -> tuple[WaitingQueue[RequestState], list[RequestState]]:
    queue, rows = (
        WaitingQueue[RequestState](),
        [RequestState.of(request(name, 3)) for name in names],
    )
    for row in rows:
        queue.put_back(row)
    return queue, rows


def test_places_in_the_queue_go_up_from_front_to_back() -> None:
    queue, (a, b) = waiting("a", "b")
    first, before_it = (RequestState.of(request(name, 3)) for name in "cd")

    queue.put_front(first)
    queue.put_front(before_it)

    assert [row.id for row in queue] == ["d", "c", "a", "b"]
    assert before_it.order < first.order < a.order < b.order


def test_whatever_happens_to_the_queue_is_counted_once() -> None:
    queue, (a, _) = waiting("a", "b")
    seen = [queue.changes]

    queue.remove(a)
    seen.append(queue.changes)
    queue.put_front(a)
    seen.append(queue.changes)

    assert seen == [2, 3, 4]


def test_what_is_taken_out_is_noted_for_an_observer_that_asks() -> None:
    queue, (a, b) = waiting("a", "b")
    queue.remove(a)
    queue.removed = []

    queue.remove(b)

    assert queue.removed == [b]


# --- slots ----------------------------------------------------------------------------------------


def written(slots: Slots, slot: int, count: int) -> list[int]:
    return [int(number) for number in slots.outputs[slot, :count]]


def numbers(*values: int) -> Tensor:
    return np.array(values, np.int64)


def test_a_slot_that_is_given_back_is_taken_again() -> None:
    slots = Slots()
    for _ in range(100):
        slots.give_back(slots.take((1, 2), NO_TOKENS, 5))

    assert len(slots.tables) == len(slots.outputs) == 8


@pytest.mark.parametrize("count", [8, 9, 16, 17, 40])
def test_each_request_has_a_slot_of_its_own_and_arrays_double(count: int) -> None:
    slots = Slots()

    taken = [slots.take((number,), numbers(number), 5) for number in range(count)]

    assert sorted(taken) == [*range(count)]
    assert [slots.tables[slot, 0] for slot in taken] == [*range(count)]
    assert [written(slots, slot, 1) for slot in taken] == [[number] for number in range(count)]
    assert len(slots.tables) == len(slots.outputs) == max(8, 1 << (count - 1).bit_length())


def test_columns_double_where_they_have_to_grow() -> None:
    slots = Slots()
    widths = []
    for most in (16, 17, 20, 33, 200):
        slots.take((), NO_TOKENS, most)
        widths.append(slots.outputs.shape[1])

    assert widths == [16, 32, 32, 64, 200]


FEW, MANY = requests._FEW_ROWS, requests._FEW_ROWS + 1


@pytest.mark.parametrize("rows", [1, FEW, MANY])
def test_tokens_read_later_are_those_that_were_noted(rows: int) -> None:
    slots = Slots()
    places = numbers(*(slots.take((), NO_TOKENS, 900) for _ in range(rows)))
    starts = numbers(*range(rows))
    for step in range(300):
        slots.note(places, starts, step, np.arange(rows) + 10 * step)

    for row in range(rows):
        slot = int(places[row])
        assert written(slots, slot, 300 + row)[row:] == [row + 10 * step for step in range(300)]


def test_other_rows_or_other_starts_begin_at_a_step_of_their_own() -> None:
    slots = Slots()
    two = numbers(slots.take((), NO_TOKENS, 9), slots.take((), NO_TOKENS, 9))
    starts, others = numbers(0, 0), numbers(3, 4)

    slots.note(two, starts, 0, numbers(5, 6))
    slots.note(two, starts, 1, numbers(7, 8))
    slots.note(two, others, 0, numbers(10, 11))
    slots.note(two[:1], others[:1], 1, numbers(12))
    slots.note(two[1:], others[:1], 2, numbers(13))
    slots.note(two[:1], same := numbers(6), 0, numbers(14))
    slots.note(two[1:], same, 1, numbers(15))

    assert written(slots, int(two[0]), 8) == [5, 7, 0, 10, 12, 0, 14, 0]
    assert written(slots, int(two[1]), 8) == [6, 8, 0, 0, 11, 13, 0, 15]


def written_when(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps are written down each time that any are."""
    counts: list[int] = []
    write: Callable[[Slots], None] = Slots._write

    def noted(request: Any) -> None:
        if request._unwritten:
            counts.append(len(request._unwritten))
        write(request)

    monkeypatch.setattr(Slots, "_write", noted)
    return counts


@pytest.mark.parametrize(("rows", "counts"), [(FEW, [256]), (MANY, [1] * 300)])
def test_tokens_of_few_rows_are_written_down_many_steps_at_once(
    rows: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots()
    places = numbers(*(slots.take((), NO_TOKENS, 900) for _ in range(rows)))
    starts = np.zeros(rows, np.int64)
    found = written_when(slots, monkeypatch)

    for step in range(300):
        slots.note(places, starts, step, np.zeros(rows, np.int64))

    assert found == counts


# --- prescribed tokens ----------------------------------------------------------------------------


def test_prescribed_tokens_stand_in_for_those_that_were_sampled_which_stay_as_they_are() -> None:
    row = RequestState.of(request("a", 3, 4, output=(7, 8)))
    sampled = numbers(1, 2)

    for place, expected in ((0, [7, 2]), (1, [8, 2]), (2, [1, 2]), (3, [1, 2])):
        assert as_prescribed(sampled, [row, row], [0], numbers(place, 0)).tolist() == expected
    assert sampled.tolist() == [1, 2]
