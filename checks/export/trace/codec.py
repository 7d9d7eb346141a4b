"""How the steps and states of a policy are written as lines of a trace, checked, and read back.

The layout follows from the policy's own records: a field of a step that `Line` has too stands in
the line, any other in its `state`. What is otherwise, the codec of the policy says.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import define, field, fields, make_class
from cattrs import Converter, override
from cattrs.gen import make_dict_unstructure_fn

from checks.export.trace.line import (
    Line,
    Past,
    aborted_since,
    arrived_since,
    blocks_of,
    ids_of,
    rows_of,
    tables_of,
)
from checks.export.trace.records import Json, converter, record, structured
from checks.export.trace.violation import Violation
from engine.workloads.checked import NOTHING
from spec.core.errors import TraceError
from spec.core.records import PREFILL, SomeSequence, SomeState, SomeStep

StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=SomeStep)

_AS_IT_IS, _LEFT_OUT = override(), override(omit=True)
_fields: Callable[[Any], tuple[Any, ...]] = fields
_field: Callable[..., Any] = lambda type_, **options: field(type=type_, **options)  # noqa: E731


@define(kw_only=True, eq=False)
class Codec(Generic[StateT, StepT]):
    """The steps and states of one policy as JSON values, and back.

    Attributes:
        state: the class of its states; `step`: of its steps; `sequence`: of the requests in them.
        line: what a line is checked to be; `states`: what its `state` has; both beyond what
            follows from the step.
        queues: the fields of a state that are its waiting queues.
        state_fields: fields of a state that files have in another way or under another name.
        constant: of a state in files, the order of its fields, with the values that never change.
        further: fields of a step that stand in its line behind those of every policy.
        apart: fields of a step that `shown` writes and `step_values` reads.
        done: what an ITF trace says that a step did, with the values where none was taken.
    """

    state: type[StateT]
    step: type[StepT]
    sequence: type[SomeSequence]
    line: type[Line] = Line
    states: type = object
    queues: tuple[str, ...] = ("waiting",)
    state_fields: Mapping[str, Any] = field(factory=dict)
    constant: Mapping[str, Any] = field(factory=dict)
    further: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    done: Mapping[str, Any] = field(factory=dict)
    converter: Converter = field(factory=converter, init=False)
    _in_line: Sequence[str] = field(init=False)
    _in_state: Sequence[str] = field(init=False)
    _full_line: type = field(init=False)
    _write_further: Mapping[str, Callable[[Any], Any]] = field(init=False)
    _write_states: Callable[[StepT], Json] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Find out once where each field of a step stands, and how it is written."""
        self.register(self.converter)
        own: Mapping[str, Any] = {key.name: key for key in _fields(self.step)}
        shown = {key.name for key in _fields(self.line)} | {"refusal", *self.further}
        self._in_line = [name for name in own if name in shown - {*self.apart}]
        self._in_state = [name for name in own if name not in {*shown, *self.apart, "index"}]
        self._full_line = self._full_line_of(own)
        self._write_further = {
            name: self.converter.get_unstructure_hook(own[name].type) for name in self.further
        }
        elsewhere: Any = dict.fromkeys(own.keys() - {*self._in_state} | {"before"}, _LEFT_OUT)
        self._write_states = make_dict_unstructure_fn(
            self.step, self.converter, _cattrs_omit_if_default=True, **elsewhere
        )

    def register(self, converter: Converter) -> None:
        """Say how the policy's records are written and read, where the default is not right."""
        record(
            converter,
            self.state,
            complete=True,
            constant=self.constant,
            last="pool",
            **self.state_fields,
        )
        state: Any = self.state | None
        read = override(struct_hook=lambda value, _: converter.structure(value, state))
        record(converter, Violation, state=read)

    def _full_line_of(self, own: Mapping[str, Any]) -> type:
        """The class of lines from which a step can be read."""
        state: dict[str, Any] = {
            name: _field(own[name].type, default=own[name].default) for name in self._in_state
        }
        state["before"] = _field(self.state | None, default=None)
        full: dict[str, Any] = {
            "arrived": _field(list[str]),
            "refusal": _field(str | None),
            **{name: _field(own[name].type) for name in self.further},
            "state": _field(
                make_class("States", state, bases=(self.states,), kw_only=True, frozen=True)
            ),
        }
        return make_class("FullLine", full, bases=(self.line,), kw_only=True, frozen=True)

    # --- to JSON ----------------------------------------------------------------------------------

    def step_as_json(self, step: StepT, past: Past | None = None, *, full: bool = False) -> Json:
        """The step's line, with `state` if it is to be `full`."""
        past, after = past or Past(), step.after
        line = {
            "step": step.index,
            "time": step.time,
            "kind": step.kind,
            "scheduled": dict(step.scheduled),
            "tkv": 0,
            "volume": 0,
            **{name: ids_of(getattr(after, name)) for name in self.queues},
            "prefilling": None,
            "decoding": [],
            "running": ids_of(after.running),
            "paused": [],
            "outputs": {id_: list(tokens) for id_, tokens in step.outputs.items()},
            "finished": list(step.finished),
            "aborted": aborted_since(past.state, step),
            "blocks": {},
            "block_tables": {},
            "events": self.converter.unstructure(step.events),
            "arrived": arrived_since(past.state, step.before),
            "refusal": step.refusal,
            **{name: write(getattr(step, name)) for name, write in self._write_further.items()},
        }
        line |= self.shown(step, past)
        if full:
            line["state"] = self.states_as_json(step, past)
        return line

    def shown(self, step: StepT, _past: Past) -> Json:
        """The fields of the line that differ by policy: rows, blocks, and what is not empty."""
        after = step.after
        return {
            "decoding": rows_of(after.running),
            "blocks": blocks_of(after.pool),
            "block_tables": tables_of(after.running),
        }

    def states_as_json(self, step: StepT, past: Past) -> Json:
        """All that rules can ask about; the state before the step only if it is a new one."""
        unchanged = step.before == past.state
        before = {} if unchanged else {"before": self.state_as_json(step.before)}
        return before | self._write_states(step)

    def state_as_json(self, state: Any) -> Json:
        """All of a state."""
        return self.converter.unstructure(state)  # type: ignore[no-any-return]

    def violation_as_json(self, violation: Violation) -> Json:
        """The fields of the last line; `loop` and `state` only where there are any."""
        return self.converter.unstructure(violation)  # type: ignore[no-any-return]

    def past_after(self, step: StepT, _past: Past) -> Past:
        """What shows in the line after that of `step`."""
        return Past(step.after)

    # --- from JSON --------------------------------------------------------------------------------

    def check(self, line: Json, *, full: bool) -> None:
        """Check the form of a step's line.

        Raises:
            TraceError: a field is missing or has a value that is not allowed.
        """
        structured(self.converter, line, self._full_line if full else self.line)

    def step_from_json(
        self, line: Json, last: SomeState | None, request_ids: Collection[str]
    ) -> StepT:
        """The step of a full line; `last` is the state that the step before left.

        Raises:
            TraceError: a state is missing, or has a request that is not among `request_ids`.
        """
        full: Any = structured(self.converter, line, self._full_line)
        values = {name: getattr(full, name) for name in (*self._in_line, *self.further)}
        values |= {name: getattr(full.state, name) for name in self._in_state}
        values |= {"index": full.step} | self.step_values(full)
        values["before"] = full.state.before or last
        if values["before"] is None:
            allowed = "the state from which the first step starts"
            raise TraceError("state.before", NOTHING, allowed)
        step = self.step(**values)
        self._refuse_unknown(step, request_ids)
        return step

    def step_values(self, _full: Any) -> Json:
        """The fields of the step that this policy's lines have in their own way."""
        return {}

    def violation_from_json(self, values: Any, request_ids: Collection[str]) -> Violation:
        """The violation that the last line has, with the state where it was found.

        Raises:
            TraceError: a field is malformed, or the state has an unknown request.
        """
        violation = structured(self.converter, values, Violation, "violation")
        if violation.state is not None:
            self._refuse_unknown(violation.state, request_ids)
        return violation

    def _refuse_unknown(self, record: Any, request_ids: Collection[str]) -> None:
        for name in self._requests_in(record):
            if name not in request_ids:
                raise TraceError("state", name, "requests that the header names")

    def _requests_in(self, record: Any) -> Iterator[str]:
        """The ids of the requests that a step or a state is made of."""
        for key in _fields(type(record)):
            value = getattr(record, key.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, self.sequence):
                    yield one.id
                elif isinstance(one, self.state):
                    yield from self._requests_in(one)

    # --- other formats ----------------------------------------------------------------------------

    def fields_of(self, state: StateT) -> Json:
        """The fields of a state as files name them."""
        return {
            self.state_fields.get(key.name, _AS_IT_IS).rename or key.name: getattr(state, key.name)
            for key in _fields(self.state)
        }

    def size(self, step: StepT) -> dict[str, int]:
        """How large a step was, in tokens, by the measure of the policy."""
        return {"tokens": sum(step.scheduled.values())}

    def prefills(self, step: StepT) -> dict[str, str]:
        """What each request that computed a part of its prompt did, for a timeline."""
        computing = step.scheduled if step.kind == PREFILL else {}
        return {name: f"prefill of {tokens} tokens" for name, tokens in computing.items()}
