"""The line protocol between us and a driver: what is sent, what comes back, checked.

JSON lines over the driver's standard streams, described in `spec/chapters/drivers.md`. The driver
speaks first: one line with its name, its release and what it can do. Then each of our lines is
answered by one line.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from attrs import frozen

from checks.harness.case import Case
from checks.harness.system import Action, Failure, Hello, Json
from checks.policies import DEFAULT, POLICIES, policy_of
from spec.core.errors import InputError
from spec.core.requests import Request

FORMAT = "lockstep-driver"
VERSION = 1

_ABILITIES = ("abort", "abort_running", "ends", "order", "refusal", "tensors")


class DriverError(InputError):
    """A driver that is not there, does not start, or does not speak the protocol."""


class NoMachineError(DriverError):
    """A driver of a policy that there is no machine of: nothing can be compared."""


def hello_of(line: str) -> Hello:
    """A driver's first line, read.

    Raises:
        DriverError: it is no such line, or of another version.
        NoMachineError: its policy has no machine.
    """
    said = read_line(line)
    for key, due in (("format", FORMAT), ("version", VERSION)):
        if said.get(key) != due:
            raise DriverError(f"driver's {key}", said.get(key), str(due))
    policy = said.get("policy", DEFAULT)
    if policy not in POLICIES:
        allowed = f"{', '.join(POLICIES)}; no other has a machine yet to compare a driver with"
        raise NoMachineError("driver's policy", policy, allowed)
    _refuse_others("config", said.get("config", ()), POLICIES[policy].keys)
    _refuse_others("abilities", said.get("abilities", ()), _ABILITIES)
    _refuse_others("left_out", said.get("left_out", ()), POLICIES[policy].adapter.fields.names)
    return Hello(
        name=str(said.get("name", "")),
        release=str(said.get("release", "")),
        policy=policy,
        config={key: list(values) for key, values in said.get("config", {}).items()},
        abilities=frozenset(said.get("abilities", ())),
        unreported=frozenset(said.get("left_out", ())),
    )


def _refuse_others(key: str, words: Iterable[str], allowed: Collection[str]) -> None:
    for word in words:
        if word not in allowed:
            raise DriverError(f"driver's {key}", word, ", ".join(allowed))


@frozen
class Played:
    """The records of the steps that were taken, and why there are not more."""

    records: Sequence[Json]
    failure: Failure | None = None


def start_line(case: Case, *, tensors: bool) -> Json:
    """The line that begins an episode; no request has arrived yet.

    `tensors`: whether the records shall have what the device was given, too.
    """
    config, derived = case.config.as_mapping(), case.config.derived()
    extras = policy_of(case.config).adapter.request_extras(case)
    return {
        "tensors": tensors,
        "do": "start",
        "config": config | derived,
        "not_configured": [key for key in derived if key not in config],
        "requests": [_request(one) | extras.get(one.id, {}) for one in case.requests],
    }


def _request(request: Request) -> Json:
    """Prompt and output by their tokens; the output up to `max_tokens`, even if it ends earlier."""
    return {
        "id": request.id,
        "prompt": list(request.prompt.tokens()),
        "max_tokens": request.max_tokens,
        "output_len": request.end,
        "output": [request.output_token(index) for index in range(request.max_tokens)],
        "priority": request.priority,
    }


def play_line(actions: Iterable[Action]) -> Json:
    """The line that asks for steps, one for each action."""
    return {"do": "play", "steps": [action.as_json() for action in actions]}


def played(answer: Json) -> Played:
    """The answer to a `play` line, read.

    Raises:
        DriverError: it is no such answer.
    """
    records, error = answer.get("steps", []), answer.get("error")
    if not isinstance(records, list) or (error is None and "steps" not in answer):
        raise DriverError("driver's answer", str(answer)[:200], "steps, or an error")
    return Played(records, None if error is None else failure_of(error))


def failure_of(error: Any) -> Failure:
    """An `error` entry, whatever of it is there."""
    said = error if isinstance(error, dict) else {"type": "Error", "message": str(error)}
    return Failure(*(str(said.get(key, "")) for key in ("type", "message", "at", "of")))


def read_line(line: str) -> Json:
    """A JSON object.

    Raises:
        DriverError: the line is none.
    """
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise DriverError("driver's line", line.strip()[:200], "one JSON object")
    return said
