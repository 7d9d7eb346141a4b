"""What a driver told in an episode, as a file: it stands for the driver where that is not there.

JSON lines. The first is the header `{"format": "lockstep-recording", "version": 1, …}` with

- `driver`, `release`, `abilities`, `left_out`: as the driver said hello;
- `about`: what it shows; `command`: what made it;
- `config`, `requests`: as workload and configuration files write them; `right_drafts`: of each
  request which of its tokens a drafter foresees, where there is one; `external`: of whom a
  connector has how many tokens, in which steps loads end, and whether they fail;
- `strictness`, `aborts_while_running`, `judged`: how it was compared;
- `alone`: true if it was not compared, only judged by itself.

Then comes a line for each step, `{"action": …, "record": …}`, as the line protocol has them, and
where the driver raised, `{"failure": {"type", "message", "at"}}`. The last line tells what the
comparison said: `{"outcome": {"steps", "known", "finding"}}`; `known` is the id of a known
difference or null, `finding` has `kind`, `step`, `cause`, or is null. Of a case that was judged
alone it is `{"outcome": {"steps", "broken"}}`, with such an entry for each finding.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from checks.conformance.alone import Judged, fitted, judge_alone
from checks.conformance.counterparts import COUNTERPARTS
from checks.conformance.episode import Lab, Outcome, Terms, run_episode
from checks.conformance.finding import Finding
from checks.export.files import write_lines
from checks.export.trace.requests import request_as_json, requests_from_json
from checks.fuzz.cases import Case, External
from checks.fuzz.compare import Strictness
from checks.harness.driver.protocol import Action, DriverFailure, Hello, Json, Played, failure_of
from spec.core.errors import InputError

FORMAT = "lockstep-recording"
VERSION = 1


class RecordingError(InputError):
    """A recording that cannot be read, or that does not tell of the case in its header."""


@frozen
class Recording:
    """A case with what a driver told of it; implements `Lab`, for this case alone."""

    path: Path
    hello: Hello
    about: str
    command: str
    case: Case
    terms: Terms
    actions: Sequence[Json]
    records: Sequence[Json]
    failure: DriverFailure | None
    outcome: Json
    alone: bool = False

    def play(self, _case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        """What the driver told when it was given these actions.

        Raises:
            RecordingError: it was given others.
        """
        due = [action.as_json() for action in actions[: len(self.actions)]]
        for index, (told, asked) in enumerate(zip(self.actions, due, strict=False)):
            if told != asked:
                raise RecordingError("action", told, f"{asked}, as the reference has it").at(
                    self.path, index + 2
                )
        yield Played(self.records, self.failure)


def recorded_again(recording: Recording) -> Outcome:
    """The reference against the recorded driver.

    Raises:
        RecordingError: the reference takes other arrivals or aborts than the driver was given.
    """
    return run_episode(recording, recording.case, recording.terms)


def judged_again(recording: Recording) -> Judged:
    """The recorded driver, judged alone.

    Raises:
        RecordingError: the reference takes other arrivals or aborts than the driver was given.
    """
    return judge_alone(
        recording, recording.case, aborts_while_running=recording.terms.aborts_while_running
    )


def judged_on(lab: Lab, recording: Recording) -> Judged:
    """The recorded case on a release, judged alone, with what that release can do."""
    case = fitted(lab.hello, recording.case)
    return judge_alone(lab, case, aborts_while_running=recording.terms.aborts_while_running)


def outcome_as_json(outcome: Outcome) -> Json:
    """What the last line says."""
    finding = None if outcome.finding is None else _finding_as_json(outcome.finding)
    return {"steps": outcome.steps, "known": outcome.known, "finding": finding}


def judged_as_json(judged: Judged) -> Json:
    """What the last line says of a case that was judged alone."""
    found = sorted(judged.findings.values(), key=lambda one: (one.step, one.signature))
    return {"steps": judged.steps, "broken": [_finding_as_json(one) for one in found]}


def _finding_as_json(finding: Finding) -> Json:
    return {"kind": finding.kind.value, "step": finding.step, "cause": finding.cause}


def record(lab: Lab, case: Case, terms: Terms, path: Path, *, about: str, command: str) -> Outcome:
    """Run the case on the driver and write what it tells.

    Raises:
        TraceError: the file cannot be written.
    """
    tape = _Tape(lab)
    outcome = run_episode(tape, case, terms)
    header = _header(tape.hello, case, terms, about=about, command=command)
    write_lines(path, _lines(tape, header, outcome_as_json(outcome)))
    return outcome


def record_alone(
    lab: Lab, case: Case, terms: Terms, path: Path, *, about: str, command: str
) -> Judged:
    """Run the case on the driver, judged alone, and write what it tells.

    Raises:
        TraceError: the file cannot be written.
    """
    tape = _Tape(lab)
    judged = judge_alone(tape, case, aborts_while_running=terms.aborts_while_running)
    header = _header(tape.hello, case, terms, about=about, command=command) | {"alone": True}
    del tape.records[judged.steps :]
    write_lines(path, _lines(tape, header, judged_as_json(judged)))
    return judged


def file_name(driver: str, case: Case, finding: Finding) -> str:
    """Named after the driver, the finding, and a digest of the case: the same for the same."""
    text = json.dumps(case.as_mapping(), sort_keys=True)
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    words = f"{driver} {finding.kind} {finding.cause}".lower()
    told = "".join(one if one.isalnum() else " " for one in words).split()
    return f"{'-'.join(told)}-{digest}.jsonl"


class _Tape:
    """A lab that keeps what goes through it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.hello = lab.hello
        self.actions: Sequence[Action] = ()
        self.records: list[Json] = []
        self.failure: DriverFailure | None = None

    def play(self, case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        self.actions = actions
        for part in self._lab.play(case, actions):
            self.records += part.records
            self.failure = part.failure
            yield part


def _header(hello: Hello, case: Case, terms: Terms, *, about: str, command: str) -> Json:
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": about,
        "command": command,
        "driver": hello.name,
        "release": hello.release,
        "abilities": sorted(hello.abilities),
        "left_out": sorted(hello.left_out),
        "strictness": terms.strictness.value,
        "aborts_while_running": terms.aborts_while_running,
        "judged": terms.judged,
        "config": case.config.as_mapping(),
        "requests": [request_as_json(one) for one in case.requests],
        **case.surroundings,
    }


