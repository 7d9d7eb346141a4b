"""Wrong functions from right ones: what a planted fault changes, said in a few words."""

from collections.abc import Callable
from typing import Any

from attrs import evolve

from reference.core.frozen_map import updated

Wrong = Callable[..., Any]
Change = Callable[[Any], Any]

# --- wrong functions ------------------------------------------------------------------------------


def always(value: Any) -> Wrong:
    """The value for all arguments."""
    return lambda _right, *_given, **_more: value


def result(**fields: Any) -> Wrong:
    """The right result with changed fields. Of several results the first is changed."""
    return altered(changed(**fields))


def altered(change: Change) -> Wrong:
    """The right result after a change. Of several results the first is changed."""

    def wrong(right: Wrong, *given: Any) -> Any:
        done = right(*given)
        return (change(done[0]), *done[1:]) if isinstance(done, tuple) else change(done)

    return wrong


def depending(change: Callable[..., Change]) -> Wrong:
    """The right result after the change that belongs to the arguments."""
    return lambda right, *given: altered(change(*given))(right, *given)


def kept(*fields: str) -> Wrong:
    """The right result, but these fields are as before: as in the argument of the same type."""

    def wrong(right: Wrong, *given: Any) -> Any:
        def undo(after: Any) -> Any:
            before = next(value for value in given if type(value) is type(after))
            return evolve(after, **{field: getattr(before, field) for field in fields})

        return altered(undo)(right, *given)

    return wrong


def configured(**fields: Any) -> Wrong:
    """The right function under other values in the configuration."""
    return lambda right, ctx, *given: right(with_config(ctx, **fields), *given)


def once_held(right: Wrong, pool: Any, blocks: Any, *keys: Any) -> Any:
    """The right result, but each block counts one holder."""
    return evolve(right(pool, blocks, *keys), references=held_once(pool, blocks).references)


def from_the_tail(right: Wrong, pool: Any, count: int) -> Any:
    """The right function with the free list turned round."""
    return result(free=backwards)(right, changed(free=backwards)(pool), count)


def own_tokens_only(right: Wrong, data: bytes, *, digest_size: int) -> Any:
    """The hash of a block of two tokens without what comes before them."""
    return right(data[-2 * 8 :], digest_size=digest_size)


# --- changes of a value ---------------------------------------------------------------------------


def changed(**fields: Any) -> Change:
    """Other values for some fields: a value, or a function of the old one."""

    def change(value: Any) -> Any:
        new = {
            field: new(getattr(value, field)) if callable(new) else new
            for field, new in fields.items()
        }
        return evolve(value, **new)

    return change


def with_config(ctx: Any, **fields: Any) -> Any:
    """The context with other values in its configuration."""
    return changed(config=changed(**fields))(ctx)


def held_once(pool: Any, blocks: Any) -> Any:
    """The pool with one holder for each of the blocks."""
    return evolve(pool, references=updated(pool.references, dict.fromkeys(blocks, 1)))


def one_block_less(pool: Any) -> Any:
    """The pool without its next free block."""
    return changed(free=lambda free: free[1:])(pool)


def plus(number: int) -> Change:
    """The old number plus this one."""
    return lambda old: old + number


def first(**fields: Any) -> Change:
    """The first row with changed fields."""
    return lambda rows: (changed(**fields)(rows[0]), *rows[1:])


def last(**fields: Any) -> Change:
    """The last row with changed fields."""
    return lambda rows: (*rows[:-1], changed(**fields)(rows[-1]))


def each(**fields: Any) -> Change:
    """All rows with changed fields."""
    return lambda rows: tuple(map(changed(**fields), rows))


def own_row(request_id: str, **fields: Any) -> Change:
    """The row of one request with changed fields."""
    change = changed(**fields)
    return lambda rows: tuple(change(row) if row.id == request_id else row for row in rows)


def last_to_front(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """The last row goes before the others."""
    return (*rows[-1:], *rows[:-1])


def first_to_back(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first row goes behind the others."""
    return (*rows[1:], *rows[:1])


def backwards(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """The rows in reverse order."""
    return rows[::-1]
