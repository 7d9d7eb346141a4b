"""Recordings: the records of a driver in an episode, as a file that stands for the absent driver.

JSON lines. The first is the header `{"format": "lockstep-recording", "version": 1, …}` with

- `driver`, `release`, `abilities`, `left_out`: from the driver's hello;
- `about`: the content; `command`: the command that wrote the file;
- `config`, `requests`: as workload and configuration files write them; with further inputs:
  `right_drafts`, by request the tokens that a drafter predicts correctly, or not at all;
  `external`, the tokens that a connector has, in which steps loads end, and whether they fail;
  `sends`, `answers`, `grammars`, `encodings` and `unencodable`, in which steps sends end, lookups
  are answered, grammars are ready, and images are encoded or turn out to be unencodable;
- `strictness`, `aborts_while_running`, `judged`: how the driver was compared;
- `alone`: true if the driver was judged by the rules and not compared;
- `path`: the labels of the edges that the case follows in the reference's graph, if it does;
- `choices`, `set`: the draws of the case and the pinned keys, from which it can be shrunk; older
  files lack them.

Then comes a line for each step, `{"action": …, "record": …}`, as in the line protocol. If the
driver raised: `{"failure": {"type", "message", "at"}}`. The last line is the outcome of the
comparison: `{"outcome": {"steps", "known", "finding"}}`; `known` is the id of a known difference or
null, `finding` has `kind`, `step`, `cause`, or is null. For a divergence, `own_steps` is the
driver's own run of the case: `steps`, `tokens`, `computed` and `wrong` (null or `kind`, `step`,
`cause`, `says`, `broken`), see `Alone`. If the case was judged alone, the line is
`{"outcome": {"steps", "broken"}}` with an entry for each finding.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, define, evolve, field, frozen

from checks.export.files import write_lines
from checks.export.limits import refuse_large_sizes
from checks.export.outside import json_objects
from checks.export.trace.records import converter, missing, structured
from checks.export.trace.requests import requests_from_json
from checks.harness.case import Case, refuse_to_repeat, surroundings_from_json
from checks.harness.choices import node_as_json, node_from_json
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms, compare
from checks.harness.decoding import RecordError, decoded, record_check, record_schema
from checks.harness.driver.protocol import DriverError, failure_of, refuse_unknown_words
from checks.harness.finding import FOR_EVER, Alone, Episode, Finding, Kind
from checks.harness.policy import evidence_of
from checks.harness.system import Action, Failure, Hello, Json, System, Taken
from checks.registry import DEFAULT, POLICIES, RULES, claims_of
from checks.words import counted
from engine.workloads.checked import NOTHING, brief
from spec.core.errors import InputError, Place

Made = TypeVar("Made")

FORMAT = "lockstep-recording"
VERSION = 1

_EARLIER = {"somebody waits for ever": FOR_EVER}  # causes as earlier recordings have them


class RecordingError(InputError):
    """A recording that cannot be read, or whose records are not those of its case."""


@frozen
class Recording:
    """A case with the records of a driver; implements `System`, for this case only.

    `actions`: those of each step with a record, then those of the failed step, if any. `own_steps`:
    for a divergence, the driver's own run. `pinned`: keys that were not drawn.
    """

    path: Path
    hello: Hello
    about: str
    command: str
    case: Case
    terms: Terms
    actions: Sequence[Json]
    records: Sequence[Json]
    failure: Failure | None
    outcome: Json
    own_steps: Alone | None = None
    pinned: Mapping[str, Any] = field(factory=dict)

    def repeat_command(self, path: Path) -> str:
        """The command that runs the case again from a file at this path."""
        if path.name in self.command:
            return self.command.replace(path.name, str(path))
        return f"lockstep conform DRIVER --case {path}"

    def close(self) -> None:
        """There is nothing to release."""

    def play(self, _case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """The recorded steps.

        Raises:
            RecordingError: the actions differ from the recorded ones, or a record is malformed.
        """
        policy = self.case.config.policy
        ctx = claims_of(policy).context_of(self.case.config, self.case.requests)
        decoder = evidence_of(policy).adapter.decoder(ctx)
        numbered = enumerate(actions)
        for record, (index, action) in zip(self.records, numbered, strict=False):
            self._require(action, index)
            try:
                step = decoded(decoder, record, action, index)
            except RecordError as error:
                raise _refusal(error, self.path, index + 2) from None
            yield Taken(step, record)
        if self.failure is not None:
            for index, action in islice(numbered, 1):  # the reference takes the step, too
                self._require(action, index)
            yield self.failure

    def _require(self, action: Action, index: int) -> None:
        """Refuse an action that was not recorded; older files lack the action of a failure."""
        if index < len(self.actions) and self.actions[index] != action.as_json():
            allowed = f"{action.as_json()}, as the reference has it"
            raise RecordingError("action", self.actions[index], allowed).at(self.path, index + 2)


def is_recording(path: Path) -> bool:
    """True if the file begins like a recording; false if it cannot be read."""
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.readline(100)
    except OSError:
        return False


def fitted(hello: Hello, case: Case) -> Case:
    """The case with the value of each key for which the release supports one value."""
    return evolve(case, config=evolve(case.config, **hello.pinned))


def outcome_as_json(episode: Episode, terms: Terms) -> Json:
    """The outcome in the last line."""
    findings = sorted(
        episode.findings.values(), key=lambda finding: (finding.step, finding.signature)
    )
    found = list(map(finding_as_json, findings))
    if terms.rules_only:
        return {"steps": episode.steps, "broken": found}
    return {"steps": episode.steps, "known": episode.known, "finding": found[0] if found else None}


def finding_as_json(finding: Finding) -> Json:
    """The identity of a finding in files and reports."""
    return {"kind": finding.kind.value, "step": finding.step, "cause": finding.cause}


def outcome_in_words(outcome: Json) -> str:
    """The outcome as one line."""
    findings = outcome.get("broken") or [*filter(None, [outcome.get("finding")])]
    if findings:
        return "; ".join("{kind} in step {step}: {cause}".format(**entry) for entry in findings)
    equal = counted(outcome["steps"], "equal step")
    return f"{outcome['known']} after {equal}" if outcome.get("known") else equal


def refuse_impossible(hello: Hello, case: Case, terms: Terms, path: Path) -> None:
    """Refuse the case of a file if the system's hello excludes it.

    Raises:
        DriverError: names the configuration key or the ability, and the file.
    """
    config = case.config if not terms.rules_only else fitted(hello, case).config
    if config.policy != hello.policy:
        allowed = f"{hello.policy}, as {hello.release}"
        raise DriverError("policy of the case", config.policy, allowed).at(path)
    for key, values in hello.config.items():
        value = getattr(config, key)
        if value not in values:
            can_do = ", ".join(json.dumps(plain_json(choice)) for choice in values)
            allowed = f"{can_do}: {hello.release} can do no other"
            raise DriverError(f"{key} of the case", plain_json(value), allowed).at(path)
    leavers = [request.id for request in case.requests if request.abort_at is not None]
    if leavers and "abort" not in hello.abilities:
        allowed = f"no aborts: {hello.release} does not say that it can do them"
        raise DriverError("abort_at of the case", f"request {', '.join(leavers)}", allowed).at(path)


def record(
    system: System,
    case: Case,
    terms: Terms,
    path: Path,
    *,
    about: str,
    command: str,
    own_steps: Alone | None = None,
    pinned: Mapping[str, Any] | None = None,
) -> Episode:
    """Run the case on the system and write its records and the outcome.

    Raises:
        OSError: the file cannot be written.
    """
    tape = Tape(system)
    episode = compare(tape, case, terms)
    header = _header(tape.hello, case, terms, about=about, command=command)
    if case.choices:
        header |= {"choices": node_as_json(case.choices), "set": plain_json(pinned or {})}
    outcome: Json = {"outcome": outcome_as_json(episode, terms)}
    if own_steps is not None:
        outcome["own_steps"] = _own_steps_as_json(own_steps)
    write_lines(path, (header, *tape.lines(), outcome))
    return episode


def file_name(driver: str, case: Case, finding: Finding) -> str:
    """A file name from the driver, the finding and a digest of the case."""
    text = json.dumps(case.as_mapping(), sort_keys=True)
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    words = f"{driver} {finding.kind} {finding.cause}".lower()
    return "-".join([*re.findall(r"[^\W_]+", words), f"{digest}.jsonl"])


@define
class Tape:
    """A system that keeps the actions, the steps and the failure of the system that it wraps."""

    system: System
    actions: list[Action] = field(factory=list, init=False)
    taken: list[Taken] = field(factory=list, init=False)
    failure: Failure | None = field(default=None, init=False)

    @property
    def hello(self) -> Hello:
        """The hello of the wrapped system."""
        return self.system.hello

    def play(self, case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """The results of the wrapped system."""
        for result in self.system.play(case, map(self._noted, actions)):
            if isinstance(result, Failure):
                self.failure = result
            else:
                self.taken.append(result)
            yield result

    def close(self) -> None:
        """Close the wrapped system."""
        self.system.close()

    def _noted(self, action: Action) -> Action:
        self.actions.append(action)
        return action

    def lines(self) -> Iterator[Json]:
        """The lines of a recording between its header and its outcome."""
        for action, taken in zip(self.actions, self.taken, strict=False):
            yield {"action": action.as_json(), "record": taken.record}
        if self.failure is not None:
            # A scheduler in this process may fail before it was given an action.
            last = self.actions[len(self.taken) :]
            done = {"action": last[0].as_json()} if last else {}
            yield done | {"failure": asdict(self.failure)}


def _header(hello: Hello, case: Case, terms: Terms, *, about: str, command: str) -> Json:
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": about,
        "command": command,
        "driver": hello.name,
        "release": hello.release,
        "abilities": sorted(hello.abilities),
        "left_out": sorted(hello.unreported),
        "strictness": terms.strictness.value,
        "aborts_while_running": terms.aborts_while_running,
        "judged": terms.judged,
        **case.as_mapping(),
        **({"alone": True} if terms.rules_only else {}),
    }


@frozen(kw_only=True)
class _Header:
    """The checked fields of the first line besides format and version."""

    driver: str
    release: str
    about: str
    command: str
    abilities: tuple[str, ...]
    left_out: tuple[str, ...]
    strictness: Strictness
    aborts_while_running: bool
    judged: bool
    alone: bool = False
    set: Mapping[str, Any] = field(factory=dict)
    path: tuple[str, ...] = ()
    config: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]


@frozen(kw_only=True)
class _Found:
    """A finding in the last line."""

    kind: Kind
    step: int
    cause: str


@frozen(kw_only=True)
class _Outcome:
    """The checked fields of the last line."""

    steps: int
    known: str | None = None
    finding: _Found | None = None
    broken: Sequence[_Found] = ()


@frozen(kw_only=True)
class _Failed:
    """The failure in a line without a record."""

    type: str
    message: str
    at: str = ""


def read_recording(path: Path) -> Recording:
    """The recording in a file, its form checked.

    Raises:
        RecordingError: it is malformed or of another version; names line and field.
        WorkloadError: a request can never be served.
    """
    try:
        header, *lines = json_objects(path)
    except ValueError:
        raise RecordingError("line", NOTHING, f"the header of a {FORMAT}").at(path, 1) from None
    except InputError as error:
        raise _refusal(error, path) from None
    try:
        said, case = _header_of(header)
    except InputError as error:
        raise _refusal(error, path, 1) from None
    refuse_to_repeat(case, path)
    body = _Body(case.config.policy, said.alone)
    for number, line in enumerate(lines, start=2):
        try:
            body.take(line)
        except InputError as error:
            raise _refusal(error, path, number) from None
    if body.outcome is None:
        raise RecordingError("line", NOTHING, "an outcome in the end").at(path, len(lines) + 2)
    if len(body.records) < body.outcome["steps"]:
        allowed = f"at most {len(body.records)}, of which there are records"
        found = body.outcome["steps"]
        raise RecordingError("outcome.steps", found, allowed).at(path, len(lines) + 1)
    return Recording(
        path=path,
        hello=Hello(
            name=said.driver,
            release=said.release,
            policy=case.config.policy,
            abilities=frozenset(said.abilities),
            unreported=evidence_of(case.config.policy).adapter.fields.unreported(
                said.abilities, said.left_out
            ),
        ),
        about=said.about,
        command=said.command,
        case=case,
        terms=Terms(
            said.strictness,
            aborts_while_running=said.aborts_while_running,
            judged=said.judged,
            rules_only=said.alone,
        ),
        actions=body.actions,
        records=body.records,
        failure=body.failure,
        outcome=body.outcome,
        own_steps=body.own_steps,
        pinned=said.set,
    )


@define
class _Body:
    """The lines after the header that were read so far."""

    policy: str
    alone: bool
    actions: list[Json] = field(factory=list, init=False)
    records: list[Json] = field(factory=list, init=False)
    failure: Failure | None = field(default=None, init=False)
    outcome: Json | None = field(default=None, init=False)
    own_steps: Alone | None = field(default=None, init=False)

    def take(self, line: Json) -> None:
        """Read one line.

        Raises:
            InputError: it is malformed, or comes after the last line.
        """
        if (self.failure is not None and "outcome" not in line) or self.outcome is not None:
            raise RecordingError("line", brief(str(line)), "nothing after the last line")
        if "outcome" in line:
            self.outcome = _outcome(line["outcome"], alone=self.alone)
            self.own_steps = _as_written("own_steps", _own_steps, line.get("own_steps"))
            return
        if "action" in line or "record" in line:
            structured(converter(), line, _Around)
            self.actions.append(line["action"])
        if "failure" in line:
            structured(converter(), line["failure"], _Failed, "failure")
            self.failure = failure_of(line["failure"])
        elif "record" in line:
            record_check(self.policy)(line["record"], "record")
            self.records.append(line["record"])
        else:
            raise RecordingError("line", brief(str(line)), "a record, a failure or an outcome")


@frozen(kw_only=True)
class _Around:
    """A line with a step."""

    action: Mapping[str, Any]
    record: Mapping[str, Any] = field(factory=dict)


def _refusal(error: InputError, path: Path, line: int | None = None) -> RecordingError:
    """The error as that of a recording, with its place."""
    place = error.place or Place(str(path), line)
    return RecordingError(str(brief(error.field)), brief(error.found), error.allowed, place)


def _outcome(said: Json, *, alone: bool) -> Json:
    """The outcome in the last line, with the current names of causes."""
    structured(converter(), said, _Outcome, "outcome")
    for name in ("broken",) if alone else ("known", "finding"):
        if name not in said:
            raise missing(f"outcome.{name}")
    for finding in said.get("broken", ()):
        finding["cause"] = _EARLIER.get(finding["cause"], finding["cause"])
    return said


def _header_of(header: Json) -> tuple[_Header, Case]:
    """The first line, and the case that it describes."""
    for key, due in (("format", FORMAT), ("version", VERSION)):
        if header.get(key) != due or isinstance(header.get(key), bool):
            raise RecordingError(key, header.get(key), str(due))
    said = structured(converter(), header, _Header)
    name = header["config"].get("policy", DEFAULT)
    if not isinstance(name, str) or name not in POLICIES:
        raise RecordingError("config.policy", brief(name), ", ".join(POLICIES))
    fields_of_records = record_schema(name).get("properties", {})  # a log may leave out any
    left_out = [word for word in said.left_out if word not in fields_of_records]
    refuse_unknown_words(name, said.abilities, left_out, of="")
    requests, claims = requests_from_json(header["requests"]), claims_of(name)
    for key in said.set:
        if key not in claims.keys:
            raise RecordingError("set", brief(key), ", ".join(claims.keys))
    try:
        config = claims.config.from_mapping(header["config"])
        refuse_large_sizes(config)
    except InputError as error:
        raise RecordingError(f"config.{error.field}", error.found, error.allowed) from None
    surroundings = surroundings_from_json(header, requests)
    choices = _as_written("choices", node_from_json, header.get("choices", []))
    requests_of_case = tuple(requests.values())
    return said, Case(config, requests_of_case, surroundings, choices=choices, path=said.path)


def _own_steps_as_json(own: Alone) -> Json:
    wrong: Json | None = None
    if own.wrong is not None:
        broken = [[rule, violation] for rule, violation in own.wrong.broken]
        wrong = finding_as_json(own.wrong) | {"says": own.wrong.says, "broken": broken}
    return {
        **{"steps": own.steps, "tokens": own.tokens, "computed": own.computed},
        "wrong": wrong,
    }


def _own_steps(said: Json | None) -> Alone | None:
    if said is None:
        return None
    wrong = said["wrong"]
    if wrong is not None:
        broken = ((str(rule), str(found)) for rule, found in wrong["broken"] if rule in RULES)
        place = Kind(wrong["kind"]), int(wrong["step"]), str(wrong["cause"]), str(wrong["says"])
        wrong = Finding(*place, broken=tuple(broken))
    return Alone(int(said["steps"]), wrong, said["tokens"], bool(said["computed"]))


def _as_written(field_name: str, read: Callable[[Any], Made], said: Any) -> Made:
    """The value of a field, read by `read`; an error becomes a RecordingError."""
    try:
        return read(said)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__} {error}"
        raise RecordingError(field_name, found, "what `lockstep conform` writes") from None
