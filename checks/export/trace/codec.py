"""Codecs: steps and states of a policy as lines of a trace, checked and read back.

The layout follows from the policy's records: a step's field that `Line` has, too, is in the line,
any other in its `state`. The policy's codec describes exceptions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import NOTHING as REQUIRED
from attrs import define, field, fields
from cattrs import Converter, override

from checks.export.trace.line import (
    Line,
    Past,
    Violation,
    aborted_since,
    arrived_since,
    blocks_as_json,
    ids_of,
    row_as_json,
)
from checks.export.trace.records import Json, missing, new_converter, record, structured
from engine.workloads.checked import NOTHING
from spec.core.errors import TraceError
from spec.core.records import (
    PREFILL,
    Event,
    SomeSequence,
    SomeState,
    SomeStep,
    state_class,
)
from spec.core.requests import Request

StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=SomeStep)

_AS_IT_IS = override()


@define(kw_only=True, eq=False)
class Codec(Generic[StateT, StepT]):
    """The steps and states of one policy as JSON values, and back.

    Attributes:
        step: the class of its steps.
        line: the class against which a line is checked.
        queues: the fields of a state that are waiting queues.
        state_fields: fields of a state that files write differently or under another name.
        constant: the order of a state's fields in files, with the values that never change.
        further: fields of a step that its line has after those of every policy.
        apart: fields of a step that the codec writes and reads itself.
        done: the fields of a step in an ITF trace, with their values if no step was taken.
    """

    step: type[StepT]
    line: type[Line] = Line
    queues: tuple[str, ...] = ("waiting",)
    state_fields: Mapping[str, Any] = field(factory=dict)
    constant: Mapping[str, Any] = field(factory=dict)
    further: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    done: Mapping[str, Any] = field(factory=dict)
    converter: Converter = field(factory=new_converter, init=False)
    _in_line: dict[str, Any] = field(init=False)
    _in_state: dict[str, Any] = field(init=False)
    _write_events: Callable[[Any], list[Json]] = field(init=False)

    @property
    def state(self) -> type[StateT]:
        """The class of its states."""
        kind: type[StateT] = state_class(self.step)
        return kind

    def __attrs_post_init__(self) -> None:
        """Divide the fields of a step between line and `state`; required fields come first."""
        self.register(self.converter)
        own = _fields(self.step)
        line = {*_fields(self.line), *self.further}
        in_state = [name for name in own if name not in {*line, *self.apart, "index"}]
        in_state.sort(
            key=lambda name: (name == "ended", own[name].default is not REQUIRED, name == "after")
        )
        self._in_line = {name: own[name] for name in (*own, *self.further) if name in line}
        self._in_state = {name: own[name] for name in in_state}
        self._write_events = self.converter.get_unstructure_hook(tuple[Event, ...])

    def register(self, converter: Converter) -> None:
        """Register how the policy's records are written and read."""
        state: Any = self.state | None
        form: Any = {"complete": True, "constant": self.constant, "last": "pool"}
        record(converter, self.state, **form, **self.state_fields)
        read = override(struct_hook=lambda value, _: converter.structure(value, state))
        record(converter, Violation, state=read)

    # --- to JSON ----------------------------------------------------------------------------------

    def step_as_json(self, step: StepT, past: Past | None = None, *, full: bool = False) -> Json:
        """The step's line; if `full`, with `state`, which has all fields that rules read."""
        past = past or Past()
        after: Any = step.after
        line = {
            "step": step.index,
            "time": step.time,
            "kind": step.kind,
            "scheduled": dict(step.scheduled),
            "tkv": 0,
            "volume": 0,
            **{name: ids_of(getattr(after, name)) for name in self.queues},
            "prefilling": None,
            "decoding": self.rows(after),
            "running": ids_of(after.running),
            "paused": [],
            "outputs": {id_: list(tokens) for id_, tokens in step.outputs.items()},
            "finished": list(step.finished),
            "aborted": aborted_since(past.state, step),
            "blocks": blocks_as_json(after.pool),
            "block_tables": {holder.id: list(holder.blocks) for holder in self.holders(after)},
            "events": self._write_events(step.events),
            "arrived": arrived_since(past.state, step.before),
            "refusal": step.refusal,
        }
        for name in self.further:
            key = self._in_line[name]
            line[name] = self.converter.unstructure(getattr(step, name), key.type)
        line |= self.shown(step, past)
        if full:
            line["state"] = self.states_as_json(step, past)
        return line

    def rows(self, state: StateT) -> list[Json]:
        """The rows of the batch in a state."""
        return list(map(row_as_json, state.running))

    def holders(self, state: StateT) -> Sequence[SomeSequence]:
        """The requests whose block tables a line shows."""
        return state.running

    def owners(self, requests: Mapping[str, Request]) -> Mapping[str, str]:
        """The request of each row id in states with these requests; here equal to the row id."""
        return {request_id: request_id for request_id in requests}

    def shown(self, _step: StepT, _past: Past) -> Json:
        """Fields of a line that are 0 or empty for other policies."""
        return {}

    def states_as_json(self, step: StepT, past: Past) -> Json:
        """The `state` of a full line; the state before only if arrivals or aborts changed it."""
        states = {} if step.before == past.state else {"before": self.as_json(step.before)}
        for name, key in self._in_state.items():
            value = getattr(step, name)
            if name != "before" and value != key.default:
                states[name] = self.converter.unstructure(value, key.type)
        return states

    def as_json(self, value: SomeState | Violation) -> Json:
        """A whole state, or the fields of a violation that are set."""
        return self.converter.unstructure(value)  # type: ignore[no-any-return]

    def past_after(self, step: StepT, _past: Past) -> Past:
        """The past that the line after `step` depends on."""
        return Past(step.after)

    # --- from JSON --------------------------------------------------------------------------------

    def step_from_json(self, line: Json, last: SomeState | None) -> StepT:
        """The step of a full line; `last`: the state after the previous step.

        Raises:
            TraceError: a field is missing or malformed.
        """
        if "state" not in line:
            raise missing("state")
        values = {"index": line["step"], "before": last}
        for name, key in (self._in_line | self._in_state).items():
            in_line = name in self._in_line
            place, path = (line, name) if in_line else (line["state"], f"state.{name}")
            if name in place:
                values[name] = structured(self.converter, place[name], key.type, path)
            elif in_line or (key.default is REQUIRED and name not in values):
                raise missing(path)
        if values["before"] is None:
            allowed = "the state from which the first step starts"
            raise TraceError("state.before", NOTHING, allowed)
        return self.step(**values | self.read_apart(line))

    def read_apart(self, _line: Json) -> Json:
        """The fields of a step that its line does not have in the same form."""
        return {}

    # --- other formats ----------------------------------------------------------------------------

    def fields_of(self, state: StateT) -> Json:
        """The fields of a state by their names in files."""
        return {
            self.state_fields.get(name, _AS_IT_IS).rename or name: getattr(state, name)
            for name in _fields(self.state)
        }

    def size(self, step: StepT) -> dict[str, int]:
        """The size of a step in tokens, in the policy's measure."""
        return {"tokens": sum(step.scheduled.values())}

    def served(self, step: StepT) -> Json:
        """The requests of a step: the batch size, or the id of one request."""
        return {"batch": len(step.scheduled)}

    def prefills(self, step: StepT) -> dict[str, str]:
        """The part of its prompt that each request computed, in words, by id."""
        computed = step.scheduled if step.kind == PREFILL else {}
        return {
            name: f"prefill of {tokens} token{'s' * (tokens != 1)}"
            for name, tokens in computed.items()
        }


def _fields(class_: Any) -> dict[str, Any]:
    return {key.name: key for key in fields(class_)}
