"""Situations: one side's state after a step as JSON; `checks.export.pages` lists the fields."""

from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Any

from attrs import field, frozen

from checks.export.pages.picture import Cells, Meter, Picture, ranges
from checks.export.policy import presentation_of
from checks.export.trace.line import aborted_since, arrived_since
from spec.core.blocks import BlockPool
from spec.core.records import SomeContext, SomeState, SomeStep

Json = dict[str, Any]

BETWEEN = "between"  # the kind of a situation after arrivals and aborts alone
MOST_DRAWN = 1024  # blocks; a larger pool is not drawn block by block
MOST_LISTED = 64  # free blocks that are listed in order


@frozen(kw_only=True)
class Verdicts:
    """The verdicts of the rules on a step. `broken`: rules with their violations.

    `speaks`: rules that the step witnesses. `unjudged`: rules about unreported fields.
    """

    broken: tuple[tuple[str, str], ...] = ()
    speaks: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()


@frozen(kw_only=True)
class Moment:
    """A state and the step that led to it; `step` is None after arrivals and aborts alone.

    `last`: the state after the previous step, None at the beginning. `is_reported`: a driver or a
    file reported it, and it may contradict itself.
    """

    after: SomeState
    step: SomeStep | None = None
    last: SomeState | None = None
    index: int = 0
    label: str = ""
    verdicts: Verdicts = field(factory=Verdicts)
    is_reported: bool = False


def situation_of(ctx: SomeContext, moment: Moment) -> Json:
    """The situation of a moment; without rows and pools if a driver's report contradicts itself."""
    try:
        return _whole_situation(ctx, moment)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not moment.is_reported:
            raise
        return _empty_situation(moment, f"cannot be drawn: {type(error).__name__}: {error}")


def _empty_situation(moment: Moment, headline: str) -> Json:
    """The situation with the step and its verdicts, without its states."""
    step, verdicts = moment.step, moment.verdicts
    index = moment.index if step is None else step.index
    lists = ("arrived", "aborted", "finished", "meters", "rows", "queues", "pools", "events")
    return {
        "step": index,
        "time": 0 if step is None else step.time,
        "kind": BETWEEN,
        "label": moment.label or f"step {index}",
        "headline": headline,
        **{name: [] for name in lists},
        "refused": None,
        "broken": [list(violation) for violation in verdicts.broken],
        "speaks": list(verdicts.speaks),
        "unjudged": list(verdicts.unjudged),
    }


def _whole_situation(ctx: SomeContext, moment: Moment) -> Json:
    picture = presentation_of(ctx.config.policy).picture
    step, after = moment.step, moment.after
    before = after if step is None else step.before
    verdicts = moment.verdicts
    meters = [] if step is None else picture.meters(ctx, step)
    return {
        "step": moment.index if step is None else step.index,
        "time": 0 if step is None else step.time,
        "kind": BETWEEN if step is None else step.kind,
        "label": moment.label or (f"step {step.index}" if step else "between steps"),
        "headline": "" if step is None else headline(ctx, step),
        "arrived": arrived_since(moment.last, before),
        "aborted": _aborted(moment),
        "finished": [] if step is None else list(step.finished),
        "meters": [_meter(meter) for meter in (*meters, *_held(picture, after))],
        "rows": list(_rows(ctx, picture, moment)),
        "queues": [_queue(name, getattr(after, name)) for name in picture.queues],
        "pools": [
            _pool(name, getattr(after, key), picture.reserved(after).get(key, 0))
            for key, name in picture.pools.items()
        ],
        "refused": _refused(ctx, picture, step),
        "events": [] if step is None else [_event(event) for event in step.events],
        "broken": [list(violation) for violation in verdicts.broken],
        "speaks": list(verdicts.speaks),
        "unjudged": list(verdicts.unjudged),
    }


def headline(ctx: SomeContext, step: SomeStep) -> str:
    """What the step computed, in words."""
    prefills = presentation_of(ctx.config.policy).codec.prefills(step)
    decodes = [request_id for request_id in step.scheduled if request_id not in prefills]
    parts = [f"{name}: {what}" for name, what in prefills.items()]
    if decodes:
        parts.append(
            "1 request decodes" if len(decodes) == 1 else f"{len(decodes)} requests decode"
        )
    return "; ".join(parts) or "nothing is computed"


