"""Requests inside a scheduler: request state, waiting queue, arrays of admitted requests."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, Self, TypeVar

import numpy as np
from attrs import define

from engine.core.blocks import PrefixHit
from engine.core.tensors import NO_TOKENS, Tensor
from spec.core.requests import BlockKey, Request

_FIRST_ROWS, _FIRST_COLUMNS = 8, 16
_FEW_ROWS = 8  # up to this many rows tokens are buffered, as a write would dominate the step
_MOST_UNWRITTEN = 256  # steps whose tokens are buffered at most


@define(eq=False)
class RequestState:
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    - `prefill_len`: length of its prefill: the prompt and, after a preemption, `outputs`.
    - `outputs`: tokens that it sampled before this prefill.
    - `computed`: tokens in the KV cache; not updated while it decodes.
    - `blocks`: its block table without padding.
    - `hit_blocks`: cached blocks that it reused when it was admitted.
    - `hashes`: hashes of its leading full blocks, computed when they are first needed.
    - `runs`: the parts of its prompt, where blocks are named by streams (`StreamKeys`).
    - `slot`: its row in the arrays of `Slots`, -1 before it has one.
    - `order`: sorts the queue: smaller than that of any request behind it.
    - `hit`: the result of the last prefix lookup of its prompt.
    """

    request: Request
    prefill_len: int
    outputs: Tensor = NO_TOKENS
    computed: int = 0
    blocks: tuple[int, ...] = ()
    hit_blocks: int = 0
    hashes: tuple[BlockKey, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()
    slot: int = -1
    order: int = 0
    hit: PrefixHit | None = None

    @classmethod
    def of(cls, request: Request) -> Self:
        """A request that has just arrived."""
        return cls(request, request.prompt_len)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    def again(self, outputs: Tensor) -> Self:
        """The request after a preemption: it holds no block and prefills prompt and `outputs`."""
        length = self.request.prompt_len + len(outputs)
        return type(self)(self.request, length, outputs, hashes=self.hashes)


RequestT = TypeVar("RequestT", bound=RequestState)


# --- requests that wait ---------------------------------------------------------------------------


class WaitingQueue(Generic[RequestT]):
    """The waiting requests in order; insertion, removal and the head cost O(1).

    `changes`: number of insertions, removals and others so far, by which an observer sees them.
    `removed`: removed or changed requests that it has not seen; None if there is no observer.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[str, RequestT] = OrderedDict()
        self._front = self._back = 0
        self.changes = 0
        self.removed: list[RequestT] | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RequestT]:
        return iter(self._requests.values())

    def __reversed__(self) -> Iterator[RequestT]:
        return reversed(self._requests.values())

    def find(self, request_id: str) -> RequestT | None:
        """The waiting request with this id, or None."""
        return self._requests.get(request_id)

    def put_back(self, request: RequestT) -> None:
        """Insert a new request at the end."""
        self._back += 1
        self._enter(request, self._back)

    def put_front(self, request: RequestT) -> None:
        """Insert a preempted request at the front."""
        self._front -= 1
        self._enter(request, self._front)
        self._requests.move_to_end(request.id, last=False)

    def has_changed(self, request: RequestT) -> None:
        """A request has other tokens than before, and its place."""
        self.changes += 1
        if self.removed is not None:
            self.removed.append(request)

    def _enter(self, request: RequestT, order: int) -> None:
        request.order = order
        self._requests[request.id] = request
        self.changes += 1

    def remove(self, request: RequestT) -> None:
        """Remove a request from any place in the queue."""
        del self._requests[request.id]
        self.changes += 1
        if self.removed is not None:
            self.removed.append(request)


# --- requests that are admitted -------------------------------------------------------------------


class Slots:
    """Block tables and sampled tokens of admitted requests in arrays with a row (slot) for each.

    `tables` [slots, blocks]: block tables. `outputs` [slots, tokens]: sampled tokens. Both grow on
    demand; entries behind a request's own are unused. A step writes the tokens of all its rows in
    one operation; for small batches, the tokens of several steps are buffered.
    """

    def __init__(self) -> None:
        self.tables: Tensor = np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), np.int64)
        self._outputs: Tensor = np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), np.int64)
        self._free = list(range(_FIRST_ROWS))[::-1]
        self._rows = self._starts = NO_TOKENS
        self._first = 0
        self._unwritten: list[Tensor] = []

    @property
    def outputs(self) -> Tensor:
        """Sampled tokens of the request in each slot, [slots, tokens]."""
        if self._unwritten:
            self._write()
        return self._outputs

    def note(self, rows: Tensor, starts: Tensor, step: int, tokens: Tensor) -> None:
        """Record that the slots `rows` sampled `tokens`, all [rows], as outputs `starts + step`.

        The caller gives the tensors away. If `rows` and `starts` are the same objects as in the
        last call, `step` must be the last one plus 1.
        """
        if rows is not self._rows or starts is not self._starts:
            self._write()
            self._rows, self._starts, self._first = rows, starts, step
        self._unwritten.append(tokens)
        if len(tokens) > _FEW_ROWS or len(self._unwritten) == _MOST_UNWRITTEN:
            self._write()

    def _write(self) -> None:
        steps = len(self._unwritten)
        places = self._starts + self._first
        if steps == 1:
            (self._outputs[self._rows, places],) = self._unwritten
        elif steps:
            columns = places[:, np.newaxis] + np.arange(steps)
            self._outputs[self._rows[:, np.newaxis], columns] = np.stack(self._unwritten, axis=1)
        self._unwritten.clear()
        self._first += steps

    def take(self, table: Sequence[int], outputs: Tensor, max_tokens: int) -> int:
        """A slot for a request with this block table, sampled tokens and `max_tokens`."""
        self._write()
        if not self._free:
            rows = len(self.tables)
            self.tables = np.concatenate([self.tables, np.zeros_like(self.tables)])
            self._outputs = np.concatenate([self._outputs, np.zeros_like(self._outputs)])
            self._free = list(range(rows, 2 * rows))[::-1]
        slot = self._free.pop()
        self._outputs = _widened(self._outputs, max_tokens)
        self._outputs[slot, : len(outputs)] = outputs
        self.write_blocks(slot, 0, table)
        return slot

    def give_back(self, slot: int) -> None:
        """Free the slot of a request that has left the batch."""
        self._free.append(slot)

    def write_blocks(self, slot: int, start: int, blocks: Sequence[int]) -> None:
        """Write `blocks` to the request's block table from index `start` on."""
        self.tables = _widened(self.tables, start + len(blocks))
        self.tables[slot, start : start + len(blocks)] = blocks


class UnseenSlots(Slots):
    """Slots of requests whose tokens and tables no device looks at: every token is 0."""

    @property
    def outputs(self) -> Tensor:
        """As many zeros as are asked for, [slots, tokens]."""
        return _ZEROS

    def note(self, rows: Tensor, starts: Tensor, step: int, tokens: Tensor) -> None:
        """Nothing is recorded."""

    def take(self, table: Sequence[int], outputs: Tensor, max_tokens: int) -> int:
        """The only slot."""
        return 0

    def give_back(self, slot: int) -> None:
        """The slot is everybody's."""

    def write_blocks(self, slot: int, start: int, blocks: Sequence[int]) -> None:
        """Nothing is recorded."""


_ZEROS: Tensor = np.broadcast_to(np.int64(0), (1, 2**20))


def _widened(array: Tensor, columns: int) -> Tensor:
    """The array with at least `columns` columns; if it has to grow, its width at least doubles."""
    rows, present = array.shape
    if columns <= present:
        return array
    wider = np.zeros((rows, max(columns, 2 * present)), np.int64)
    wider[:, :present] = array
    return wider


# --- prescribed output tokens ---------------------------------------------------------------------


def prescribed(rows: Sequence[RequestState]) -> list[int]:
    """Indices of the rows whose requests prescribe their output tokens."""
    return [place for place, row in enumerate(rows) if row.request.output is not None]


def as_prescribed(
    tokens: Tensor, rows: Sequence[RequestState], which: Sequence[int], places: Tensor
) -> Tensor:
    """`tokens` [rows], replaced by prescribed output tokens where requests have them.

    `which`: indices of the rows with prescribed tokens. `places` [rows]: index of the new token
    among each row's outputs.
    """
    tokens = tokens.copy()
    for row in which:
        output, place = rows[row].request.output or (), int(places[row])
        if place < len(output):
            tokens[row] = output[place]
    return tokens
