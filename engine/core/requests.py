"""Requests inside a scheduler: one request, the waiting queue, what the admitted have in arrays."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, Self, TypeVar

import numpy as np
from attrs import define

from engine.core.blocks import PrefixHit
from engine.core.tensors import NO_TOKENS, Tensor
from spec.core.requests import BlockKey, Request

_FIRST_ROWS, _FIRST_COLUMNS = 8, 16
_FEW_ROWS = 8  # whose tokens are kept for a while: for so few, writing them down costs most
_MOST_UNWRITTEN = 256  # steps whose tokens are written down at once


@define(eq=False)
class RequestState:
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    - `prefill_len`: tokens that its prefill covers: the prompt and, after a preemption, `outputs`.
    - `outputs`: tokens that it had sampled before this prefill.
    - `computed`: tokens in the KV cache, as long as it does not decode.
    - `blocks`: its block table without padding.
    - `hit_blocks`: cached blocks found when it was admitted.
    - `hashes`: of its leading full blocks, as far as they were needed; each is made once.
    - `slot`: its place in the arrays of the admitted, -1 before it has one.
    - `order`: its place in the queue, less than that of any request behind it.
    - `hit`: what the last lookup of its prompt found.
    """

    request: Request
    prefill_len: int
    outputs: Tensor = NO_TOKENS
    computed: int = 0
    blocks: tuple[int, ...] = ()
    hit_blocks: int = 0
    hashes: tuple[BlockKey, ...] = ()
    slot: int = -1
    order: int = 0
    hit: PrefixHit | None = None

    @classmethod
    def of(cls, request: Request) -> Self:
        """A request that has just arrived."""
        return cls(request, request.prompt_len)

    @property
    def id(self) -> str:
        """The request's name."""
        return self.request.id

    def again(self, outputs: Tensor) -> Self:
        """The request without anything that it held, to compute its prompt and `outputs` anew."""
        length = self.request.prompt_len + len(outputs)
        return type(self)(self.request, length, outputs, hashes=self.hashes)


RequestT = TypeVar("RequestT", bound=RequestState)


# --- requests that wait ---------------------------------------------------------------------------


class WaitingQueue(Generic[RequestT]):
    """The waiting requests in order; adding, removing and the first cost the same at any length.

    `changes` counts what happened to the queue, so that an observer sees whether anything did.
    `removed`: requests that were taken out, where an observer wants them noted for it.
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
        """The request of this name, if it waits."""
        return self._requests.get(request_id)

    def put_back(self, request: RequestT) -> None:
        """A new request goes to the end."""
        self._back += 1
        self._enter(request, self._back)

    def put_front(self, request: RequestT) -> None:
        """A preempted request goes before all others."""
        self._front -= 1
        self._enter(request, self._front)
        self._requests.move_to_end(request.id, last=False)

    def _enter(self, request: RequestT, order: int) -> None:
        request.order = order
        self._requests[request.id] = request
        self.changes += 1

    def remove(self, request: RequestT) -> None:
        """The request waits no longer."""
        del self._requests[request.id]
        self.changes += 1
        if self.removed is not None:
            self.removed.append(request)


# --- requests that are admitted -------------------------------------------------------------------


class Slots:
    """Arrays with a row for each request that decodes or may again; the rest of them is unused.

    `tables` [slots, blocks]: their blocks. `outputs` [slots, tokens]: the tokens that they sampled.
    Both grow when needed, so that a step's tokens are one operation for any number of rows; of few
    rows, those of many steps are one.
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
        """The tokens that the request in each slot has sampled, [slots, tokens]."""
        if self._unwritten:
            self._write()
        return self._outputs

    def note(self, rows: Tensor, starts: Tensor, step: int, tokens: Tensor) -> None:
        """The requests in these slots sampled `tokens`, [rows]; each its token `starts + step`.

        The tensors become the slots' own. As long as `rows` and `starts` are the same objects, the
        step is one more than the last time.
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
        """A slot for a request with these blocks and tokens, which may get `max_tokens` of them."""
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
        """The request that had the slot has left the batch."""
        self._free.append(slot)

    def write_blocks(self, slot: int, start: int, blocks: Sequence[int]) -> None:
        """The request's table holds `blocks` from index `start` on."""
        self.tables = _widened(self.tables, start + len(blocks))
        self.tables[slot, start : start + len(blocks)] = blocks


def _widened(array: Tensor, columns: int) -> Tensor:
    """The array with at least so many columns, at least twice as many if it has to grow."""
    rows, present = array.shape
    if columns <= present:
        return array
    wider = np.zeros((rows, max(columns, 2 * present)), np.int64)
    wider[:, :present] = array
    return wider


# --- tokens that requests prescribe ---------------------------------------------------------------


def prescribed(rows: Sequence[RequestState]) -> list[int]:
    """Rows whose requests say which tokens they sample."""
    return [row for row, one in enumerate(rows) if one.request.output is not None]


def as_prescribed(
    tokens: Tensor, rows: Sequence[RequestState], which: Sequence[int], places: Tensor
) -> Tensor:
    """What the rows sample as the outputs at these places: the tokens [rows], unless they say."""
    tokens = tokens.copy()
    for row in which:
        output, place = rows[row].request.output or (), int(places[row])
        if place < len(output):
            tokens[row] = output[place]
    return tokens
