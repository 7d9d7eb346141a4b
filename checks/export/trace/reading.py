"""Traces, read back and checked: line by line, field by field, then as steps."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from checks.export.trace.codecs import Codec, codec_of
from checks.export.trace.decoding import any_config_from_json, requests_from_json
from checks.export.trace.encoding import Json, Past
from checks.export.trace.lines import HEADER, STEP, violation_of
from checks.export.trace.shapes import Check
from checks.export.trace.violation import Violation
from checks.export.trace.writing import FORMAT, VERSION
from checks.policies import policy_of
from engine.workloads.checked import NOTHING, brief
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError, TraceError
from spec.core.observable import SomeContext, SomeStep
from spec.core.requests import Request

_FIRST_STEP_LINE = 2


@frozen
class Lines:
    """The lines of the steps, checked; each is read anew whenever it is asked for.

    Kept as text: as objects, those of a long run would take ten times the memory.
    """

    _texts: list[bytes]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, step: int) -> Json:
        return _object(self._texts[step])

    def __iter__(self) -> Iterator[Json]:
        return map(_object, self._texts)


@frozen
class Trace:
    """A trace file's content; `steps` as they stand there, `requests` empty if it names none."""

    path: Path
    header: Mapping[str, Any]
    config: PolicyConfig
    requests: Mapping[str, Request]
    steps: Lines
    violation: Violation | None

    def context(self) -> SomeContext:
        """What rules may look up.

        Raises:
            TraceError: the trace does not say which requests it served.
        """
        if "requests" not in self.header:
            allowed = "the workload, without which nothing can be judged or replayed"
            raise TraceError("requests", NOTHING, allowed).at(self.path, 1)
        context: SomeContext = policy_of(self.config).context_of(
            self.config, self.requests.values()
        )
        return context


def read_trace(path: Path) -> Trace:
    """The trace in a file, its form checked.

    Raises:
        TraceError: no trace, another version, a line that is no step or not the next one.
    """
    lines = _numbered_lines(path)
    _, first = next(lines, (1, b""))
    with _placed(path, 1):
        header, config, requests = _header(first)
    codec = codec_of(config)
    shape = codec.full_step if header.get("full", False) else STEP
    steps: list[bytes] = []
    violation: Violation | None = None
    for number, text in lines:
        with _placed(path, number):
            if violation is not None:
                raise TraceError("line", brief(_text(text)), "nothing after the violation")
            line = _object(text)
            if "violation" in line:
                violation = _violation(line, requests, codec)
            else:
                _check_step(line, shape, len(steps))
                steps.append(text)
    return Trace(path, header, config, requests, Lines(steps), violation)


def steps_of(trace: Trace) -> Iterator[SomeStep]:
    """The steps as the scheduler recorded them, with the whole states before and after.

    Raises:
        TraceError: the trace is not full, or a line contradicts itself.
    """
    if not trace.header.get("full", False):
        allowed = "true; only a full trace has the states (TraceWriter(…, full=True))"
        raise TraceError("full", False, allowed).at(trace.path, 1)
    requests = trace.context().requests
    codec, past = codec_of(trace.config), Past()
    for number, line in enumerate(trace.steps, start=_FIRST_STEP_LINE):
        with _placed(trace.path, number):
            step: SomeStep = codec.step_from_json(line, past.state, requests)
            _check_agreement(line, codec.step_as_json(step, past, full=True))
        past = past.then(step)
        yield step


def _check_agreement(line: Json, again: Json) -> None:
    """Refuse a line that does not come out again when the step read from it is written.

    So both halves of a full line, the fields for readers and `state`, tell of the same step:
    what is judged is what is shown.
    """
    for name, value in again.items():
        agrees = line[name] == value if name == "block_tables" else _includes(line[name], value)
        if not agrees:
            raise TraceError(name, line[name], f"{brief(value)!r}, as the states tell")


def _includes(found: Any, due: Any) -> bool:
    """True if `found` is `due`, but for fields that nobody knows."""
    if isinstance(due, dict):
        return all(name in found and _includes(found[name], due[name]) for name in due)
    if isinstance(due, list):
        return len(found) == len(due) and all(map(_includes, found, due))
    return bool(found == due)


# --- lines -----------------------------------------------------------------------------------


@contextmanager
def _placed(path: Path, number: int) -> Iterator[None]:
    """What is refused in the block is refused with its place."""
    try:
        yield
    except InputError as error:
        shown = TraceError(str(brief(error.field)), brief(error.found), error.allowed)
        raise shown.at(path, number) from None


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from enumerate(file, start=1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        found = getattr(error, "strerror", None) or str(error)
        raise TraceError("file", found, "a file that can be read").at(path) from None


def _object(text: bytes) -> Json:
    try:
        line = json.loads(text.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise TraceError("line", brief(_text(text)), "a JSON object")
    return line


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _header(text: bytes) -> tuple[Json, PolicyConfig, dict[str, Request]]:
    header = _object(text)
    if header.get("format") != FORMAT:
        raise TraceError("format", header.get("format"), FORMAT)
    if type(header.get("version")) is not int or header["version"] != VERSION:
        raise TraceError("version", header.get("version"), str(VERSION))
    HEADER(header)
    told = header["config"].get("policy", "spyre")
    if header["policy"] != told:
        raise TraceError("policy", header["policy"], f"{told}, as config says")
    config = any_config_from_json(header["policy"], header["config"])
    return header, config, requests_from_json(header.get("requests", []))


def _check_step(line: Json, shape: Check, due: int) -> None:
    shape(line)
    if line["step"] != due:
        raise TraceError("step", line["step"], f"{due}: steps follow each other from 0")


def _violation(line: Json, requests: Mapping[str, Request], codec: Codec) -> Violation:
    violation_of(codec.state)(line)
    fields = line["violation"]
    state = fields.get("state")
    return Violation(
        fields["rule"],
        fields["says"],
        fields["found"],
        fields.get("loop"),
        None if state is None else codec.state_from_json(state, requests),
    )
