"""Wrong states, each made of a right one by one fault that any policy's states can have."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from attrs import evolve, fields

from engine.core.sharing import SharedOrder
from reference.core.frozen_map import updated, without

T = TypeVar("T")
Fault = Callable[[Any, int], Any]
OTHER = b"other"  # content that no block has
HUGE = "huge"  # a request that needs more blocks than there are


class NotThereError(Exception):
    """A state has no place for a fault."""


def nth(things: Iterable[T], n: int) -> T:
    """The n-th of them, counted round and round."""
    there = [*things]
    if not there:
        raise NotThereError
    return there[n % len(there)]


# --- the pool -------------------------------------------------------------------------------------


def pool(state: Any, **parts: Any) -> Any:
    return evolve(state, pool=evolve(state.pool, **parts))


def _in_runs(items: Iterable[T], like: Any) -> Any:
    """The items in an order of the kind of `like`, which shares with it the runs that it can."""
    rest = tuple(items)
    if not isinstance(like, SharedOrder):
        return rest
    head: list[tuple[T, ...]] = []
    tail: list[tuple[T, ...]] = []
    runs = [*like.runs]
    while runs and rest[: len(runs[0])] == runs[0]:
        head.append(runs.pop(0))
        rest = rest[len(head[-1]) :]
    while runs and len(runs[-1]) <= len(rest) and rest[len(rest) - len(runs[-1]) :] == runs[-1]:
        tail.insert(0, runs.pop())
        rest = rest[: len(rest) - len(tail[0])]
    return SharedOrder((*head, *([rest] if rest else ()), *tail))


def free(change: Callable[[list[int], int], Iterable[int]]) -> Fault:
    def fault(state: Any, n: int) -> Any:
        known = state.pool.free
        return pool(state, free=_in_runs(change([*known], n), known))

    return fault


def held(state: Any) -> list[int]:
    return [block for row in state.admitted for block in row.blocks]


def cached(state: Any) -> list[int]:
    return [block for block in held(state) if block in state.pool.keys]


POOL: dict[str, Fault] = {
    "a lost block": free(lambda blocks, n: (b for b in blocks if b != nth(blocks, n))),
    "a free block twice": free(lambda blocks, n: (nth(blocks, n), *blocks)),
    "one lost, another twice": free(lambda blocks, _n: (*blocks[-1:], *blocks[1:])),
    "block 0 or one beyond": free(lambda blocks, n: (*blocks[1:], n * 10_000_000)),
    "first two swapped": free(lambda blocks, _n: (*blocks[1::-1], *blocks[2:])),
    "last two swapped": free(lambda blocks, _n: (*blocks[:-2], *blocks[:-3:-1])),
    "first put last": free(lambda blocks, _n: (*blocks[1:], *blocks[:1])),
    "last few put first": free(lambda blocks, n: (*blocks[-n - 1 :], *blocks[: -n - 1])),
    "middle reversed": free(
        lambda blocks, _n: chain(
            blocks[: len(blocks) // 3],
            reversed(blocks[len(blocks) // 3 : -len(blocks) // 3]),
            blocks[-len(blocks) // 3 :],
        )
    ),
    "another number of holders": lambda state, n: pool(
        state, references=updated(state.pool.references, {nth(held(state), n): 7})
    ),
    "holders of a free block": lambda state, n: pool(
        state, references=updated(state.pool.references, {nth(state.pool.free, n): 1})
    ),
    "no holders of a held block": lambda state, n: pool(
        state, references=without(state.pool.references, nth(held(state), n))
    ),
    "another content of a held block": lambda state, n: pool(
        state, keys=updated(state.pool.keys, {nth(held(state), n): OTHER})
    ),
    "another content, in both maps": lambda state, n: pool(
        state,
        keys=updated(state.pool.keys, {nth(held(state), n): OTHER}),
        cached=updated(state.pool.cached, {OTHER: (nth(held(state), n),)}),
    ),
    "content of a held block lost": lambda state, n: pool(
        state, keys=without(state.pool.keys, nth(cached(state), n))
    ),
    "another size": lambda state, n: pool(state, size=state.pool.size + n + 1),
    "content not found": lambda state, n: pool(
        state, cached=without(state.pool.cached, nth(state.pool.cached, n))
    ),
    "content in another block, too": lambda state, n: pool(
        state,
        cached=updated(state.pool.cached, {nth(state.pool.cached, n): (nth(state.pool.free, n),)}),
    ),
}

# --- requests -------------------------------------------------------------------------------------


def with_row(state: Any, queue: str, n: int, change: Callable[[Any], Any]) -> Any:
    """One request in this place is another."""
    there = getattr(state, queue)
    if not isinstance(there, tuple | SharedOrder):
        if there is None:
            raise NotThereError
        return evolve(state, **{queue: change(there)})
    wrong = nth(there, n)
    rows = (change(row) if row is wrong else row for row in there)
    return evolve(state, **{queue: _in_runs(rows, there)})


def numbers(row: Any) -> list[str]:
    return [key.name for key in fields(type(row)) if type(getattr(row, key.name)) in (int, bool)]


def with_number(row: Any, name: str, n: int) -> Any:
    """One of its numbers is one more, as much more as a block has tokens, or 0."""
    value = getattr(row, name)
    other = not value if isinstance(value, bool) else nth((value + 1, value + 16, 0), n)
    return evolve(row, **{name: other})


def _row(change: Callable[[Any, Any, int], Any]) -> Callable[[str], Fault]:
    """A fault of a request in a queue: a change of it in a state."""

    def of_queue(queue: str) -> Fault:
        return lambda state, n: with_row(state, queue, n, lambda row: change(state, row, n))

    return of_queue


def _number(name: str) -> Callable[[str], Fault]:
    return _row(lambda _state, row, n: with_number(row, name, n // 2))


def _order(change: Callable[[list[Any], int], Iterable[Any]]) -> Callable[[str], Fault]:
    """A fault of the order of a queue."""

    def of_queue(queue: str) -> Fault:
        def fault(state: Any, n: int) -> Any:
            there = getattr(state, queue)
            if not isinstance(there, tuple | SharedOrder) or not there:
                raise NotThereError
            return evolve(state, **{queue: _in_runs(change([*there], n), there)})

        return fault

    return of_queue


QUEUES: Mapping[str, Callable[[str], Fault]] = {
    "blocks of another": _row(
        lambda state, row, n: evolve(row, blocks=nth(state.admitted, n + 1).blocks)
    ),
    "a block less": _row(lambda _state, row, _n: evolve(row, blocks=row.blocks[:-1])),
    "a block more": _row(
        lambda state, row, n: evolve(row, blocks=(*row.blocks, nth(state.pool.free, n)))
    ),
    "a block of another, too": _row(
        lambda state, row, n: evolve(row, blocks=(*row.blocks, nth(held(state), n)))
    ),
    "its first block another's": _row(
        lambda state, row, n: evolve(row, blocks=(nth(held(state), n), *row.blocks[1:]))
    ),
    "its table reversed": _row(lambda _state, row, _n: evolve(row, blocks=row.blocks[::-1])),
    "a row less": _order(lambda rows, n: (row for row in rows if row is not nth(rows, n))),
    "a row twice": _order(lambda rows, n: (*rows, nth(rows, n))),
    "a row twice, in front": _order(lambda rows, n: (nth(rows, n), *rows)),
    "first put last, in a queue": _order(lambda rows, _n: (*rows[1:], *rows[:1])),
    "two swapped": _order(lambda rows, n: _swapped(rows, n % len(rows))),
}


def _swapped(rows: list[Any], n: int) -> list[Any]:
    return [*rows[:n], *rows[n : n + 2][::-1], *rows[n + 2 :]]


def fresh(row: Any) -> Any:
    """As it arrived, or nearly so."""
    second = fields(type(row))[1].name
    return type(row)(row.id, getattr(row, second))


def _newcomer(place: int) -> Fault:
    """A request that has left, or is admitted, waits, in front or behind."""

    def fault(state: Any, n: int) -> Any:
        row = fresh(nth(state.admitted, n))
        id_ = nth((*sorted(state.finished)[-1:], row.id, HUGE), n)
        row = evolve(row, id=id_)
        rows = [*state.waiting]
        rows.insert(place % (len(rows) + 1), row)
        return evolve(state, waiting=_in_runs(rows, state.waiting))

    return fault


LEFT: dict[str, Fault] = {
    "newcomer in front": _newcomer(0),
    "newcomer behind": _newcomer(-1),
    "newcomer in the middle": _newcomer(1),
    "a finished one forgotten": lambda state, n: evolve(
        state, finished=frozenset(state.finished) - {nth(sorted(state.finished), n)}
    ),
    "one more finished": lambda state, n: evolve(
        state, finished=frozenset(state.finished) | {nth((*state.present,), n).id}
    ),
    "one more aborted": lambda state, n: evolve(
        state, aborted=frozenset(state.aborted) | {nth((*state.present,), n).id}
    ),
    "another number of the state": lambda state, n: with_number(state, nth(numbers(state), n), n),
}


def faults_of(queues: Iterable[str], row: type[Any]) -> Iterator[tuple[str, Fault]]:
    """All of them, by what they are.

    `queues`: the fields of the state that hold requests, of the class `row`.
    """
    yield from POOL.items()
    yield from LEFT.items()
    for queue in queues:
        for name, of_queue in QUEUES.items():
            yield f"{name}: {queue}", of_queue(queue)
        for number in numbers(row("a", 1)):
            yield f"another {number}: {queue}", _number(number)(queue)
