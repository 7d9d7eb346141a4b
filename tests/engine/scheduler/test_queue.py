"""Waiting requests in order, and without the shapes that are left out."""

from math import inf

from engine.spyre.scheduler.requests import Line, RequestState, WaitingQueue
from tests.requests import request


def queue_of(*sizes: tuple[int, int]) -> WaitingQueue:
    """Requests 0, 1, … with these prompt lengths and maximum outputs."""
    queue = WaitingQueue(by_shape=True)
    for index, (length, tokens) in enumerate(sizes):
        queue.put_back(RequestState.of(request(str(index), length, tokens)))
    return queue


def names(requests: object) -> str:
    return " ".join(request.id for request in requests)  # type: ignore[attr-defined]


def no_shape(_: RequestState) -> bool:
    return False


def test_all_come_in_order_whatever_the_shape() -> None:
    queue = queue_of((3, 3), (5, 3), (3, 3), (4, 4), (5, 3))

    assert names(queue) == names(queue.without_shapes(no_shape)) == "0 1 2 3 4"


def test_first_of_a_shape_answers_for_all() -> None:
    queue = queue_of((3, 3), (5, 3), (3, 3), (4, 4), (5, 3))
    asked = []

    def short(request: RequestState) -> bool:
        asked.append(request.id)
        return request.prefill_len < 5

    assert names(queue.without_shapes(short)) == "1 4"
    assert asked == ["0", "1", "3"]


def test_shapes_are_those_of_the_requests_that_wait() -> None:
    queue = queue_of((3, 3), (5, 3))
    assert queue.shapes().tolist() == [[3, 3], [5, 3]]

    queue.put_back(RequestState.of(request("new", 7, 2)))
    assert queue.shapes().tolist() == [[3, 3], [5, 3], [7, 2]]
    queue.remove(next(iter(queue)))

    assert queue.shapes().tolist() == [[5, 3], [7, 2]]


def test_preempted_requests_come_first_the_last_before_the_others() -> None:
    queue = queue_of((3, 3), (5, 3))
    for name in ("a", "b"):
        queue.put_front(RequestState.of(request(name, 3, 3)))

    assert names(queue) == names(queue.without_shapes(no_shape)) == "b a 0 1"


# --- by width -------------------------------------------------------------------------------------


def aligned(*lengths: int, most: float = inf, alike: int = 0) -> WaitingQueue:
    """Requests 0, 1, … with prompts of these lengths, one token each."""
    queue = WaitingQueue(line=Line(alike, most))
    for index, length in enumerate(lengths):
        queue.put_back(RequestState.of(request(str(index), length, 1)))
    return queue


def first(queue: WaitingQueue) -> RequestState:
    """The request that is judged first."""
    request = queue.first_in_line()
    assert request is not None
    return request


def admitted(queue: WaitingQueue) -> str:
    """All that wait, as they are admitted."""
    order = []
    while queue:
        order.append(first(queue))
        queue.admit(order[-1])
    return names(order)


def test_narrowest_is_first_in_line_and_of_several_the_one_that_came_first() -> None:
    assert admitted(aligned(5, 3, 4, 3)) == "1 3 2 0"
    assert admitted(aligned(5, 3, 6, 3, alike=6)) == "0 1 3 2"


def test_line_is_admitted_whole_before_the_next_one() -> None:
    assert admitted(aligned(7, 6, 4, 5, 3, most=2)) == "1 0 2 3 4"


def test_cohort_is_what_is_left_of_a_line_that_has_begun() -> None:
    queue = aligned(7, 6, 4, 5, most=3)
    assert queue.cohort == 0

    queue.admit(first(queue))
    queue.put_back(RequestState.of(request("late", 1, 1)))
    assert (queue.cohort, first(queue).id) == (2, "1")

    queue.put_front(RequestState.of(request("back", 9, 1)))
    assert (queue.cohort, names(queue)) == (3, "back 0 1 3 late")


def test_line_that_has_not_begun_is_filled_again_when_one_of_it_goes_away() -> None:
    queue = aligned(7, 6, 4, most=2)
    gone = queue.find("1")
    assert gone is not None

    queue.remove(gone)

    assert (queue.cohort, admitted(queue)) == (0, "2 0")


def test_without_an_end_newcomers_always_join() -> None:
    queue = aligned(7, 6)
    queue.admit(first(queue))
    queue.put_back(RequestState.of(request("late", 1, 1)))

    assert (queue.cohort, admitted(queue)) == (0, "late 0")


def test_request_that_is_held_back_is_not_first_in_line() -> None:
    for queue, names in ((aligned(5, 3, 4), "120"), (queue_of((5, 1), (3, 1), (4, 1)), "012")):
        line = [queue.first_in_line(names[:count]) for count in range(4)]

        assert [request and request.id for request in line] == [*names, None]
