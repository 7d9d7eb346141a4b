"""Steps, states and requests as JSON values; `checks.export.trace` says what the fields mean."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from attrs import fields, frozen

from checks.export.trace.violation import Violation
from engine.workloads.own import own_stream
from spec.core.blocks import BlockPool
from spec.core.observable import SomeSequence, SomeState, SomeStep
from spec.core.records import Event
from spec.core.requests import Request
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence, State

Json = dict[str, Any]

SEQUENCE_DEFAULTS = {key.name: key.default for key in fields(Sequence)}
_REQUEST_OPTIONS = ("output_len", "output", "abort_at")


@frozen
class Past:
    """What of the steps before shows in a step's line; nothing, before the first.

    `state`: what the last step left. `chunk`: the chunk that ran last, whenever that was.
    """

    state: SomeState | None = None
    chunk: Chunk | None = None

    def then(self, step: SomeStep) -> "Past":
        """What shows in the line after that of `step`."""
        chunk = step.chunk if isinstance(step, Step) else None
        return Past(step.after, chunk or self.chunk)


def step_as_json(step: Step, past: Past | None = None, *, full: bool = False) -> Json:
    """The step's line, with `state` if it is to be `full`."""
    past = past or Past()
    after = step.after
    line = {
        "step": step.index,
        "time": step.time,
        "kind": step.kind,
        "scheduled": dict(step.scheduled),
        "tkv": step.tkv,
        "volume": step.volume,
        "waiting": ids_of(after.waiting),
        "prefilling": _prefilling(step, past),
        "decoding": [_row(row) for row in after.decoding],
        "running": ids_of(after.running),
        "paused": ids_of(after.paused),
        "outputs": {id_: list(tokens) for id_, tokens in step.outputs.items()},
        "finished": list(step.finished),
        "aborted": aborted_since(past.state, step),
        "blocks": blocks_as_json(after.pool, reserved=sum(one.reserved for one in after.admitted)),
        "block_tables": {one.id: list(one.blocks) for one in after.admitted},
        "events": events_as_json(step.events),
        "arrived": arrived_since(past.state, step.before),
        "refusal": step.refusal,
    }
    if full:
        line["state"] = _states(step, past.state)
    return line


_id_of = attrgetter("id")


def ids_of(queue: Iterable[SomeSequence]) -> list[str]:
    """The names, in the order of the queue."""
    return list(map(_id_of, queue))


def _row(row: Sequence) -> Json:
    return {
        "id": row.id,
        "tkv": row.left_padding + row.computed,
        "left_padding": row.left_padding,
        "computed": row.computed,
        "generated": row.generated,
    }


def _prefilling(step: Step, past: Past) -> Json | None:
    chunk, slot = step.chunk, step.after.prefilling
    if chunk is None and slot is not None and past.chunk is not None:
        chunk = past.chunk if past.chunk.id == slot.id else None
    return None if chunk is None else _chunk(chunk)


def _chunk(chunk: Chunk) -> Json:
    return {
        "id": chunk.id,
        "chunk": chunk.chunk,
        "chunks": chunk.chunks,
        "start": chunk.start,
        "end": chunk.end,
        "left_padding": chunk.left_padding,
        "right_padding": chunk.right_padding,
        "cached_tokens": chunk.cached_tokens,
        "inner_padding": chunk.inner_padding,
    }


def blocks_as_json(pool: BlockPool, reserved: int = 0) -> Json:
    """How many blocks of the pool are held, promised and free."""
    return {"used": len(pool.references), "reserved": reserved, "free": len(pool.free)}


def events_as_json(events: Iterable[Event]) -> list[Json]:
    """The transitions that made up a step."""
    return [_event(event) for event in events]


def _event(event: Event) -> Json:
    line: Json = {"transition": event.transition, "id": event.id}
    if event.before is not None:
        line["from"] = listed(event.before)
    if event.after is not None:
        line["to"] = listed(event.after)
    line["rule"] = event.rule
    return line


