"""Writing of traces, line by line."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TextIO, TypedDict, Unpack

from checks.export.files import as_line, new_file
from checks.export.policy import presentation_of
from checks.export.trace.line import Past, Violation
from checks.export.trace.requests import request_as_json
from spec.core.configuration import PolicyConfig
from spec.core.records import IDLE, SomeStep
from spec.core.requests import Request

FORMAT = "lockstep-trace"
VERSION = 1


class Extras(TypedDict, total=False):
    """Optional fields of the header.

    `actions`: the actions of the environment, any JSON values. `cost`: costs of steps, see
    `CostModel.as_mapping`. `external`: external tokens by request. `returning`: requests whose
    clients return, as 0#2, 0#3, …. `surroundings`: the surroundings of a generated case.
    """

    actions: Sequence[Any]
    cost: Mapping[str, float]
    external: Mapping[str, int]
    returning: Sequence[str]
    surroundings: Mapping[str, Any]


class TraceWriter:
    """Writes a trace file; the file is complete when the `with` block ends."""

    def __init__(
        self,
        path: Path,
        config: PolicyConfig,
        requests: Iterable[Request],
        *,
        source: str = "reference",
        full: bool = False,
        **extras: Unpack[Extras],
    ) -> None:
        """`source`: the scheduler. `full`: with the whole states, several times as large.

        `extras`: see `Extras`.
        """
        self._header: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "policy": config.policy,
            "source": source,
            "config": config.as_mapping(),
            "requests": [request_as_json(request) for request in requests],
            "full": full,
        }
        optional: dict[str, Any] = {**extras}
        for name in ("actions", "returning", "cost", "external", "surroundings"):
            value = optional.get(name, ())
            if value or (name == "actions" and name in optional):  # an empty list of actions counts
                self._header[name] = dict(value) if isinstance(value, Mapping) else list(value)
        self._codec = presentation_of(config.policy).codec
        self._full = full
        self._past = Past()
        self._steps = 0
        self._is_idle = False
        self._ended = False
        self._context: AbstractContextManager[TextIO] = new_file(path)

    def __enter__(self) -> Self:
        """Begin the file.

        Raises:
            OSError: the file cannot be written.
        """
        self._file = self._context.__enter__()
        self._line(self._header)
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def write(self, step: SomeStep) -> None:
        """Add the next step.

        Raises:
            ValueError: the step is not the next one, or the trace has ended.
        """
        # Only idle steps may be skipped.
        is_next = step.index == self._steps or (self._is_idle and step.index > self._steps)
        if self._ended or not is_next:
            due = "nothing" if self._ended else f"step {self._steps}"
            raise ValueError(f"step {step.index} written where {due} is due")
        self._line(self._codec.step_as_json(step, self._past, full=self._full))
        self._past = self._codec.past_after(step, self._past)
        self._steps = step.index + 1
        self._is_idle = step.kind == IDLE

    def violated(self, violation: Violation) -> None:
        """End the trace with a violation."""
        self._line({"violation": self._codec.as_json(violation)})
        self._ended = True

    def cut_off(self) -> None:
        """End the trace as incomplete."""
        self._line({"incomplete": True})
        self._ended = True

    def _line(self, values: dict[str, Any]) -> None:
        self._file.write(as_line(values))
        self._file.write("\n")
