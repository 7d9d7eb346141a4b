"""Traces of vLLM V1: its steps and states as JSON values, and back.

A line has the fields of every policy, of which `decoding` lists the running requests and `tkv` is
the longest row of the step; `prefilling` is null, `paused` empty, `volume` 0. Further fields, as
they stand in `spec.vllm_v1.records.Step`: `drafts`, `accepted`, `admitted`, `external`,
`preempted`, `budget_left`, `reported`, `failed_loads`, `statistics`; and `skipped`, the requests
that stand before the waiting.

In full traces `state` has `after`, `planned`, and `before` where it is not the `after` of the step
before. Requests are objects that leave out what is 0 or empty.
"""

from collections.abc import Mapping

from attrs import asdict, fields

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
from checks.export.trace.lines import POOL, STEP_FIELDS
from checks.export.trace.shapes import (
    flag,
    list_of,
    map_of,
    maybe,
    number,
    one_of,
    record,
    text,
    texts,
    whole,
    wholes,
)
from spec.core.errors import TraceError
from spec.core.requests import Request
from spec.vllm_v1.records import Load, Sequence, State, Statistics, Step

_DEFAULTS = {key.name: key.default for key in fields(Sequence)}
_QUEUES = ("waiting", "skipped", "running", "draining")
_GONE = ("finished", "aborted", "unreported", "lost")
_COUNTS = ("drafts", "external", "accepted")
_NAMES = ("admitted", "preempted", "reported", "failed_loads")


# --- lines ----------------------------------------------------------------------------------------


def step_as_json(step: Step, past: Past, *, full: bool) -> Json:
    """The step's line, with `state` if it is to be `full`."""
    after = step.after
    line = {
        "step": step.index,
        "time": step.time,
        "kind": step.kind,
        "scheduled": dict(step.scheduled),
        "tkv": longest_row(step),
        "volume": 0,
        "waiting": ids_of(after.waiting),
        "skipped": ids_of(after.skipped),
        "prefilling": None,
        "decoding": [_row(one) for one in after.running],
        "running": ids_of(after.running),
        "paused": [],
        "outputs": {id_: list(tokens) for id_, tokens in step.outputs.items()},
        "finished": list(step.finished),
        "aborted": aborted_since(past.state, step),
        "blocks": blocks_as_json(after.pool),
        "block_tables": {one.id: list(one.blocks) for one in (*after.present, *after.draining)},
        "events": events_as_json(step.events),
        "arrived": arrived_since(past.state, step.before),
        "refusal": step.refusal,
        "budget_left": step.budget_left,
        "statistics": asdict(step.statistics),
        **{name: dict(getattr(step, name)) for name in _COUNTS},
        **{name: list(getattr(step, name)) for name in _NAMES},
    }
    if full:
        line["state"] = _states(step, past)
    return line


def longest_row(step: Step) -> int:
    """Positions that the longest row of the step reaches, in tokens."""
    rows = (one for one in step.planned.running if one.id in step.scheduled)
    return max((one.computed + step.scheduled[one.id] for one in rows), default=0)


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
    states |= {"planned": state_as_json(step.planned), "after": state_as_json(step.after)}
    if step.ended:
        states["ended"] = list(step.ended)
    return states


def state_as_json(state: State) -> Json:
    """All of a state."""
    return {
        **{name: [_sequence(one) for one in getattr(state, name)] for name in _QUEUES},
        **{name: sorted(getattr(state, name)) for name in _GONE},
        "pool": pool_as_json(state.pool),
    }


def _sequence(sequence: Sequence) -> Json:
    values = {name: getattr(sequence, name) for name in _DEFAULTS}
    return {name: listed(value) for name, value in values.items() if value != _DEFAULTS[name]}


# --- and back -------------------------------------------------------------------------------------


def step_from_json(line: Json, last: State | None, requests: Mapping[str, Request]) -> Step:
    """The step of a full line; `last` is the state that the step before left.

    Raises:
        TraceError: a state is missing, or has a request that `requests` does not name.
    """
    states = line["state"]
    before = state_from_json(states["before"], requests) if "before" in states else last
    if before is None:
        raise no_first_state()
    counts: Json = {name: line[name] for name in _COUNTS}
    names: Json = {name: tuple(line[name]) for name in _NAMES}
    return Step(
        index=line["step"],
        time=line["time"],
        before=before,
        planned=state_from_json(states["planned"], requests),
        after=state_from_json(states["after"], requests),
        scheduled=line["scheduled"],
        budget_left=line["budget_left"],
        refusal=line["refusal"],
        statistics=Statistics(**line["statistics"]),
        outputs={name: tuple(tokens) for name, tokens in line["outputs"].items()},
        finished=tuple(line["finished"]),
        aborted=tuple(line["aborted"]),
        ended=tuple(states.get("ended", ())),
        events=events_from_json(line["events"]),
        **counts,
        **names,
    )


def state_from_json(values: Json, requests: Mapping[str, Request]) -> State:
    """A whole state.

    Raises:
        TraceError: it has a request that `requests` does not name.
    """
    queues: Json = {
        name: tuple(_sequence_from(one, requests) for one in values[name]) for name in _QUEUES
    }
    gone: Json = {name: frozenset(values[name]) for name in _GONE}
    return State(pool=pool_from_json(values["pool"]), **queues, **gone)


def _sequence_from(values: Json, requests: Mapping[str, Request]) -> Sequence:
    if values["id"] not in requests:
        raise TraceError("state", values["id"], "requests that the header names")
    known = {name: values[name] for name in _DEFAULTS if name in values}
    load = Load(values.get("load", Load.NONE))
    return Sequence(**known | {"blocks": tuple(values.get("blocks", ())), "load": load})


# --- shapes ---------------------------------------------------------------------------------------

_SEQUENCE = record(
    {"id": text, "prompt_len": whole},
    {
        "arrival": whole,
        "computed": whole,
        "generated": whole,
        "drafts": whole,
        "blocks": wholes,
        "prefilling": flag,
        "load": one_of(*Load),
    },
)
STATE = record(
    {
        **dict.fromkeys(_QUEUES, list_of(_SEQUENCE)),
        **dict.fromkeys(_GONE, texts),
        "pool": POOL,
    }
)
FULL_STEP = record(
    {
        **STEP_FIELDS,
        "arrived": texts,
        "refusal": maybe(text),
        "budget_left": whole,
        "statistics": record({"waiting": whole, "running": whole, "usage": number}),
        **dict.fromkeys(_COUNTS, map_of(text, whole)),
        **dict.fromkeys(_NAMES, texts),
        "state": record({"after": STATE, "planned": STATE}, {"before": STATE, "ended": texts}),
    }
)
