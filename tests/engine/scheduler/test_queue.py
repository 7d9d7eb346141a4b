"""Waiting requests in order, and without the shapes that are left out."""

from engine.spyre.scheduler.requests import RequestState, WaitingQueue
from tests.requests import request


def queue_of(*sizes: tuple[int, int]) -> WaitingQueue:
    """Requests 0, 1, … with these prompt lengths and maximum outputs."""
    queue = WaitingQueue(by_shape=True, by_length=False)
    for index, (length, tokens) in enumerate(sizes):
        queue.put_back(RequestState.of(request(str(index), length, tokens)))
    return queue


def names(requests: object) -> str:
    return " ".join(one.id for one in requests)  # type: ignore[attr-defined]


def no_shape(_: RequestState) -> bool:
    return False


def test_all_come_in_order_whatever_the_shape() -> None:
    queue = queue_of((3, 3), (5, 3), (3, 3), (4, 4), (5, 3))

    assert names(queue) == names(queue.without_shapes(no_shape)) == "0 1 2 3 4"


def test_first_of_a_shape_answers_for_all() -> None:
    queue = queue_of((3, 3), (5, 3), (3, 3), (4, 4), (5, 3))
    asked = []

    def short(one: RequestState) -> bool:
        asked.append(one.id)
        return one.prefill_len < 5

    assert names(queue.without_shapes(short)) == "1 4"
    assert asked == ["0", "1", "3"]


def test_request_is_asked_when_its_turn_comes() -> None:
    queue = queue_of((3, 3), (5, 3), (4, 4))
    asked = []

    def noted(one: RequestState) -> bool:
        asked.append(one.id)
        return False

    assert next(queue.without_shapes(noted)).id == "0"
    assert asked == ["0"]


def test_preempted_requests_come_first_the_last_before_the_others() -> None:
    queue = queue_of((3, 3), (5, 3))
    for name in ("a", "b"):
        queue.put_front(RequestState.of(request(name, 3, 3)))

    assert names(queue) == names(queue.without_shapes(no_shape)) == "b a 0 1"


def test_shapes_are_those_of_requests_that_still_wait() -> None:
    queue = queue_of((3, 3), (5, 3), (3, 3))
    assert queue.shapes().tolist() == [[3, 3], [5, 3]]

    for name in ("1", "2"):
        one = queue.find(name)
        assert one is not None
        queue.remove(one)

    assert queue.shapes().tolist() == [[3, 3]]
    assert names(queue.without_shapes(no_shape)) == "0"
    assert queue.find("1") is None


def test_every_change_is_counted() -> None:
    queue = queue_of((3, 3))
    one = queue.find("0")
    assert one is not None

    counts = [queue.changes]
    queue.remove(one)
    counts.append(queue.changes)
    queue.put_front(one)
    counts.append(queue.changes)

    assert counts[0] < counts[1] < counts[2]
