"""Reading a log of a running server, line by line.

A log is JSON lines. The first line is the header `{"format": "lockstep-log", "version": 1, …}` with

- `policy`, `config`: as a configuration file has them; `release`: of the server;
- `recorded`: the fields of a driver's record that every step has, where an empty one is left out;
  without it, the fields of the first step that scheduled tokens;
- `left_out`: further fields that are unknown, as in the hello of a driver;
- `asynchronous`: true if a step is decided before the outputs of the step before it are known;
- `undescribed`: parts of the server that take part in decisions and that no log records.

Then, in the order of time, come

- `{"arrive": {…}}`: a request, as a line of a workload without its arrival; instead of its prompt,
  `prompt_len` and `block_hashes` of the full blocks, texts that are equal for equal prefixes;
- `{"abort": "id"}`: a client leaves between two steps;
- `{"step": {…}}`: the fields of the driver's record; `outputs` are tokens or their number. Further
  fields: `seconds`, the duration; `at`, the Unix time of its end; `ended`, requests whose model
  ended them; `abort_running`, clients that left while the model ran; `loaded` and `lost`, whose
  loads ended before the step; `sent`, whose blocks were sent; `answered`, whose lookups were
  answered; `compiled`, whose grammars are ready; `encoded` and `unencodable`, whose
  images are encoded or cannot be; `block_hashes`, by request, of blocks that became full in it;
- `{"stopped": "why"}`: the recorder wrote no more.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, fields, frozen

from checks.export.limits import refuse_large_sizes
from checks.export.outside import json_object
from checks.export.trace.records import converter, missing, structured
from checks.harness.decoding import record_check, record_schema
from checks.harness.policy import evidence_of
from checks.harness.system import Json
from checks.registry import POLICIES, claims_of
from engine.workloads.checked import NOTHING, brief, whole
from engine.workloads.own import own_stream, request_of
from spec.core.errors import InputError, cannot
from spec.core.requests import Request

FORMAT, VERSION = "lockstep-log", 1
MOST_LINE_BYTES = 2**26
_LEAST = ("scheduled", "outputs")


class LogError(InputError):
    """A log that cannot be read."""


@frozen(kw_only=True)
class Header:
    """The first line of a log.

    `recorded`: the fields of a record that its steps have; None: those of the first step that
    scheduled tokens. `left_out`: further unknown fields. `asynchronous`: a step is decided before
    the outputs of the last one are known. `undescribed`: parts of the server that no log records.
    """

    policy: str
    config: Any
    release: str = ""
    recorded: frozenset[str] | None = None
    left_out: frozenset[str] = frozenset()
    asynchronous: bool = False
    undescribed: tuple[str, ...] = ()


@frozen
class Arrival:
    """A request arrives. `hashes`: of the full blocks of its prompt, None if tokens are given."""

    request: Request
    hashes: tuple[str, ...] | None = None


@frozen
class Abort:
    """A client leaves between two steps."""

    id: str


@frozen
class Logged:
    """A step. `record`: the fields of a driver's record; `around`: the further fields.

    `line`: its number in the log. `whole`: the record with an empty value for each required field
    that it lacks.
    """

    line: int
    record: Json
    around: "Around"
    whole: Json


@frozen
class Stopped:
    """The recorder wrote no more."""

    why: str


@frozen(kw_only=True)
class Around:
    """The fields of a step that no driver's record has, see the head of this module."""

    seconds: float | None = None
    at: float | None = None
    ended: tuple[str, ...] | None = None
    abort_running: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    encoded: tuple[str, ...] = ()
    unencodable: tuple[str, ...] = ()
    block_hashes: Mapping[str, tuple[str, ...]] = field(factory=dict)


Entry = Arrival | Abort | Logged | Stopped


# --- lines ----------------------------------------------------------------------------------------