def listed(value: Any) -> Any:
    """Tuples as lists, at every depth."""
    return [listed(one) for one in value] if isinstance(value, tuple) else value


# --- what happened between two steps ---------------------------------------------------------


def arrived_since(last: SomeState | None, before: SomeState) -> list[str]:
    """Who came since the state `last`: newcomers wait, or have already gone away again."""
    if before is last:  # nothing happened; the usual case
        return []
    known = set() if last is None else {one.id for one in last.present}
    came = [one.id for one in before.present if one.id not in known]
    gone = before.aborted if last is None else before.aborted - last.aborted
    return [*came, *sorted(gone - known)]


def aborted_since(last: SomeState | None, step: SomeStep) -> list[str]:
    """Whose clients left: as the record orders them, else what the states tell."""
    if step.aborted or step.before is last:
        return list(step.aborted)
    return sorted(step.before.aborted - (frozenset() if last is None else last.aborted))


# --- the whole state -------------------------------------------------------------------------


def _states(step: Step, last: SomeState | None) -> Json:
    states: Json = {} if step.before == last else {"before": state_as_json(step.before)}
    states["after"] = state_as_json(step.after)
    if step.batch:
        states["batch"] = [_sequence(row) for row in step.batch]
    if step.chunk is not None:
        states["block_table"] = list(step.chunk.block_table)
        states["writes"] = list(step.chunk.writes)
    if step.ended:
        states["ended"] = list(step.ended)
    return states


def state_as_json(state: State) -> Json:
    """All of a state."""
    slot = state.prefilling
    return {
        "waiting": [_sequence(one) for one in state.waiting],
        "prefilling": None if slot is None else _sequence(slot),
        "decoding": [_sequence(one) for one in state.decoding],
        "paused": [_sequence(one) for one in state.paused],
        "finished": sorted(state.finished),
        "aborted": sorted(state.aborted),
        "last_kind": state.last_kind,
        "last_tkv": state.last_tkv,
        "pool": pool_as_json(state.pool),
    }


def _sequence(sequence: Sequence) -> Json:
    values = {name: getattr(sequence, name) for name in SEQUENCE_DEFAULTS}
    return {
        name: listed(value) for name, value in values.items() if value != SEQUENCE_DEFAULTS[name]
    }


def pool_as_json(pool: BlockPool) -> Json:
    """All of a block pool."""
    return {
        "size": pool.size,
        "free": list(pool.free),
        "references": {str(block): count for block, count in pool.references.items()},
        "keys": {str(block): key.hex() for block, key in pool.keys.items()},
        "cached": {key.hex(): list(blocks) for key, blocks in pool.cached.items()},
    }


def violation_as_json(violation: Violation, state_as: Callable[[Any], Json]) -> Json:
    """The fields of the last line; `loop` and `state` only where there are any."""
    line = {"rule": violation.rule, "says": violation.says, "found": violation.found}
    if violation.loop is not None:
        line["loop"] = violation.loop
    if violation.state is not None:
        line["state"] = state_as(violation.state)
    return line


# --- requests --------------------------------------------------------------------------------


def request_as_json(request: Request) -> Json:
    """The request as a line of a workload file."""
    line: Json = {"id": request.id}
    if request.arrival_time is None:
        line["arrival"] = request.arrival
    else:
        line["arrival_s"] = request.arrival_time
    line |= _prompt(request)
    line["max_tokens"] = request.max_tokens
    for name in _REQUEST_OPTIONS:
        if getattr(request, name) is not None:
            line[name] = listed(getattr(request, name))
    if request.priority:
        line["priority"] = request.priority
    return line


def _prompt(request: Request) -> Json:
    parts = request.prompt.parts
    if parts == ((own_stream(request.id), request.prompt_len),):
        return {"prompt_len": request.prompt_len}
    if all(part and isinstance(part[0], str) for part in parts):
        return {"prompt_parts": [list(part) for part in parts]}
    return {"prompt": list(request.prompt.tokens())}
