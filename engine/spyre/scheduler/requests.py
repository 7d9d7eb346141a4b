"""Requests inside the scheduler: one request, the queue by shape, the rows of a batch."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import deepcopy
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from attrs import define

from engine.core import requests
from engine.core.tensors import Tensor
from spec.spyre.admission import Member
from spec.spyre.reservation import worst_case_blocks

Shape = tuple[int, int]
_Members = OrderedDict[str, "RequestState"]

_FIELDS = 7
_NEVER = 2**62


@define(eq=False)
class RequestState(requests.RequestState):
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    - `reserved`: blocks promised and not handed out.
    - `registered`: leading blocks of its table that lookups can find.
    - `worst_case`: the most blocks that it may ever hold; 0 until computed.
    """

    reserved: int = 0
    registered: int = 0
    worst_case: int = 0

    @property
    def remaining(self) -> int:
        """Tokens that it may still generate, as long as it does not decode."""
        return self.request.max_tokens - (self.prefill_len - self.request.prompt_len)

    @property
    def shape(self) -> Shape:
        """Tokens to prefill and tokens that it may still generate, for the volume rules."""
        return self.prefill_len, self.remaining

    def worst_case_blocks(self, block_size: int) -> int:
        """The most blocks that the request may ever hold."""
        if not self.worst_case:
            self.worst_case = int(worst_case_blocks(self.prefill_len, self.remaining, block_size))
        return self.worst_case


# --- requests that wait ---------------------------------------------------------------------------


class Line:
    """The head of the queue from which the next request is chosen, narrowest row first.

    An open line admits newcomers until it is full. The first admission closes it: from then on only
    preempted requests join it.
    """

    def __init__(self, alike: int, most: float) -> None:
        """An empty line.

        `alike`: width in tokens up to which rows count as equal. `most`: capacity of an open line;
        with an infinite one the line never closes.
        """
        self._alike, self._most = alike, most
        self._entries: list[tuple[int, int, RequestState]] = []
        self._is_closed = False

    @property
    def cohort(self) -> int:
        """Requests left in a closed line, else 0."""
        return len(self._entries) if self._is_closed else 0

    def in_order(self) -> Iterator[RequestState]:
        """The requests, the narrowest first; of equal ones the first in the queue."""
        return (request for _, _, request in self._entries)

    def is_wide(self, request: RequestState) -> bool:
        """True if the request is wider than `alike`."""
        return sum(request.shape) > self._alike

    def close(self) -> None:
        """A request of the line is admitted."""
        self._is_closed = self._most < inf

    def arrived(self, request: RequestState) -> None:
        """The request stands at the end of the queue."""
        if not self._is_closed and len(self._entries) < self._most:
            insort(self._entries, self._entry(request))

    def came_back(self, request: RequestState, queue: Iterable[RequestState]) -> None:
        """The request stands at the head of the queue."""
        if self._is_closed:
            insort(self._entries, self._entry(request))
        else:
            self._open(queue)

    def left(self, request: RequestState, queue: Iterable[RequestState]) -> None:
        """The request has left the queue."""
        was_full = len(self._entries) >= self._most
        entry = self._entry(request)
        place = bisect_left(self._entries, entry)
        if self._entries[place : place + 1] == [entry]:
            del self._entries[place]
        if not self._entries or (was_full and not self._is_closed):
            self._open(queue)

    def _open(self, queue: Iterable[RequestState]) -> None:
        self._is_closed = False
        most = None if self._most == inf else int(self._most)
        self._entries = sorted(map(self._entry, islice(queue, most)))

    def _entry(self, request: RequestState) -> tuple[int, int, RequestState]:
        return max(sum(request.shape), self._alike), request.order, request