class LogReader:
    """Reads a log from its beginning; `wait` is called at the end of the file.

    `wait` returns true if the file may have grown since, by default false. A last line without its
    end is not read: it is still being written.
    """

    def __init__(self, path: Path, wait: Callable[[], bool] = lambda: False) -> None:
        """Open the log and read its header.

        Raises:
            LogError: the file cannot be read, or its first line is no header.
        """
        self.path = path
        self._wait = wait
        try:
            self._file = path.open("rb")
        except (OSError, ValueError) as error:
            raise cannot("read", path, error, LogError) from None
        self._line = 0
        try:
            first = next(self._lines(), None)
            if first is None:
                raise LogError("line", NOTHING, f"the header of a {FORMAT}")
            self.header = _header_of(first)
        except InputError as error:
            raise _refusal(error, path, 1) from None

    @property
    def line(self) -> int:
        """The number of lines that were read."""
        return self._line

    @property
    def offset(self) -> int:
        """The bytes that were read."""
        return self._file.tell()

    def seek(self, offset: int, line: int) -> None:
        """Go on behind this byte and this line."""
        self._file.seek(offset)
        self._line = line

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[Entry]:
        """The entries, in the order of time.

        Raises:
            LogError: a line is none; with its number, the field, the value and what is allowed.
        """
        return self.entries(lambda _entry: None)

    def entries(self, observe: Callable[[Entry], None]) -> Iterator[Entry]:
        """The entries, each after it was observed.

        Raises:
            LogError: a line is none, or `observe` refuses its entry; with the line.
        """
        while True:
            try:
                line = next(self._lines(), None)
                if line is None:
                    return
                entry = self._entry(line)
                observe(entry)
            except InputError as error:
                raise _refusal(error, self.path, self._line) from None
            yield entry

    def _lines(self) -> Iterator[Json]:
        text = b""
        while not text.endswith(b"\n"):
            text += self._file.readline(MOST_LINE_BYTES + 1 - len(text))
            if len(text) > MOST_LINE_BYTES:
                raise LogError("line", "more", f"at most {MOST_LINE_BYTES:,} bytes")
            if not text.endswith(b"\n") and not self._wait():
                return
        self._line += 1
        yield json_object(text)

    def _entry(self, line: Json) -> Entry:
        if len(line) != 1 or (kind := next(iter(line))) not in _KINDS:
            allowed = f"one of {', '.join(_KINDS)}"
            raise LogError("line", brief(str(line)), allowed)
        value = line[kind]
        if kind in ("abort", "stopped"):
            if not isinstance(value, str):
                raise LogError(kind, brief(value), "a text")
            return Abort(value) if kind == "abort" else Stopped(value)
        if not isinstance(value, dict):
            raise LogError(kind, brief(value), "an object")
        if kind == "arrive":
            return self._arrival(value)
        return self._step(value)

    def _arrival(self, entry: Json) -> Arrival:
        hashes = entry.get("block_hashes")
        if "continued_by" in entry:
            allowed = "no such key: a log does not say which turns of a session follow"
            raise LogError("arrive.continued_by", brief(entry["continued_by"]), allowed)
        try:
            if hashes is None:
                return Arrival(request_of(entry))
            return _hashed(entry, hashes, self.header.config.block_size)
        except InputError as error:
            raise LogError(f"arrive.{error.field}", error.found, error.allowed) from None

    def _step(self, entry: Json) -> Logged:
        for name in _LEAST:
            if name not in entry:
                raise missing(f"step.{name}")
        around = structured(converter(), entry, Around, "step")
        record = {name: value for name, value in entry.items() if name not in _AROUND}
        record["outputs"] = _outputs(record["outputs"])
        whole = _empty_record(self.header.policy) | record
        record_check(self.header.policy)(whole, "step")
        return Logged(self._line, record, around, whole)


_KINDS = ("arrive", "abort", "step", "stopped")
_AROUND = frozenset(key.name for key in fields(Around))


def _refusal(error: InputError, path: Path, line: int) -> LogError:
    refused = LogError(str(brief(error.field)), brief(error.found), error.allowed)
    return refused.at(path, line)


