"""Clients that come back: the same request arrives again after it left, so that runs may never end.

In the state graph a request that comes back is forgotten first, so that there are finitely many
states. In a file each time is a request of its own (0, then 0#2, 0#3, …), which any scheduler can
be asked to serve.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

from attrs import evolve, fields, frozen, has

from checks.explore.instance import Instance
from checks.explore.model import Counterexample, Model, Transition
from reference.core.frozen_map import FrozenMap
from spec.core.blocks import BlockPool
from spec.core.requests import Prompt, Request

StateT = TypeVar("StateT")


@frozen
class Forgotten(Generic[StateT]):
    """The record of an arrival: the state before it, without the request's earlier arrivals."""

    state: StateT


def is_gone(state: Any, request_id: str) -> bool:
    """True if the request stands in no place of the state, not even to be waited for."""
    return all(row.id != request_id for row in _rows(state))


def forgotten(state: StateT, gone: Iterable[str]) -> StateT:
    """The state as if requests that are gone had never come.

    No set of ids has them. Arrivals are renumbered in the same order.
    """
    numbers = sorted({row.arrival for row in _rows(state) if hasattr(row, "arrival")})
    ranks = {number: rank for rank, number in enumerate(numbers)}

    def without(value: Any) -> Any:
        match value:
            case frozenset():
                return value.difference(gone)
            case tuple() if ranks:
                return tuple(evolve(row, arrival=ranks[row.arrival]) for row in value)
        return value

    after: StateT = _each_field(state, without)
    return after


def with_blocks_in_order(state: StateT) -> StateT:
    """The state with its blocks renumbered: those of each request by its place, then free ones.

    States that are equal then behave alike up to the numbers of blocks.
    """
    pool: BlockPool = state.pool  # type: ignore[attr-defined]
    numbers = numbers_in_order(pool, [row.blocks for row in _rows(state)])
    if all(block == number for block, number in numbers.items()):
        return state

    def numbered(value: Any) -> Any:
        match value:
            case tuple():
                return tuple(map(numbered, value))
            case BlockPool():
                return renumbered(value, numbers)
        if hasattr(value, "blocks"):
            return evolve(value, blocks=tuple(numbers[block] for block in value.blocks))
        return value

    in_order: StateT = _each_field(state, numbered)
    return in_order


def numbers_in_order(pool: BlockPool, tables: Iterable[Iterable[int]]) -> dict[int, int]:
    """The new number of each block of a pool: those of the tables first, then the free ones.

    Last come those that a wrong machine has lost: held by no request, and not free.
    """
    lost = sorted({*pool.references, *pool.keys})
    order = dict.fromkeys(chain(chain.from_iterable(tables), pool.free, lost))
    return {block: number for number, block in enumerate(order, start=1)}


def renumbered(pool: BlockPool, numbers: Mapping[int, int]) -> BlockPool:
    """The pool with its blocks renumbered."""
    return evolve(
        pool,
        free=tuple(numbers[block] for block in pool.free),
        references=FrozenMap({numbers[block]: n for block, n in pool.references.items()}),
        keys=FrozenMap({numbers[block]: key for block, key in pool.keys.items()}),
        cached=FrozenMap(
            {key: tuple(numbers[block] for block in blocks) for key, blocks in pool.cached.items()}
        ),
    )


def _rows(state: Any) -> Iterator[Any]:
    """Every request in any place of the state, aborted ones included."""
    for key in fields(type(state)):
        value = getattr(state, key.name)
        places = value if isinstance(value, tuple) else (value,)
        yield from (row for row in places if hasattr(row, "id"))


def _each_field(state: Any, changed: Callable[[Any], Any]) -> Any:
    values = {key.name: getattr(state, key.name) for key in fields(type(state)) if key.init}
    return evolve(state, **{name: changed(value) for name, value in values.items()})


# --- each time a request of its own ---------------------------------------------------------------


def original(name: str) -> str:
    """The text with the original names of requests: 0 for 0#2."""
    return re.sub(r"#\d+", "", name)


def unrolled(instance: Instance[Any], actions: Iterable[str]) -> Instance[Any]:
    """The instance in which no client returns: a separate request for each arrival."""
    arrivals = Counter(action.removeprefix("arrive ") for action in actions)
    names = {
        request.id: [
            request.id,
            *(f"{request.id}#{time}" for time in range(2, arrivals[request.id] + 1)),
        ]
        for request in instance.requests
    }

    def all_names(ids: Iterable[str]) -> frozenset[str]:
        return frozenset(name for id_ in ids for name in names[id_])

    return evolve(
        instance,
        requests=tuple(
            _again(request, name) for request in instance.requests for name in names[request.id]
        ),
        returning=frozenset(),
        external={name: tokens for id_, tokens in instance.external.items() for name in names[id_]},
        aborts=all_names(instance.aborts),
        early_ends=all_names(instance.early_ends),
        failing=all_names(instance.failing),
        fewer_drafts=all_names(instance.fewer_drafts),
        leavers=all_names(instance.leavers),
    )


def _again(request: Request, name: str) -> Request:
    """The request under another name, with the same tokens."""
    if name == request.id:
        return request
    return evolve(request, id=name, prompt=Prompt.of_tokens(request.prompt.tokens()))


def unrolled_run(model: Model[StateT], actions: Iterable[str]) -> Iterator[Transition[StateT]]:
    """The run with these actions where returning clients are written out as further requests."""
    state = next(iter(model.initial()))
    for action in actions:
        edge = next(edge for edge in model.successors(state) if original(edge.action) == action)
        yield edge
        state = edge.state


def repeating(run: Counterexample[Any]) -> tuple[str, ...]:
    """The actions of a run, those of its cycle twice."""
    actions = tuple(edge.action for edge in run.steps)
    return actions if run.loop_from is None else actions + actions[run.loop_from :]


def folded(state: StateT) -> StateT:
    """The state with original names, and without requests that are gone.

    States of an unrolled run that are equal then behave alike.
    """
    sets = (getattr(state, key.name) for key in fields(type(state)))  # type: ignore[arg-type]
    ids = {id_ for value in sets if isinstance(value, frozenset) for id_ in value}
    present = forgotten(state, [id_ for id_ in ids if is_gone(state, id_)])
    folded: StateT = _with_original_names(present)
    return folded


def _with_original_names(value: Any) -> Any:
    match value:
        case str():
            return original(value)
        case tuple() | frozenset():
            return type(value)(map(_with_original_names, value))
    return _each_field(value, _with_original_names) if has(type(value)) else value
