"""The records of a driver in an episode, as a file: it stands for the driver where that is absent.

JSON lines. The first is the header `{"format": "lockstep-recording", "version": 1, …}` with

- `driver`, `release`, `abilities`, `left_out`: as the driver said hello;
- `about`: what it shows; `command`: what made it;
- `config`, `requests`: as workload and configuration files write them, and what else surrounds the
  scheduler: `right_drafts`, of each request which of its tokens a drafter foresees; `external`, how
  many of its tokens a connector has, in which steps loads end, and whether they fail;
- `strictness`, `aborts_while_running`, `judged`: how it was compared;
- `alone`: true if it was not compared, only judged by itself;
- `path`: the labels of the edges that the case follows in the reference's graph, if it does;
- `choices`, `set`: the draws that the case was made of and the keys that were not drawn, with which
  it can be made smaller; in older files they are missing.

Then comes a line for each step, `{"action": …, "record": …}`, as the line protocol has them, and
where the driver raised, `{"failure": {"type", "message", "at"}}`. The last line is what the
comparison said: `{"outcome": {"steps", "known", "finding"}}`; `known` is the id of a known
difference or null, `finding` has `kind`, `step`, `cause`, or is null. Of a difference `own_steps`
stands beside the outcome: what the driver does where it goes on by itself, as `steps`, `tokens`,
`computed` and `wrong` (null or `kind`, `step`, `cause`, `says`, `broken`), see `Alone`. Of a case
that was judged alone it is `{"outcome": {"steps", "broken"}}`, with such an entry for each finding.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, evolve, field, frozen

from checks.export.files import write_lines
from checks.export.limits import refuse_large_pool
from checks.export.outside import objects_of
from checks.export.trace.records import converter, missing, structured
from checks.export.trace.requests import requests_from_json
from checks.harness.case import Case, refuse_unservable, surroundings_from_json
from checks.harness.choices import node_as_json, node_from_json
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms, compare
from checks.harness.decoding import RecordError, decoded, record_check
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
    """A case with what a driver reported of it; implements `System`, for this case only.

    `actions`: around each step that has a record, then around the one that failed, if one did.
    `own_steps`: of a difference what came of it. `pinned`: keys that were not drawn.
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

    def command_for(self, path: Path) -> str:
        """What runs it again, where the file is now."""
        if path.name in self.command:
            return self.command.replace(path.name, str(path))
        return f"lockstep conform DRIVER --case {path}"

    def close(self) -> None:
        """Nothing is held."""

    def play(self, _case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """The steps that the driver reported when it was given these actions.

        Raises:
            RecordingError: it was given others, or a record is none.
        """
        policy = self.case.config.policy
        ctx = claims_of(policy).context_of(self.case.config, self.case.requests)
        decoder = evidence_of(policy).adapter.decoder(ctx)
        asked = enumerate(actions)
        for record, (index, action) in zip(self.records, asked, strict=False):
            self._require(action, index)
            try:
                step = decoded(decoder, record, action, index)
            except RecordError as error:
                raise _refusal(error, self.path, index + 2) from None
            yield Taken(step, record)
        if self.failure is not None:
            for index, action in islice(asked, 1):  # the reference takes the step, too
                self._require(action, index)
            yield self.failure

    def _require(self, action: Action, index: int) -> None:
        """Refuse another action than was recorded; older files do not have that of a failure."""
        if index < len(self.actions) and self.actions[index] != action.as_json():
            allowed = f"{action.as_json()}, as the reference has it"
            raise RecordingError("action", self.actions[index], allowed).at(self.path, index + 2)


def is_recording(path: Path) -> bool:
    """True if the file begins as recordings do; false, too, if it cannot be read."""
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.readline(100)
    except OSError:
        return False


def fitted(hello: Hello, case: Case) -> Case:
    """The case with the values of those keys of which the release has one only."""
    return evolve(case, config=evolve(case.config, **hello.pinned))


def outcome_as_json(episode: Episode, terms: Terms) -> Json:
    """What the last line says."""
    in_order = sorted(episode.findings.values(), key=lambda one: (one.step, one.signature))
    found = [{"kind": one.kind.value, "step": one.step, "cause": one.cause} for one in in_order]
    if terms.rules_only:
        return {"steps": episode.steps, "broken": found}
    return {"steps": episode.steps, "known": episode.known, "finding": found[0] if found else None}


def outcome_in_words(outcome: Json) -> str:
    """The same in a line."""
    found = outcome.get("broken") or [one for one in (outcome.get("finding"),) if one]
    if found:
        return "; ".join(f"{one['kind']} in step {one['step']}: {one['cause']}" for one in found)
    after = f"after {counted(outcome['steps'], 'equal step')}"
    return f"{outcome['known']} {after}" if outcome.get("known") else f"nothing wrong {after}"


def refuse_impossible(hello: Hello, case: Case, terms: Terms, path: Path) -> None:
    """Refuse the case of a file that asks a system for what its hello says that it cannot do.

    Raises:
        DriverError: the key of the configuration, or the ability; with the file.
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
    """Run the case on the driver and write its records, with what is known of them.

    Raises:
        OSError: the file cannot be written.
    """
    tape = _Tape(system)
    episode = compare(tape, case, terms)
    header = _header(tape.hello, case, terms, about=about, command=command)
    if case.choices:
        header |= {"choices": node_as_json(case.choices), "set": plain_json(pinned or {})}
    outcome: Json = {"outcome": outcome_as_json(episode, terms)}
    if own_steps is not None:
        outcome |= {"own_steps": _own_steps_as_json(own_steps)}
    write_lines(path, tape.lines(header, outcome))
    return episode


def file_name(driver: str, case: Case, finding: Finding) -> str:
    """Named after the driver, the finding, and a digest of the case: the same for the same."""
    text = json.dumps(case.as_mapping(), sort_keys=True)
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    words = f"{driver} {finding.kind} {finding.cause}".lower()
    spaced = "".join(one if one.isalnum() else " " for one in words).split()
    return f"{'-'.join(spaced)}-{digest}.jsonl"


class _Tape:
    """A system that keeps what goes through it."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.hello = system.hello
        self._actions: list[Action] = []
        self._records: list[Json] = []
        self._failure: Failure | None = None

    def play(self, case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        for taken in self._system.play(case, map(self._noted, actions)):
            if isinstance(taken, Failure):
                self._failure = taken
            else:
                self._records.append(taken.record)
            yield taken

    def close(self) -> None:
        self._system.close()

    def _noted(self, action: Action) -> Action:
        self._actions.append(action)
        return action

    def lines(self, header: Json, outcome: Json) -> Iterator[Json]:
        """The lines of the file."""
        yield header
        for action, record in zip(self._actions, self._records, strict=False):
            yield {"action": action.as_json(), "record": record}
        if self._failure is not None:
            # A scheduler in this process may fail before anything was asked of it.
            last = self._actions[len(self._records) :]
            done = {"action": last[0].as_json()} if last else {}
            yield done | {"failure": asdict(self._failure)}
        yield outcome


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
    """What the first line is checked to have besides the name and version of the format."""

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
    """An entry of what was found."""

    kind: Kind
    step: int
    cause: str


@frozen(kw_only=True)
class _Outcome:
    """What the last line is checked to have."""

    steps: int
    known: str | None = None
    finding: _Found | None = None
    broken: Sequence[_Found] = ()


@frozen(kw_only=True)
class _Failed:
    """What a line has in the place of a record."""

    type: str
    message: str
    at: str = ""


def read_recording(path: Path) -> Recording:
    """The recording in a file, its form checked.

    Raises:
        RecordingError: it is none, or of another version; with the line and the field.
        WorkloadError: a request that could never be served.
    """
    try:
        header, *lines = objects_of(path)
    except ValueError:
        raise RecordingError("line", NOTHING, f"the header of a {FORMAT}").at(path, 1) from None
    except InputError as error:
        raise _refusal(error, path) from None
    try:
        said, case = _header_of(header)
    except InputError as error:
        raise _refusal(error, path, 1) from None
    refuse_unservable(case.config, case.requests, path)
    actions: list[Json] = []
    records: list[Json] = []
    failure: Failure | None = None
    outcome: Json | None = None
    own_steps: Alone | None = None
    for number, line in enumerate(lines, start=2):
        try:
            if (failure is not None and "outcome" not in line) or outcome is not None:
                raise RecordingError("line", brief(str(line)), "nothing after the last line")
            if "outcome" in line:
                outcome = _outcome(line["outcome"], of_one_alone=said.alone)
                own_steps = _as_written("own_steps", _own_steps, line.get("own_steps"))
                continue
            if "action" in line or "record" in line:
                structured(converter(), line, _Around)
                actions.append(line["action"])
            if "failure" in line:
                structured(converter(), line["failure"], _Failed, "failure")
                failure = failure_of(line["failure"])
                continue
            if "record" not in line:
                raise RecordingError("line", brief(str(line)), "a record, a failure or an outcome")
            record_check(case.config.policy)(line["record"], "record")
            records.append(line["record"])
        except InputError as error:
            raise _refusal(error, path, number) from None
    if outcome is None:
        raise RecordingError("line", NOTHING, "an outcome in the end").at(path, len(lines) + 2)
    if len(records) < outcome["steps"]:
        allowed = f"at most {len(records)}, of which there are records"
        raise RecordingError("outcome.steps", outcome["steps"], allowed).at(path, len(lines) + 1)
    return Recording(
        path=path,
        hello=Hello(
            name=said.driver,
            release=said.release,
            policy=case.config.policy,
            abilities=frozenset(said.abilities),
            unreported=frozenset(said.left_out),
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
        actions=actions,
        records=records,
        failure=failure,
        outcome=outcome,
        own_steps=own_steps,
        pinned=said.set,
    )


@frozen(kw_only=True)
class _Around:
    """A line with a step."""

    action: Mapping[str, Any]
    record: Mapping[str, Any] = field(factory=dict)


def _refusal(error: InputError, path: Path, line: int | None = None) -> RecordingError:
    """The same as of a recording, with its place."""
    place = error.place or Place(str(path), line)
    return RecordingError(str(brief(error.field)), brief(error.found), error.allowed, place)


def _outcome(said: Json, *, of_one_alone: bool) -> Json:
    """What the last line says, with causes as they are called now."""
    structured(converter(), said, _Outcome, "outcome")
    for name in ("broken",) if of_one_alone else ("known", "finding"):
        if name not in said:
            raise missing(f"outcome.{name}")
    for one in said.get("broken", ()):
        one["cause"] = _EARLIER.get(one["cause"], one["cause"])
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
    refuse_unknown_words(name, said.abilities, said.left_out, of="")
    requests, claims = requests_from_json(header["requests"]), claims_of(name)
    for key in said.set:
        if key not in claims.keys:
            raise RecordingError("set", brief(key), ", ".join(claims.keys))
    try:
        config = claims.config.from_mapping(header["config"])
        refuse_large_pool(config)
    except InputError as error:
        raise RecordingError(f"config.{error.field}", error.found, error.allowed) from None
    surroundings = surroundings_from_json(header, requests)
    choices = _as_written("choices", node_from_json, header.get("choices", []))
    requests_of_case = tuple(requests.values())
    return said, Case(config, requests_of_case, surroundings, choices=choices, path=said.path)


def _own_steps_as_json(own: Alone) -> Json:
    wrong = own.wrong
    said: Json = {"steps": own.steps, "tokens": own.tokens, "computed": own.computed}
    said["wrong"] = None
    if wrong is not None:
        about = {"kind": wrong.kind.value, "step": wrong.step, "cause": wrong.cause}
        said["wrong"] = {**about, "says": wrong.says, "broken": [list(one) for one in wrong.broken]}
    return said


def _own_steps(said: Json | None) -> Alone | None:
    if said is None:
        return None
    wrong = said["wrong"]
    if wrong is not None:
        broken = tuple((str(rule), str(found)) for rule, found in wrong["broken"])
        place = Kind(wrong["kind"]), int(wrong["step"]), str(wrong["cause"]), str(wrong["says"])
        wrong = Finding(*place, broken=tuple(one for one in broken if one[0] in RULES))
    return Alone(int(said["steps"]), wrong, said["tokens"], bool(said["computed"]))


def _as_written(field_name: str, read: Callable[[Any], Made], said: Any) -> Made:
    """What a field says.

    Raises:
        RecordingError: it is not as `lockstep conform` writes it.
    """
    try:
        return read(said)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__} {error}"
        raise RecordingError(field_name, found, "what `lockstep conform` writes") from None
