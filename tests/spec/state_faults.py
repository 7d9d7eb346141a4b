"""Wrong states, made of right ones: a rule must find them, however little it looks at."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, TypeVar

from attrs import evolve

from spec.core.rule import AnyRule

T = TypeVar("T")

Fault = Callable[[Any, int], Any]


class NotThereError(Exception):
    """A state has nothing that this fault could be in."""


def nth(things: Iterable[T], n: int) -> T:
    """The n-th of them, and on from the first again."""
    there = [*things]
    if not there:
        raise NotThereError
    return there[n % len(there)]


def pool(state: Any, **parts: Any) -> Any:
    return evolve(state, pool=evolve(state.pool, **parts))


def lost_block(state: Any, n: int) -> Any:
    lost = nth(state.pool.free, n)
    return pool(state, free=tuple(block for block in state.pool.free if block != lost))


def held(state: Any) -> list[int]:
    return [block for one in state.admitted for block in one.blocks]


def one_with(state: Any, place: str, n: int, **parts: Any) -> Any:
    """One request in this place is otherwise in these parts."""
    there = getattr(state, place)
    wrong = nth(there, n)
    changes: Any = {place: tuple(evolve(one, **parts) if one is wrong else one for one in there)}
    return evolve(state, **changes)


def one_more(state: Any, place: str, one: Any) -> Any:
    changes: Any = {place: (*getattr(state, place), one)}
    return evolve(state, **changes)


def fresh(row: Any) -> Any:
    return type(row)(row.id, row.prefill_len)


def times_met(
    rules: Iterable[AnyRule], ctx: Any, steps: Iterable[Any], fault: Fault, id_: str
) -> int:
    """How often the rule of this id finds the fault in the states that these steps left.

    Every rule finds the same by what changed and in the whole state.
    """
    judged, met = [*rules], 0
    for step, n in product(steps, range(5)):
        try:
            wrong = fault(step.after, n)
        except NotThereError:
            continue
        whole = _broken(judged, [one.found_in_state(ctx, wrong) for one in judged])
        by_change = _broken(judged, [one.found_after(ctx, step.before, wrong) for one in judged])
        assert by_change == whole
        met += id_ in whole
    return met


def _broken(rules: Iterable[AnyRule], found: Iterable[str | None]) -> dict[str, str]:
    """What was found, by the rule that found it."""
    judged = zip(rules, found, strict=True)
    return {rule.id: text for rule, text in judged if text is not None}