class WaitingQueue(requests.WaitingQueue[RequestState]):
    """The waiting requests in order, indexed by shape or by width for the overtaking queues."""

    def __init__(self, *, by_shape: bool = False, line: Line | None = None) -> None:
        """`by_shape`: whether `without_shapes` will be called; `line`: for a choice by width."""
        super().__init__()
        self._line = line
        self._shapes: dict[Shape, _Members] | None = {} if by_shape else None
        self._table: Tensor | None = None

    @property
    def cohort(self) -> int:
        """Requests at the head that are all admitted before any other."""
        return 0 if self._line is None else self._line.cohort

    def first_in_line(self, held_back: Container[str] = ()) -> RequestState | None:
        """The request to be judged first: the head of the queue, or the narrowest.

        `held_back`: ids of those that are passed over.
        """
        line = self if self._line is None else self._line.in_order()
        return next((request for request in line if request.id not in held_back), None)

    def yields_to(self, rows: int, first: RequestState) -> bool:
        """True if the first request in line waits while `rows` rows decode (rule SPY-PRI-11)."""
        return self._line is not None and rows > len(self) + 1 and self._line.is_wide(first)

    def put_back(self, request: RequestState) -> None:
        """A new request goes to the end."""
        super().put_back(request)
        if self._line is not None:
            self._line.arrived(request)
        self._note_shape(request)

    def put_front(self, request: RequestState) -> None:
        """A preempted request goes before all others."""
        super().put_front(request)
        if self._line is not None:
            self._line.came_back(request, self)
        if self._shapes is not None:
            self._note_shape(request)
            self._shapes[request.shape].move_to_end(request.id, last=False)

    def admit(self, request: RequestState) -> None:
        """Remove the request, which was chosen."""
        if self._line is not None:
            self._line.close()
        self.remove(request)

    def remove(self, request: RequestState) -> None:
        """Remove the request."""
        super().remove(request)
        if self._line is not None:
            self._line.left(request, self)
        if self._shapes is not None:
            del self._shapes[request.shape][request.id]
            if not self._shapes[request.shape]:
                del self._shapes[request.shape]
                self._table = None

    def _note_shape(self, request: RequestState) -> None:
        if self._shapes is None:
            return
        if request.shape not in self._shapes:
            self._shapes[request.shape] = OrderedDict()
            self._table = None
        self._shapes[request.shape][request.id] = request

    def shapes(self) -> Tensor:
        """The shapes of the waiting requests; [shapes, 2]."""
        if self._table is None:
            self._table = np.array(list(self._shapes or ()), np.int64).reshape(-1, 2)
        return self._table

    def without_shapes(self, is_left_out: Callable[[RequestState], bool]) -> Iterator[RequestState]:
        """The requests in order, without the shapes whose first request is left out.

        `is_left_out` is called once per shape, lazily. The queue must not change meanwhile.
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


def _head(members: Iterator[RequestState]) -> tuple[int, RequestState, Iterator[RequestState]]:
    """The first of a shape with its place in the queue, and those behind it."""
    first = next(members)
    return first.order, first, members


# --- requests that decode or are paused ----------------------------------------------------------


class Batch:
    """Rows that decode, or are paused, in batch order; arrays [rows], lengths in tokens.

    - `computed`: tokens in the KV cache.
    - `left_padding`: of the row's last decode step.
    - `ends_at`, `full_at`: computed tokens at which the request ends by itself, and at which it
      has `max_tokens` tokens.
    - `prompt_len`: as in `Request`.
    - `slot`: the row's place in `Slots`.
    - `waited_steps`: steps that the row sat out since it was paused, see `spec.spyre.state`.
    - `outputs`: sampled tokens, without the newest, when the batch was made.

    `tkv` is that of the last decode step of exactly these rows, 0 before the first. `steps_to_end`
    and `steps_to_full` are decode steps until the first row reaches `ends_at` and `full_at`.
    `table` [rows, width]: the padded one that the device was last given of exactly these rows.

    Members never change: joining and leaving make a new batch. A step updates computed tokens and
    padding in place.
    """

    def __init__(self, members: Sequence[RequestState], matrix: Tensor) -> None:
        """`matrix` [fields, rows] becomes the batch's own."""
        self.members = members
        self._matrix = matrix
        self._computed: Tensor
        (
            self._computed,
            self.left_padding,
            self.ends_at,
            self.full_at,
            self.prompt_len,
            self.slot,
            self.waited_steps,
        ) = matrix
        self.tkv = 0
        self._uncounted = 0  # decode steps of this batch that are not added to `_computed`
        self.outputs: Tensor = self._computed - self.prompt_len
        self.table: Tensor | None = None
        self.steps_to_end = int((self.ends_at - self._computed).min(initial=_NEVER))
        self.steps_to_full = int((self.full_at - self._computed).min(initial=_NEVER))
        self._ids: tuple[str, ...] | None = None
        self._prescribed: list[int] | None = None

    @staticmethod
    def empty() -> "Batch":
        """No row."""
        return Batch((), np.empty((_FIELDS, 0), np.int64))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Batch":
        copy = Batch([deepcopy(member, memo) for member in self.members], self.matrix.copy())
        copy.tkv = self.tkv
        return copy

    def __len__(self) -> int:
        return len(self.members)

    @property
    def computed(self) -> Tensor:
        """Tokens in the KV cache."""
        if self._uncounted:
            self._computed += self._uncounted
            self._uncounted = 0
        return self._computed

    @property
    def total_computed(self) -> int:
        """Tokens in the KV cache, of all rows together."""
        return int(self._computed.sum()) + self._uncounted * len(self.members)

    @property
    def matrix(self) -> Tensor:
        """All fields of the rows, [fields, rows], up to date."""
        _ = self.computed  # up to now
        return self._matrix

    @property
    def ids(self) -> tuple[str, ...]:
        """The requests' names in batch order."""
        if self._ids is None:
            self._ids = tuple(member.id for member in self.members)
        return self._ids

    def generated(self) -> Tensor:
        """Tokens that each row has sampled: its newest one is not cached."""
        generated: Tensor = self.computed - self.prompt_len + 1
        return generated

    def remaining(self) -> Tensor:
        """Tokens that each row may still generate."""
        remaining: Tensor = self.full_at - self.computed
        return remaining

    def as_members(self) -> list[Member]:
        """The rows as the admission rules of the specification take them."""
        lengths, remaining = self.computed.tolist(), self.remaining().tolist()
        return [Member(*pair) for pair in zip(lengths, remaining, strict=True)]

    @property
    def prescribed(self) -> list[int]:
        """Indices of rows whose requests prescribe their tokens."""
        if self._prescribed is None:
            self._prescribed = requests.prescribed(self.members)
        return self._prescribed

    def advance(self, tkv: int) -> None:
        """Every row has computed one more token, in a step of this tkv."""
        self.tkv = tkv
        self._uncounted += 1
        self.steps_to_end -= 1
        self.steps_to_full -= 1

    def with_front(self, newcomer: RequestState) -> "Batch":
        """The batch with a request in front that has just computed its prefill."""
        request = newcomer.request
        last = request.prompt_len - 1
        lengths = newcomer.prefill_len, 0, last + request.end, last + request.max_tokens
        own = np.array([*lengths, request.prompt_len, newcomer.slot, 0], np.int64)
        return Batch((newcomer, *self.members), np.column_stack([own, self.matrix]))

    def of_rows(self, rows: Sequence[int]) -> "Batch":
        """These rows only, in this order."""
        return Batch([self.members[row] for row in rows], self.matrix[:, list(rows)])

    def without(self, rows: Sequence[int]) -> "Batch":
        """The batch without these rows."""
        gone = set(rows)
        return self.of_rows([row for row in range(len(self)) if row not in gone])

    def concatenated(self, other: "Batch") -> "Batch":
        """The rows of both, the other's behind."""
        members = (*self.members, *other.members)
        return Batch(members, np.concatenate([self.matrix, other.matrix], axis=1))
