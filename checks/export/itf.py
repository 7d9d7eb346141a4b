"""Traces in the Informal Trace Format (ITF) that Apalache, Quint and their viewers read.

One JSON object: `vars` names the variables, `states` has one object per moment of the run, the
first before anything happened. Each step adds the state that it left; where requests came or
clients left since the step before, the state that it started from comes before that. `action` is
the kind of the step, or `environment`, or `init` at first.

What a state holds is what the policy's state holds, under the names that its traces have. What a
step did (`scheduled`, `outputs`, `events`, … and what the policy's codec names) stands in the state
that it left and is empty in the others. Optional values are lists of at most one entry and block
keys are hexadecimal texts. The simulated clock and times on it are left out, because ITF knows no
fractions, and so are `from` and `to` of events, because their types differ.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any, get_args

from attrs import fields, has

from checks.export.files import new_file
from checks.export.trace.codec import Codec
from checks.export.trace.line import Violation
from spec.core.records import SomeState, SomeStep

Json = dict[str, Any]

_LARGEST_PLAIN = 2**53 - 1  # readers may hold plain numbers as doubles
_DONE: Json = {"scheduled": {}, "outputs": {}, "refusal": None, "events": ()}


def write_itf(
    path: Path,
    codec: Codec[Any, Any],
    steps: Iterable[SomeStep],
    violation: Violation | None = None,
) -> None:
    """Write the steps of a run as one ITF trace.

    `codec`: of the policy. `violation`: the rule that the trace breaks.

    Raises:
        OSError: the file cannot be written.
    """
    with new_file(path) as file:
        json.dump(itf_trace(codec, steps, violation), file, indent=1)
        file.write("\n")


def itf_trace(
    codec: Codec[Any, Any], steps: Iterable[SomeStep], violation: Violation | None = None
) -> Json:
    """The ITF trace of the steps of a run, as it is written.

    The `loop` of a violation becomes the index of the state that the last one repeats.
    """
    end = None if violation is None else violation.state
    states = [
        {"#meta": {"index": index, **meta}, **moment}
        for index, (meta, moment) in enumerate(_moments(codec, steps, end))
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
            trace["loop"] = _state_index(states, violation.loop)
    return trace


def _state_index(states: list[Json], step: int) -> int:
    """The index of the state that this step started from, the last one if there is no such step."""
    steps = [state["#meta"].get("step") for state in states]
    return (steps.index(step) if step in steps else len(steps)) - 1


def _moments(
    codec: Codec[Any, Any], steps: Iterable[SomeStep], end: SomeState | None
) -> Iterator[tuple[Json, Json]]:
    """The states in order, `end` last, each with what its `#meta` says besides the index."""
    last: SomeState | None = None
    nothing = {**codec.done, **_DONE}
    came = "init"
    for step in steps:
        if step.before != last:
            yield {}, _moment(codec, came, step.before, nothing)
        done = {name: getattr(step, name) for name in nothing}
        yield {"step": step.index}, _moment(codec, step.kind, step.after, done)
        last, came = step.after, "environment"
    if end is not None:
        yield {}, _moment(codec, came, end, nothing)


def _moment(codec: Codec[Any, Any], action: str, state: SomeState, done: Json) -> Json:
    classes: tuple[Any, ...] = (codec.state, codec.step)
    optional = {name for class_ in classes for name in _optional(class_)}
    moment: Json = {"action": action}
    for name, value in (done | {"events": ()} | codec.fields_of(state)).items():
        moment[name] = itf_value(_entries(value) if name in optional else value)
    moment["events"] = [
        {"transition": event.transition, "id": event.id, "rule": event.rule}
        for event in done["events"]
    ]
    return moment


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
        case Set():
            return {"#set": [itf_value(item) for item in sorted(value)]}
        case Mapping():
            return {"#map": [[itf_value(key), itf_value(item)] for key, item in value.items()]}
        case list() | tuple():
            return [itf_value(item) for item in value]
    class_: Any = type(value)
    if has(class_):
        optional = _optional(class_)
        return {
            key.name: itf_value(_entries(entry) if key.name in optional else entry)
            for key in fields(class_)
            if key.type is not float
            for entry in (getattr(value, key.name),)
        }
    raise TypeError(f"no ITF value for {class_.__name__}")


@cache
def _optional(class_: Any) -> frozenset[str]:
    """The fields of a record that may be None."""
    return frozenset(key.name for key in fields(class_) if type(None) in get_args(key.type))


def _entries(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)
