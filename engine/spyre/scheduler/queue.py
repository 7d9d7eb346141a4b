"""The queue of those that wait, also by shape, for the rule that lets requests overtake."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

import numpy as np

from engine.core.tensors import Tensor
from engine.spyre.scheduler.tracked import Shape, Tracked

_Members = OrderedDict[str, Tracked]


class WaitingQueue:
    """Who waits, first to last; adding, removing and the first cost the same however many wait.

    `changes` counts what happened to it, so that an observer sees whether anything did.
    """

    def __init__(self, by_shape: bool) -> None:
        """`by_shape`: whether `leaving_out` will be asked for."""
        self._requests: _Members = OrderedDict()
        self._shapes: dict[Shape, _Members] | None = {} if by_shape else None
        self._table: Tensor | None = None
        self._front = self._back = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._requests.values())

    def __reversed__(self) -> Iterator[Tracked]:
        return reversed(self._requests.values())

    def copy(self, copies: Mapping[Tracked, Tracked]) -> "WaitingQueue":
        """The same queue of the requests' copies."""
        twin = WaitingQueue(by_shape=self._shapes is not None)
        for one in self:
            twin.put_back(copies[one])
        return twin

    def find(self, request_id: str) -> Tracked | None:
        """The request of this name, if it waits."""
        return self._requests.get(request_id)

    def put_back(self, request: Tracked) -> None:
        """A new request goes to the end."""
        self._back += 1
        request.order = self._back
        self._requests[request.id] = request
        if self._shapes is not None:
            if request.shape not in self._shapes:
                self._shapes[request.shape] = OrderedDict()
                self._table = None
            self._shapes[request.shape][request.id] = request
        self.changes += 1

    def put_front(self, request: Tracked) -> None:
        """A preempted request goes before all others."""
        self.put_back(request)
        self._front -= 1
        request.order = self._front
        self._requests.move_to_end(request.id, last=False)
        if self._shapes is not None:
            self._shapes[request.shape].move_to_end(request.id, last=False)

    def remove(self, request: Tracked) -> None:
        """The request waits no longer."""
        del self._requests[request.id]
        if self._shapes is not None:
            del self._shapes[request.shape][request.id]
            if not self._shapes[request.shape]:
                del self._shapes[request.shape]
                self._table = None
        self.changes += 1

    def shapes(self) -> Tensor:
        """The shapes of those that wait; [shapes, 2]."""
        if self._table is None:
            self._table = np.array(list(self._shapes or ()), np.int64).reshape(-1, 2)
        return self._table

    def leaving_out(self, is_left_out: Callable[[Tracked], bool]) -> Iterator[Tracked]:
        """Who waits, first to last, without the shapes whose first request is left out.

        That is asked once for each shape, when its turn comes. The queue must not change meanwhile.
        """
        assert self._shapes is not None, "the queue was made without shapes"
        heads = [_head(iter(members.values())) for members in self._shapes.values()]
        heapify(heads)
        asked: set[Shape] = set()
        while heads:
            _, first, behind = heads[0]
            if first.shape not in asked:
                asked.add(first.shape)
                if is_left_out(first):
                    heappop(heads)
                    continue
            yield first
            following = next(behind, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.order, following, behind))


def _head(members: Iterator[Tracked]) -> tuple[int, Tracked, Iterator[Tracked]]:
    """The first of a shape with its place in the queue, and those behind it."""
    first = next(members)
    return first.order, first, members
