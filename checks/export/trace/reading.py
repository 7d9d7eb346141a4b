"""Reading and checking of traces: lines, fields, then steps."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from checks.export.limits import refuse_large_sizes
from checks.export.outside import json_object
from checks.export.policy import presentation_of
from checks.export.trace.line import Past, Violation
from checks.export.trace.records import Json, converter, joined, structured
from checks.export.trace.requests import requests_from_json
from checks.export.trace.writing import FORMAT, VERSION
from checks.registry import POLICIES, claims_of
from engine.workloads.checked import NOTHING, brief
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError, TraceError, cannot
from spec.core.records import IDLE, SomeContext, SomeState, SomeStep
from spec.core.requests import Request

_FIRST_STEP_LINE = 2


@frozen
class Lines:
    """The checked lines of the steps; each access parses the line again.

    They are stored as text, because the objects of a long run take ten times the memory.
    """

    _texts: list[bytes]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, step: int) -> Json:
        return json_object(self._texts[step])

    def __iter__(self) -> Iterator[Json]:
        return map(json_object, self._texts)


@frozen
class Trace:
    """The content of a trace file; `requests` is empty if the header has none."""

    path: Path
    header: Mapping[str, Any]
    config: PolicyConfig
    requests: Mapping[str, Request]
    steps: Lines
    violation: Violation | None
    incomplete: bool = False

    @property
    def policy(self) -> str:
        """The policy of the scheduler that was traced."""
        return self.config.policy

    @property
    def surroundings(self) -> Mapping[str, Any]:
        """The surroundings of a generated case, by name."""
        surroundings: Mapping[str, Any] = self.header.get("surroundings", {})
        return surroundings

    def context(self) -> SomeContext:
        """The context of the rules.

        Raises:
            TraceError: the header has no requests.
        """
        if "requests" not in self.header:
            allowed = "the workload, without which nothing can be judged or replayed"
            raise TraceError("requests", NOTHING, allowed).at(self.path, 1)
        claims = claims_of(self.policy)
        context: SomeContext = claims.context_of(self.config, self.requests.values())
        return context


def read_trace(path: Path) -> Trace:
    """Read a trace file and check its form.

    Raises:
        TraceError: the file is no trace or has another version, or a line is no step or not the
            next one.
    """
    lines = _numbered_lines(path)
    _, first = next(lines, (1, b""))
    with _placed(path, 1):
        header = _header(first)
        config = _config(header)
        requests = _requests(header)
    codec = presentation_of(config.policy).codec
    steps: list[bytes] = []
    last: SomeState | None = None
    violation: Violation | None = None
    due, is_idle, incomplete = 0, False, False
    for number, text in lines:
        with _placed(path, number):
            if violation is not None or incomplete:
                raise TraceError("line", brief(_text(text)), "nothing after the last line")
            line = json_object(text)
            if "incomplete" in line:
                incomplete = True
                continue
            if "violation" in line:
                violation = structured(codec.converter, line["violation"], Violation, "violation")
                state = codec.as_json(violation).get("state")
                _refuse_unknown(state, codec.owners(requests).keys())
                continue
            structured(codec.converter, line, codec.line)
            if header.get("full", False):
                last = codec.step_from_json(line, last).after
            if line["step"] != due and not (is_idle and line["step"] > due):
                allowed = f"{due}: steps follow each other from 0"
                raise TraceError("step", line["step"], allowed)
            due, is_idle = line["step"] + 1, line["kind"] == IDLE
            steps.append(text)
    return Trace(path, header, config, requests, Lines(steps), violation, incomplete)


def steps_of(trace: Trace) -> Iterator[SomeStep]:
    """The steps of a full trace, with their states before and after.

    Raises:
        TraceError: the trace is not full, or a line contradicts itself.
    """
    if not trace.header.get("full", False):
        allowed = "true; only a full trace has the states (TraceWriter(…, full=True))"
        raise TraceError("full", False, allowed).at(trace.path, 1)
    codec, past = presentation_of(trace.policy).codec, Past()
    ids = codec.owners(trace.context().requests).keys()
    for number, line in enumerate(trace.steps, start=_FIRST_STEP_LINE):
        with _placed(trace.path, number):
            step: SomeStep = codec.step_from_json(line, past.state)
            try:
                again = codec.step_as_json(step, past, full=True)
            except (LookupError, ValueError) as error:  # such as a group without sequences
                allowed = f"one of {trace.policy}: {error}"
                raise TraceError("state", brief(line["state"]), allowed) from None
            _refuse_unknown(again["state"], ids)
            _check_agreement(line, again)
        past = codec.past_after(step, past)
        yield step


def _refuse_unknown(value: Any, ids: Set[str]) -> None:
    """Refuse ids in states that are no requests of the header or their sequences."""
    if isinstance(value, dict):
        if "id" in value and value["id"] not in ids:
            raise TraceError("state", value["id"], "requests that the header names")
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        _refuse_unknown(item, ids)


def _check_agreement(line: Json, again: Json) -> None:
    """Refuse a line that differs from the line written for the step read from it.

    So both halves of a full line, the fields for readers and `state`, describe the same step.
    """
    for name, due in again.items():
        value = line.get(name, NOTHING)
        if not (value == due if name == "block_tables" else _includes(value, due)):
            raise TraceError(name, value, f"{brief(due)!r}, as the states tell")


def _includes(found: Any, due: Any) -> bool:
    """True if `found` has all of `due`; additional fields are ignored."""
    if isinstance(due, dict) and isinstance(found, dict):
        return all(name in found and _includes(found[name], due[name]) for name in due)
    if isinstance(due, list) and isinstance(found, list):
        return len(found) == len(due) and all(map(_includes, found, due))
    return bool(found == due)


# --- lines -----------------------------------------------------------------------------------


@contextmanager
def _placed(path: Path, number: int) -> Iterator[None]:
    """Add file and line to an InputError raised in the block."""
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
        raise cannot("read", path, error, TraceError) from None


def _requests(header: Json) -> Mapping[str, Request]:
    """The requests by id, with the external tokens of each."""
    external = header.get("external", {})
    requests = requests_from_json(header.get("requests", []))
    return {
        id_: evolve(request, external=external.get(id_, request.external))
        for id_, request in requests.items()
    }


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


@frozen(kw_only=True)
class _Header:
    """The fields of the header besides the format's name and version."""

    policy: str
    source: str
    config: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]] = ()
    full: bool = False
    actions: Sequence[Any] = ()
    returning: Sequence[str] = ()
    external: Mapping[str, int] = field(factory=dict)
    surroundings: Mapping[str, Any] = field(factory=dict)


def _header(text: bytes) -> Json:
    header = json_object(text)
    if header.get("format") != FORMAT:
        raise TraceError("format", header.get("format"), FORMAT)
    if type(header.get("version")) is not int or header["version"] != VERSION:
        raise TraceError("version", header.get("version"), str(VERSION))
    structured(converter(), header, _Header)
    return header


def _config(header: Json) -> PolicyConfig:
    name = header["config"].get("policy", header["policy"])
    if header["policy"] != name:
        raise TraceError("policy", header["policy"], f"{brief(name)!r}, as config says")
    if name not in POLICIES:
        raise TraceError("policy", name, ", ".join(POLICIES))
    try:
        config: PolicyConfig = claims_of(name).config.from_mapping(header["config"])
        refuse_large_sizes(config)
    except InputError as error:
        raise TraceError(joined("config", error.field), error.found, error.allowed) from None
    return config