def _hashed(entry: Json, hashes: Any, block_size: int) -> Arrival:
    """A request that is known by its length and the hashes of its full blocks."""
    is_list = isinstance(hashes, list) and all(isinstance(text, str) and text for text in hashes)
    if not is_list:
        raise LogError("block_hashes", brief(hashes), "a list of texts")
    plain = {key: value for key, value in entry.items() if key != "block_hashes"}
    length = whole("prompt_len", plain.pop("prompt_len", NOTHING), 1, 2**20, "tokens")
    if len(hashes) > length // block_size:
        allowed = f"at most {length // block_size} hashes, of the full blocks of the prompt"
        raise LogError("block_hashes", f"{len(hashes)} hashes", allowed)
    parts: list[Any] = [[text, block_size] for text in hashes]
    rest = length - len(hashes) * block_size
    own = own_stream(str(entry.get("id", "")))
    request = request_of(plain | {"prompt_parts": parts + ([[own, rest]] if rest else [])})
    return Arrival(request, tuple(hashes))


def _outputs(outputs: Any) -> Any:
    """Lists of tokens; where only their number is known, as many times `UNKNOWN_TOKEN`."""
    if not isinstance(outputs, dict):
        raise LogError("step.outputs", brief(outputs), "an object")
    return {
        name: [UNKNOWN_TOKEN] * value if type(value) is int and 0 <= value < 2**16 else value
        for name, value in outputs.items()
    }


UNKNOWN_TOKEN = -1


# --- header ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Header:
    policy: str
    config: Mapping[str, Any]
    release: str = ""
    recorded: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    asynchronous: bool = False
    undescribed: tuple[str, ...] = ()


def _header_of(line: Json) -> Header:
    for key, due in (("format", FORMAT), ("version", VERSION)):
        if line.get(key) != due or isinstance(line.get(key), bool):
            raise LogError(key, brief(line.get(key, NOTHING)), str(due))
    said = structured(converter(), line, _Header)
    if said.policy not in POLICIES:
        raise LogError("policy", brief(said.policy), ", ".join(POLICIES))
    try:
        config = claims_of(said.policy).config.from_mapping(said.config)
        refuse_large_sizes(config)
    except InputError as error:
        raise LogError(f"config.{error.field}", error.found, error.allowed) from None
    _refuse_unknown(
        "recorded", said.recorded or _LEAST, [*record_schema(said.policy).get("properties", {})]
    )
    for name in _LEAST:
        if said.recorded is not None and name not in said.recorded:
            raise LogError("recorded", list(said.recorded), f"{name} among them")
    names = evidence_of(said.policy).adapter.fields.names
    _refuse_unknown("left_out", said.left_out, names)
    return Header(
        policy=said.policy,
        config=config,
        release=said.release,
        recorded=None if said.recorded is None else frozenset(said.recorded),
        left_out=frozenset(said.left_out),
        asynchronous=said.asynchronous,
        undescribed=said.undescribed,
    )


def _refuse_unknown(key: str, words: Collection[str], allowed: Collection[str]) -> None:
    for word in words:
        if word not in allowed:
            raise LogError(key, brief(word), ", ".join(allowed))


def unreported_fields(header: Header, recorded: Collection[str]) -> frozenset[str]:
    """The fields of a record that the log's steps do not have, by the names of `left_out`."""
    properties: Mapping[str, Json] = record_schema(header.policy).get("properties", {})
    lacking = (
        entry.get("x-left-out", [name])
        for name, entry in properties.items()
        if name not in recorded
    )
    return header.left_out.union(*lacking)


@cache
def _empty_record(policy: str) -> Json:
    """An empty value for each field that a record must have; not to be changed."""
    schema = record_schema(policy)
    return _empty_fields(schema, schema)


def _empty_fields(schema: Json, root: Json) -> Json:
    properties = schema.get("properties", {})
    return {name: _empty(properties[name], root) for name in schema.get("required", ())}


def _empty(schema: Json, root: Json) -> Any:
    if "$ref" in schema:
        kind, name = schema["$ref"].removeprefix("#/").split("/")
        return _empty(root[kind][name], root)
    if "enum" in schema:
        return schema["enum"][-1]
    if schema["type"] == "object":
        return _empty_fields(schema, root)
    return _EMPTY[schema["type"]]()


_EMPTY: Mapping[str, Callable[[], Any]] = {"array": list, "integer": int, "boolean": bool}