def _lines(tape: _Tape, header: Json, outcome: Json) -> Iterator[Json]:
    yield header
    for action, told in zip(tape.actions, tape.records, strict=False):
        yield {"action": action.as_json(), "record": told}
    if tape.failure is not None:
        yield {"failure": asdict(tape.failure)}
    yield {"outcome": outcome}


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
    steps = [line for line in lines if "record" in line]
    try:
        return Recording(
            path=path,
            hello=Hello(
                name=header["driver"],
                release=header["release"],
                policy=_policy(header),
                abilities=frozenset(header["abilities"]),
                left_out=frozenset(header["left_out"]),
            ),
            about=header["about"],
            command=header["command"],
            case=_case(header),
            terms=Terms(
                Strictness(header["strictness"]),
                aborts_while_running=header["aborts_while_running"],
                judged=header["judged"],
            ),
            actions=[line["action"] for line in steps],
            records=[line["record"] for line in steps],
            failure=_failure(lines),
            outcome=lines[-1]["outcome"],
            alone=header.get("alone", False),
        )
    except (KeyError, TypeError, ValueError) as error:
        allowed = "what `lockstep conform` writes"
        raise RecordingError("recording", f"{type(error).__name__} {error}", allowed).at(
            path
        ) from None


def _case(header: Json) -> Case:
    requests = requests_from_json(header["requests"])
    config = COUNTERPARTS[_policy(header)].policy.config.from_mapping(header["config"])
    external = {one: External(**has) for one, has in header.get("external", {}).items()}
    right_drafts = header.get("right_drafts", {})
    return Case(config, tuple(requests.values()), None, right_drafts, external)


def _policy(header: Json) -> str:
    return str(header["config"].get("policy", "spyre"))


def _failure(lines: Iterable[Json]) -> DriverFailure | None:
    told = next((line["failure"] for line in lines if "failure" in line), None)
    return None if told is None else failure_of(told)


def _objects(path: Path) -> Iterator[Json]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RecordingError("file", str(error), "a file that can be read").at(path) from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            told: Any = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise RecordingError("line", line[:80], "a JSON object").at(path, number)
        yield told