def _aborted(moment: Moment) -> list[str]:
    if moment.step is not None:
        return aborted_since(moment.last, moment.step)
    before = frozenset() if moment.last is None else moment.last.aborted
    return sorted(moment.after.aborted - before)


# --- rows -----------------------------------------------------------------------------------------


def _rows(ctx: SomeContext, picture: Picture, moment: Moment) -> Iterator[Json]:
    step, size = moment.step, ctx.config.block_size
    was = picture.owners(moment.after if step is None else step.before)
    now = picture.owners(moment.after)
    happened: dict[str, list[str]] = {}
    for event in () if step is None else step.events:
        if event.transition not in happened.setdefault(event.id, []):
            happened[event.id].append(event.transition)
    for row in picture.rows(ctx, moment.after, step):
        notes = [row.note] if row.note else []
        yield {
            "id": row.id,
            "place": row.place,
            "cells": [_cells(cell, size) for cell in row.cells],
            "numbers": _numbers(picture, was.get(row.id), row.request or now.get(row.id)),
            "note": ", ".join([*notes, *map(_spaced, happened.get(row.id, ()))]),
        }


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _cells(cells: Cells, block_size: int) -> Json:
    shown: Json = {"kind": cells.kind}
    shown |= {"blocks": ranges(cells.blocks)} if cells.blocks else {"count": cells.count}
    if cells.tokens < (len(cells.blocks) + cells.count) * block_size:
        shown["tokens"] = cells.tokens
    return shown | ({"now": True} if cells.now else {})


def _numbers(picture: Picture, was: Any, now: Any) -> Json:
    """The numbers of a request: its value now, or [before, now] where they differ."""
    shown: Json = {}
    for name in picture.numbers:
        before, after = (_plain(getattr(row, name, None)) for row in (was, now))
        if now is None:  # the request has left: only its last value is known
            after = before
        if after is not None:
            shown[name] = after if before in (None, after) else [before, after]
    return shown


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


# --- meters, queues, pools ------------------------------------------------------------------------


def _meter(meter: Meter) -> Json:
    return {
        "name": meter.name,
        "value": meter.value,
        "limit": meter.limit,
        "unit": meter.unit,
        "parts": [list(part) for part in meter.parts],
        "over": meter.limit is not None and meter.value > meter.limit,
    }


def _held(picture: Picture, state: SomeState) -> Iterator[Meter]:
    """A meter of held and reserved blocks for each pool."""
    reserved = picture.reserved(state)
    for key, name in picture.pools.items():
        pool: BlockPool = getattr(state, key)
        parts = [("held", len(pool.references))]
        parts += [("promised", reserved[key])] if reserved.get(key) else []
        total = sum(count for _, count in parts)
        if pool.size:
            yield Meter(name=name, value=total, limit=pool.size, unit="blocks", parts=parts)


def _queue(name: str, requests: Iterable[Any]) -> Json:
    shown = [
        {"id": request.id, "note": f"{request.generated} generated" if request.generated else ""}
        for request in requests
    ]
    return {"name": name, "requests": shown}


def _pool(name: str, pool: BlockPool, reserved: int) -> Json:
    free = list(pool.free)
    shown: Json = {
        "name": name,
        "size": pool.size,
        "count": len(free),
        "free": ranges(free[:MOST_LISTED]),
        "reserved": reserved,
    }
    if pool.size <= MOST_DRAWN:
        shared = [[block, count] for block, count in sorted(pool.references.items()) if count > 1]
        cached = sorted(block for block in free if block in pool.keys)
        shown |= {
            "held": ranges(sorted(pool.references)),
            "shared": shared,
            "cached": ranges(cached),
        }
    return shown


def _refused(ctx: SomeContext, picture: Picture, step: SomeStep | None) -> Json | None:
    if step is None or step.refusal is None:
        return None
    return {"rule": step.refusal, "id": picture.refused(ctx, step)}


def _event(event: Any) -> Json:
    shown = {"transition": event.transition, "id": event.id, "rule": event.rule}
    values = {"before": event.before, "after": event.after}
    return shown | {name: _as_json(value) for name, value in values.items() if value is not None}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple | list) and all(type(item) is int for item in value):
        return ranges(value) or "none"
    if isinstance(value, tuple | list | Set):
        return [_as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _as_json(item) for name, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)
