"""The registry of Spyre's rules, and what its state rules look at after a change."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from spec.core import rule
from spec.core.rule import Kind, Registry, Source
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.changes import Change, change_between
from spec.spyre.state import State

__all__ = [
    "REGISTRY",
    "SPYRE",
    "Kind",
    "Rule",
    "Source",
    "always",
    "applicable",
    "between",
    "changed_pool",
    "each_request",
    "eventually",
    "of_step",
]

Rule: TypeAlias = rule.Rule[SpyreConfig, Context, State, Step]
Predicate = Callable[[Context, State], Iterator[str]]
Look = Callable[[Context, Change], State | None]

SPYRE: Registry[SpyreConfig, Context, State, Step] = Registry()
REGISTRY = SPYRE.rules
of_step = SPYRE.of_step
between = SPYRE.between
eventually = SPYRE.eventually
applicable = SPYRE.applicable


def always(
    id_: str,
    sentence: str,
    source: Source,
    *,
    witness: Callable[[Context, Step], bool],
    applies: Callable[[SpyreConfig], bool] = lambda _config: True,
    look: Look = lambda _ctx, change: change.after,
) -> Callable[[Predicate], Predicate]:
    """A rule about every state, which looks at the change to it."""

    def seen(ctx: Context, before: State, after: State) -> State | None:
        if not isinstance(after, State):  # a stand-in, which cannot be reduced
            return after
        return look(ctx, change_between(before, after))

    return SPYRE.always(id_, sentence, source, witness=witness, applies=applies, look=seen)


def each_request(_ctx: Context, change: Change) -> State | None:
    """Look of rules that judge each request by itself, or count what only the admitted have."""
    return change.requests


def changed_pool(_ctx: Context, change: Change) -> State | None:
    """Look of rules about the blocks and contents of the pool, each by itself."""
    return None if change.before.pool is change.after.pool else change.pool
