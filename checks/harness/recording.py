"""The records of a driver in an episode, as a file: it stands for the driver where that is absent.

JSON lines. The first is the header `{"format": "lockstep-recording", "version": 1, …}` with

- `driver`, `release`, `abilities`, `left_out`: as the driver said hello;
- `about`: what it shows; `command`: what made it;
- `config`, `requests`: as workload and configuration files write them, and what else surrounds the
  scheduler: `right_drafts`, of each request which of its tokens a drafter foresees; `external`, how
  many of its tokens a connector has, in which steps loads end, and whether they fail;
- `strictness`, `aborts_while_running`, `judged`: how it was compared;
- `alone`: true if it was not compared, only judged by itself;
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, frozen

from checks.export.files import write_lines
from checks.export.limits import refuse_large_pool
from checks.export.trace.requests import requests_from_json
from checks.harness.case import Case
from checks.harness.choices import node_as_json, node_from_json
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms, compare
from checks.harness.driver.protocol import DriverError, failure_of
from checks.harness.finding import FOR_EVER, Alone, Episode, Finding, Kind
from checks.harness.system import Action, Failure, Hello, Json, System, Taken
from checks.policies import DEFAULT, RULES, policy_named, policy_of
from checks.words import counted
from spec.core.errors import READABLE, InputError

FORMAT = "lockstep-recording"
VERSION = 1

_HEADER = ("config", "requests", "format", "version", "about", "command", "driver", "release")
_HOW = (
    *("abilities", "left_out", "strictness", "aborts_while_running", "judged", "alone"),
    *("choices", "set"),
)
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
            RecordingError: it was given others.
        """
        policy = policy_of(self.case.config)
        decoder = policy.adapter.decoder(policy.context_of(self.case.config, self.case.requests))
        asked = enumerate(actions)
        for record, (index, action) in zip(self.records, asked, strict=False):
            self._require(action, index)
            yield Taken(decoder.step(record, action, index), record)
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


def refuse_impossible(hello: Hello, case: Case, terms: Terms) -> None:
    """Refuse a case that asks a system for what its hello says that it cannot do.

    Raises:
        DriverError: the key of the configuration, or the ability.
    """
    config = case.config if not terms.rules_only else fitted(hello, case).config
    if config.policy != hello.policy:
        raise DriverError(
            "policy of the case", config.policy, f"{hello.policy}, as {hello.release}"
        )
    for key, values in hello.config.items():
        value = getattr(config, key)
        if value not in values:
            can_do = ", ".join(json.dumps(plain_json(one)) for one in values)
            allowed = f"{can_do}: {hello.release} can do no other"
            raise DriverError(f"{key} of the case", plain_json(value), allowed)
    leavers = [one.id for one in case.requests if one.abort_at is not None]
    if leavers and "abort" not in hello.abilities:
        allowed = f"no aborts: {hello.release} does not say that it can do them"
        raise DriverError("abort_at of the case", f"request {', '.join(leavers)}", allowed)


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


def read_recording(path: Path) -> Recording:
    """The recording in a file.

    Raises:
        RecordingError: it is none, or of another version.
    """
    lines = list(_objects(path))
    header = lines[0] if lines else {}
    for key, due in (("format", FORMAT), ("version", VERSION)):
        if header.get(key) != due:
            raise RecordingError(key, header.get(key), str(due)).at(path, 1)
    taken = [line for line in lines if "action" in line]
    try:
        return Recording(
            path=path,
            hello=Hello(
                name=header["driver"],
                release=header["release"],
                policy=_policy(header),
                abilities=frozenset(header["abilities"]),
                unreported=frozenset(header["left_out"]),
            ),
            about=header["about"],
            command=header["command"],
            case=_case(header),
            terms=Terms(
                Strictness(header["strictness"]),
                aborts_while_running=header["aborts_while_running"],
                judged=header["judged"],
                rules_only=header.get("alone", False),
            ),
            actions=[line["action"] for line in taken],
            records=[line["record"] for line in taken if "record" in line],
            failure=next((failure_of(one["failure"]) for one in lines if "failure" in one), None),
            outcome=_outcome(lines[-1]["outcome"]),
            own_steps=_own_steps(lines[-1].get("own_steps")),
            pinned=header.get("set", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        found, allowed = f"{type(error).__name__} {error}", "what `lockstep conform` writes"
        raise RecordingError("recording", found, allowed).at(path) from None


def _outcome(said: Json) -> Json:
    """What the last line says, with causes as they are called now."""
    for one in said.get("broken", ()):
        one["cause"] = _EARLIER.get(one["cause"], one["cause"])
    return said


def _case(header: Json) -> Case:
    requests = requests_from_json(header["requests"])
    config = policy_named(_policy(header)).config.from_mapping(header["config"])
    refuse_large_pool(config)
    surroundings = {name: what for name, what in header.items() if name not in (*_HEADER, *_HOW)}
    choices = node_from_json(header.get("choices", []))
    return Case(config, tuple(requests.values()), surroundings, choices=choices)


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


def _policy(header: Json) -> str:
    return str(header["config"].get("policy", DEFAULT))


def _objects(path: Path) -> Iterator[Json]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordingError("file", error.strerror, READABLE).at(path) from None
    except ValueError as error:
        raise RecordingError("file", str(error), "UTF-8 text").at(path) from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            content: Any = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise RecordingError("line", line[:80], "a JSON object").at(path, number)
        yield content
