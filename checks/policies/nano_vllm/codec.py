"""Traces of nano-vLLM: its steps and states as JSON values, and back.

A line has the fields of every policy, of which `decoding` lists the running queue and `tkv` is the
longest row of the step; `prefilling` is null, `paused` empty, `volume` and `last_tkv` 0, and
`last_kind` idle. The `batch` of a full line holds the rows of a prefill, too.
"""

from collections.abc import Mapping

from attrs import fields

from checks.export.trace.decoding import events_from_json, no_first_state, pool_from_json
from checks.export.trace.encoding import (
    Json,
    Past,
    aborted_since,
    arrived_since,
    blocks_as_json,
    events_as_json,
    ids_of,
    listed,
    pool_as_json,
)
from spec.core.errors import TraceError
from spec.core.records import IDLE
from spec.core.requests import Request
from spec.nano_vllm.records import Sequence, State, Step

_DEFAULTS = {key.name: key.default for key in fields(Sequence)}


def step_as_json(step: Step, past: Past, *, full: bool) -> Json:
    """The step's line, with `state` if it is to be `full`."""
    after = step.after
    line = {
        "step": step.index,
        "time": step.time,
        "kind": step.kind,
        "scheduled": dict(step.scheduled),
        "tkv": max((row.computed for row in step.batch), default=0),
        "volume": 0,
        "waiting": ids_of(after.waiting),
        "prefilling": None,
        "decoding": [_row(row) for row in after.running],
        "running": ids_of(after.running),
        "paused": [],
        "outputs": {id_: list(tokens) for id_, tokens in step.outputs.items()},
        "finished": list(step.finished),
        "aborted": aborted_since(past.state, step),
        "blocks": blocks_as_json(after.pool),
        "block_tables": {one.id: list(one.blocks) for one in after.running},
        "events": events_as_json(step.events),
        "arrived": arrived_since(past.state, step.before),
        "refusal": step.refusal,
    }
    if full:
        line["state"] = _states(step, past)
    return line


def _row(row: Sequence) -> Json:
    return {
        "id": row.id,
        "tkv": row.computed,
        "left_padding": 0,
        "computed": row.computed,
        "generated": row.generated,
    }


def _states(step: Step, past: Past) -> Json:
    states: Json = {} if step.before == past.state else {"before": state_as_json(step.before)}
    states["after"] = state_as_json(step.after)
    if step.batch:
        states["batch"] = [_sequence(row) for row in step.batch]
    if step.ended:
        states["ended"] = list(step.ended)
    return states


def state_as_json(state: State) -> Json:
    """All of a state."""
    return {
        "waiting": [_sequence(one) for one in state.waiting],
        "prefilling": None,
        "decoding": [_sequence(one) for one in state.running],
        "paused": [],
        "finished": sorted(state.finished),
        "aborted": sorted(state.aborted),
        "last_kind": IDLE,
        "last_tkv": 0,
        "pool": pool_as_json(state.pool),
    }


def _sequence(sequence: Sequence) -> Json:
    values = {name: getattr(sequence, name) for name in _DEFAULTS}
    return {name: listed(value) for name, value in values.items() if value != _DEFAULTS[name]}


def step_from_json(line: Json, last: State | None, requests: Mapping[str, Request]) -> Step:
    """The step of a full line; `last` is the state that the step before left.

    Raises:
        TraceError: a state is missing, or has a request that `requests` does not name.
    """
    states = line["state"]
    before = state_from_json(states["before"], requests) if "before" in states else last
    if before is None:
        raise no_first_state()
    return Step(
        index=line["step"],
        time=line["time"],
        kind=line["kind"],
        before=before,
        after=state_from_json(states["after"], requests),
        scheduled=line["scheduled"],
        batch=tuple(_sequence_from(row, requests) for row in states.get("batch", ())),
        outputs=line["outputs"],
        ended=tuple(states.get("ended", ())),
        finished=tuple(line["finished"]),
        aborted=tuple(line["aborted"]),
        refusal=line["refusal"],
        events=events_from_json(line["events"]),
    )


def state_from_json(entry: Json, requests: Mapping[str, Request]) -> State:
    """A whole state.

    Raises:
        TraceError: it has a request that `requests` does not name.
    """
    return State(
        pool=pool_from_json(entry["pool"]),
        waiting=tuple(_sequence_from(one, requests) for one in entry["waiting"]),
        running=tuple(_sequence_from(one, requests) for one in entry["decoding"]),
        finished=frozenset(entry["finished"]),
        aborted=frozenset(entry["aborted"]),
    )


def _sequence_from(entry: Json, requests: Mapping[str, Request]) -> Sequence:
    if entry["id"] not in requests:
        raise TraceError("state", entry["id"], "requests that the header names")
    known = {name: entry[name] for name in _DEFAULTS if name in entry}
    return Sequence(**known | {"blocks": tuple(entry.get("blocks", ()))})
