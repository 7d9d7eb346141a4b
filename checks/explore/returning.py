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
    """The record of an arrival: the state in which nothing is known of the request any more."""

    state: StateT


def is_gone(state: Any, request_id: str) -> bool:
    """True if the request stands in no place of the state, not even to be waited for."""
    return all(one.id != request_id for one in _requests(state))


def forgotten(state: StateT, gone: Iterable[str]) -> StateT:
    """The state as if requests that are gone had never come.

    No set of ids has them. Arrivals are numbered anew, in the order that they had.
    """
    numbers = sorted({one.arrival for one in _requests(state) if hasattr(one, "arrival")})
    ranks = {number: rank for rank, number in enumerate(numbers)}

    def without(value: Any) -> Any:
        match value:
            case frozenset():
                return value.difference(gone)
            case tuple() if ranks:
                return tuple(evolve(one, arrival=ranks[one.arrival]) for one in value)
        return value

    known: StateT = _each_field(state, without)
    return known


def with_blocks_in_order(state: StateT) -> StateT:
    """The state with its blocks numbered anew: those of each request in its place, then free ones.

    The same happens next, but for the numbers, in states that are equal then.
    """
    found: Any = state
    numbers = numbers_in_order(found.pool, [one.blocks for one in _requests(state)])
    if all(block == number for block, number in numbers.items()):
        return state

    def numbered(value: Any) -> Any:
        match value:
            case tuple():
                return tuple(map(numbered, value))
            case BlockPool():
                return renumbered(value, numbers)
        if hasattr(value, "blocks"):
            return evolve(value, blocks=tuple(numbers[one] for one in value.blocks))
        return value

    in_order: StateT = _each_field(state, numbered)
    return in_order


def numbers_in_order(pool: BlockPool, tables: Iterable[Iterable[int]]) -> dict[int, int]:
    """The number that each block of a pool is given: those of the tables first, then free ones.

    Behind them those that a wrong machine has lost: held by no request, and not free.
    """
    lost = sorted({*pool.references, *pool.keys})
    order = dict.fromkeys(chain(chain.from_iterable(tables), pool.free, lost))
    return {block: number for number, block in enumerate(order, start=1)}


def renumbered(pool: BlockPool, numbers: Mapping[int, int]) -> BlockPool:
    """A pool with its blocks numbered anew."""
    return evolve(
        pool,
        free=tuple(numbers[one] for one in pool.free),
        references=FrozenMap({numbers[one]: count for one, count in pool.references.items()}),
        keys=FrozenMap({numbers[one]: key for one, key in pool.keys.items()}),
        cached=FrozenMap(
            {key: tuple(numbers[one] for one in blocks) for key, blocks in pool.cached.items()}
        ),
    )


def _requests(state: Any) -> Iterator[Any]:
    """Every request in any place of the state, those that no client waits for included."""
    for key in fields(type(state)):
        value = getattr(state, key.name)
        places = value if isinstance(value, tuple) else (value,)
        yield from (one for one in places if hasattr(one, "id"))


def _each_field(state: Any, changed: Callable[[Any], Any]) -> Any:
    values = {key.name: getattr(state, key.name) for key in fields(type(state)) if key.init}
    return evolve(state, **{name: changed(value) for name, value in values.items()})


# --- each time a request of its own ---------------------------------------------------------------


def original(name: str) -> str:
    """The name of what came first, in any text that names requests: 0 for 0#2."""
    return re.sub(r"#\d+", "", name)


def unrolled(instance: Instance[Any], actions: Iterable[str]) -> Instance[Any]:
    """The instance in which no client comes back: a request for each arrival in the actions."""
    arrivals = Counter(action.removeprefix("arrive ") for action in actions)
    times = {one.id: [one.id, *_names(one.id, arrivals[one.id])] for one in instance.requests}

    def all_of(ids: Iterable[str]) -> frozenset[str]:
        return frozenset(name for one in ids for name in times[one])

    return evolve(
        instance,
        requests=tuple(_again(one, name) for one in instance.requests for name in times[one.id]),
        returning=frozenset(),
        external={name: tokens for one, tokens in instance.external.items() for name in times[one]},
        aborts=all_of(instance.aborts),
        early_ends=all_of(instance.early_ends),
        failing=all_of(instance.failing),
        leavers=all_of(instance.leavers),
    )


def _again(request: Request, name: str) -> Request:
    """A request of another name with the same tokens, whatever their streams are called."""
    if name == request.id:
        return request
    return evolve(request, id=name, prompt=Prompt.of_tokens(request.prompt.tokens()))


def _names(request_id: str, arrivals: int) -> list[str]:
    return [f"{request_id}#{number}" for number in range(2, arrivals + 1)]


def run_of(model: Model[StateT], actions: Iterable[str]) -> Iterator[Transition[StateT]]:
    """The run of an unrolled instance in which these actions happen, by the original names."""
    state = next(iter(model.initial()))
    for action in actions:
        edge = next(one for one in model.successors(state) if original(one.action) == action)
        yield edge
        state = edge.state


def repeating(run: Counterexample[Any]) -> tuple[str, ...]:
    """The actions of a run, those that repeat for ever twice."""
    actions = tuple(edge.action for edge in run.steps)
    return actions if run.loop_from is None else actions + actions[run.loop_from :]


def folded(state: StateT) -> StateT:
    """The state with original names, and without those that are gone.

    In two states of an unrolled run that are equal then, the same happens next.
    """
    sets = (getattr(state, key.name) for key in fields(type(state)))  # type: ignore[arg-type]
    known = {one for value in sets if isinstance(value, frozenset) for one in value}
    left: StateT = forgotten(state, [one for one in known if is_gone(state, one)])
    folded: StateT = _with_original_names(left)
    return folded


def _with_original_names(value: Any) -> Any:
    match value:
        case str():
            return original(value)
        case tuple() | frozenset():
            return type(value)(map(_with_original_names, value))
    return _each_field(value, _with_original_names) if has(type(value)) else value
