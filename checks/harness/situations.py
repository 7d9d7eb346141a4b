"""Situations: a transition together with values of its request and of the step, in classes.

A class sorts a value into a few: none, one, or more; on a boundary of a block, one off, or inside.
A policy has a table with the classes of each transition. A situation is a transition with the
values of one class or of two: `preempt, tokens in the step 2+, holders of a block 2+`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, TypeAlias

from attrs import fields, frozen

from checks.harness.system import Action, Step
from spec.core.records import Event

FEW = ("0", "1", "2+")
STEP = "step"  # a transition for each step, with classes of the whole step
REFUSED, ABORT = "refused", "abort"  # the head of the queue, and a request whose client leaves
QUEUES = ("waiting", "skipped", "prefilling", "running", "decoding", "paused", "swapped")


@frozen
class Moment:
    """A transition in a step.

    `state`: the state before the step, or before an abort. `row`: its request there; None if there
    is none. `ahead`: requests in front of it in its queue. `earlier`: the transitions of the step
    before this one.
    """

    ctx: Any
    step: Step
    event: Event
    state: Any
    row: Any = None
    ahead: int = 0
    earlier: Sequence[Event] = ()


@frozen
class Class:
    """A class with its values; `value`: the one of a moment, or None if it has none."""

    name: str
    values: tuple[str, ...]
    value: Callable[[Moment], str | None]


Table: TypeAlias = Mapping[str, tuple[Class, ...]]
"""The classes of each transition."""

Profile: TypeAlias = tuple[str | None, ...]
"""A transition, and the value of each of its classes."""


@frozen
class Advice:
    """A situation that few cases reach: what to say if none did, and keys with which many do."""

    situation: str
    says: str
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        keys = (f"--set {key}={_text(value)}" for key, value in self.settings.items())
        return f"{self.says}: {' '.join(keys)} reaches it"

    def is_possible(self, values: Mapping[str, Sequence[Any]]) -> bool:
        """True if its settings are among these values of the keys that are restricted."""
        return all(value in values.get(key, (value,)) for key, value in self.settings.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- classes --------------------------------------------------------------------------------------


def count(name: str, number: Callable[[Moment], int]) -> Class:
    """The class of a number: 0, 1, or 2 and more."""
    return Class(name, FEW, lambda moment: FEW[max(min(number(moment), 2), 0)])


def count_of_row(name: str, number: Callable[[Moment, Any], int]) -> Class:
    """The class of a number that only a request in a queue has."""

    def value(moment: Moment) -> str | None:
        row = moment.row
        return None if row is None else FEW[max(min(number(moment, row), 2), 0)]

    return Class(name, FEW, value)


def phase(phase_of: Callable[[Any, str], str], *phases: str) -> Class:
    """The class of a request's phase."""
    return Class("phase", phases, lambda moment: phase_of(moment.state, moment.event.id))


def _tokens(moment: Moment) -> int:
    """Tokens that the request gets in the step; of a victim those that it had got before."""
    request_id = moment.event.id
    for event in reversed(moment.earlier):
        if event.id == request_id and event.transition in ("catch_up", "admit"):
            return int(event.after)
    return int(moment.step.scheduled.get(request_id, 0))


def _holders(moment: Moment, row: Any) -> int:
    holders = moment.state.pool.references
    return max((holders.get(block, 0) for block in row.blocks), default=0)


def _left(moment: Moment, row: Any) -> int:
    config, prompt_len = moment.ctx.config, moment.ctx.requests[row.id].prompt_len
    return int(config.max_model_len - prompt_len - row.generated - 1)


_PLACES = ("on a boundary", "one off", "inside")


def _place(moment: Moment) -> str | None:
    if moment.row is None:
        return None
    size = moment.ctx.config.block_size
    over = moment.row.computed % size
    return _PLACES[0 if over == 0 else 1 if over in (1, size - 1) else 2]


TOKENS = count("tokens in the step", _tokens)
PLACE = Class("computed tokens", _PLACES, _place)
HOLDERS = count_of_row("holders of a block", _holders)
LEFT = count_of_row("tokens below the model length", _left)
GENERATED = count_of_row("generated tokens", lambda _moment, row: int(row.generated))
AHEAD = count("requests ahead", lambda moment: moment.ahead)
FREE = count("free blocks", lambda moment: len(moment.step.before.pool.free))
WAITING = count("waiting requests", lambda moment: len(moment.step.before.waiting))
BEFORE = count(
    "times before in the step",
    lambda moment: sum(event.transition == moment.event.transition for event in moment.earlier),
)
EVICTED = count(
    "evicted blocks",
    lambda moment: sum(block in moment.step.before.pool.keys for block in moment.event.after or ()),
)
REQUEST = (PLACE, HOLDERS, LEFT)


# --- what a step reaches --------------------------------------------------------------------------


def profiles(table: Table, ctx: Any, action: Action, last: Any, step: Step) -> Iterator[Profile]:
    """The profiles of a step; `last`: the state before its action."""
    if not table:
        return
    for state, aborted in ((last, action.abort), (step.before, action.abort_running)):
        rows = _rows(state) if aborted else {}
        for id_ in aborted:
            if id_ in rows:
                abort = Event(ABORT, id_, "")
                yield _profile(table, Moment(ctx, step, abort, state, *rows[id_]))
    before = step.before
    rows, missing = _rows(before), (None, 0)
    yield _profile(table, Moment(ctx, step, Event(STEP, "", ""), before))
    if step.refusal is not None and before.waiting:
        refused = Event(REFUSED, before.waiting[0].id, step.refusal)
        yield _profile(table, Moment(ctx, step, refused, before, *rows[refused.id]))
    for index, event in enumerate(step.events):
        if event.transition in table:
            place = rows.get(event.id, missing)
            yield _profile(table, Moment(ctx, step, event, before, *place, step.events[:index]))


def _profile(table: Table, moment: Moment) -> Profile:
    kind = moment.event.transition
    return (kind, *(aspect.value(moment) for aspect in table.get(kind, ())))


def _rows(state: Any) -> dict[str, tuple[Any, int]]:
    """Each request of a state with the number of requests in front of it in its queue."""
    rows: dict[str, tuple[Any, int]] = {}
    for name in (key.name for key in fields(type(state)) if key.name in QUEUES):
        held = getattr(state, name)
        for ahead, row in enumerate(held if isinstance(held, Sequence) else (held,)):
            if (id_ := getattr(row, "id", None)) is not None:
                rows.setdefault(id_, (row, ahead))
    return rows


def situations(table: Table, profile: Profile) -> Iterator[str]:
    """The situations of a profile: its transition with each value, and with each two."""
    kind, *values = profile
    named = [
        f"{aspect.name} {value}"
        for aspect, value in zip(table.get(str(kind), ()), values, strict=True)
        if value is not None
    ]
    for value in named:
        yield f"{kind}, {value}"
    for first, second in combinations(named, 2):
        yield f"{kind}, {first}, {second}"


def all_situations(table: Table) -> set[str]:
    """Every situation that the table names, reachable or not."""
    return {
        situation
        for kind, classes in table.items()
        for values in product(*(aspect.values for aspect in classes))
        for situation in situations(table, (kind, *values))
    }
