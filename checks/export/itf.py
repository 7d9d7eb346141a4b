"""Traces in the Informal Trace Format (ITF) that Apalache, Quint and their viewers read.

One JSON object: `vars` names the variables, `states` has one object per moment of the run, the
first before anything happened. Each step adds the state that it left; where requests came or
clients left since the step before, the state that it started from comes before that. `action` is
the kind of the step, or `environment`, or `init` at first.

What a state holds is what the policy's state holds, under the same names (`spec.spyre.state.State`,
`spec.nano_vllm.records`, `spec.vllm_v1.records`). What a step did (`scheduled`, `chunk`, `outputs`,
`events`, …) stands in the state that it left and is empty in the others. Optional values are lists
of at most one entry and block keys are hexadecimal texts. The simulated clock is left out, because
ITF knows no fractions, and so are `from` and `to` of events, because their types differ.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import fields, frozen, has

from checks.export.files import new_file
from checks.export.trace.violation import Violation
from spec.core.records import WRITTEN_AS, SomeState, SomeStep
from spec.nano_vllm import records as nano_vllm
from spec.spyre.state import State
from spec.vllm_v1 import records as vllm_v1

Json = dict[str, Any]

_LARGEST_PLAIN = 2**53 - 1  # readers may hold plain numbers as doubles
_EVERYWHERE: Json = {"scheduled": {}, "outputs": {}, "refusal": (), "events": ()}
_NOTHING_DONE: Mapping[type, Json] = {
    State: {"tkv": 0, "volume": 0, "chunk": (), "batch": ()} | _EVERYWHERE,
    nano_vllm.State: {"batch": ()} | _EVERYWHERE,
    vllm_v1.State: {"drafts": {}, "accepted": {}} | _EVERYWHERE,
}


@frozen
class _Happened:
    """An event as ITF can write it."""

    transition: str
    id: str
    rule: str


def write_itf(path: Path, steps: Iterable[SomeStep], violation: Violation | None = None) -> None:
    """Write the steps of a run as one ITF trace.

    `violation`: the rule that the trace breaks.

    Raises:
        TraceError: no file can be written there.
    """
    with new_file(path) as file:
        json.dump(itf_trace(steps, violation), file, indent=1)
        file.write("\n")


def itf_trace(steps: Iterable[SomeStep], violation: Violation | None = None) -> Json:
    """The ITF trace of the steps of a run, as it is written.

    The `loop` of a violation becomes the index of the state that the last one repeats.
    """
    end = None if violation is None else violation.state
    states = [
        {"#meta": {"index": index, **meta}, **moment}
        for index, (meta, moment) in enumerate(_moments(steps, end))
    ]
    trace: Json = {
        "#meta": {
            "format": "ITF",
            "format-description": "https://apalache-mc.org/docs/adr/015adr-trace.html",
            "source": "lockstep-trace",
        },
        "vars": [name for name in states[0] if name != "#meta"] if states else [],
        "states": states,
    }
    if violation is not None:
        trace["#meta"] |= {"status": "violation", "rule": violation.rule, "says": violation.says}
        if violation.loop is not None:
            trace["loop"] = _index_before(states, violation.loop)
    return trace


def _index_before(states: list[Json], step: int) -> int:
    """The index of the state that this step started from, the last one if there is no such step."""
    steps = [state["#meta"].get("step") for state in states]
    return (steps.index(step) if step in steps else len(steps)) - 1


def _moments(steps: Iterable[SomeStep], end: SomeState | None) -> Iterator[tuple[Json, Json]]:
    """The states in order, `end` last, each with what its `#meta` says besides the index."""
    last: SomeState | None = None
    for step in steps:
        if step.before != last:
            yield {}, _still("init" if last is None else "environment", step.before)
        yield {"step": step.index}, _moment(step.kind, step.after, _done(step))
        last = step.after
    if end is not None:
        yield {}, _still("init" if last is None else "environment", end)


def _still(action: str, state: SomeState) -> Json:
    """A state that no step led to."""
    return _moment(action, state, _NOTHING_DONE[type(state)])


def _done(step: SomeStep) -> Json:
    done = {name: getattr(step, name) for name in _NOTHING_DONE[type(step.after)]}
    for name in done.keys() & _OPTIONAL:
        done[name] = _optional(done[name])
    events = [_Happened(one.transition, one.id, one.rule) for one in step.events]
    return done | {"events": events}


def _moment(action: str, state: Any, done: Json) -> Json:
    values = {
        key.metadata.get(WRITTEN_AS, key.name): getattr(state, key.name)
        for key in fields(type(state))
    }
    for name in values.keys() & _OPTIONAL:
        values[name] = _optional(values[name])
    return {
        "action": action,
        **{name: itf_value(value) for name, value in (done | values).items()},
    }


_OPTIONAL = {"chunk", "refusal", "prefilling"}


def _optional(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def itf_value(value: Any) -> Any:
    """A value of ours as ITF writes it: records as objects, maps and sets with their marks.

    Raises:
        TypeError: ITF has no such value.
    """
    match value:
        case bool() | str():
            return value
        case int():
            return value if abs(value) <= _LARGEST_PLAIN else {"#bigint": str(value)}
        case bytes():
            return value.hex()
        case frozenset():
            return {"#set": [itf_value(one) for one in sorted(value)]}
        case Mapping():
            return {"#map": [[itf_value(key), itf_value(one)] for key, one in value.items()]}
        case list() | tuple():
            return [itf_value(one) for one in value]
    if has(type(value)):
        return {key.name: itf_value(getattr(value, key.name)) for key in fields(type(value))}
    raise TypeError(f"no ITF value for {type(value).__name__}")
