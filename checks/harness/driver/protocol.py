"""The line protocol between us and a driver: what is sent, what comes back, checked.

JSON lines over the driver's standard streams, described in `spec/chapters/drivers.md`. The driver
speaks first: one line with its name, its release and what it can do. Then each of our lines is
answered by one line.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import fields, frozen

from checks.export.limits import refuse_large_pool
from checks.export.outside import json_object, schema_check
from checks.harness.case import Case
from checks.harness.policy import evidence_of
from checks.harness.system import Action, Failure, Hello, Json
from checks.registry import DEFAULT, POLICIES, claims_of
from engine.workloads.checked import brief
from spec.core.configuration import typed
from spec.core.errors import InputError
from spec.core.requests import Request

FORMAT = "lockstep-driver"
VERSION = 1

_ABILITIES = ("abort", "abort_running", "ends", "order", "refusal", "tensors")
_MOST_NAME_CHARACTERS, _MOST_ERROR_CHARACTERS = 200, 10_000


class DriverError(InputError):
    """A driver that is not there, does not start, or does not speak the protocol."""


class NoMachineError(DriverError):
    """A driver of a policy that there is no machine of: nothing can be compared."""


_HELLO = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "name": {"type": "string"},
        "release": {"type": "string"},
        "policy": {"type": "string"},
        "config": {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}},
        "abilities": {"type": "array", "items": {"type": "string"}},
        "left_out": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["format", "version"],
}
_check_hello = schema_check(_HELLO)


def hello_of(line: str) -> Hello:
    """A driver's first line, read.

    Raises:
        DriverError: it is no such line, or of another version.
        NoMachineError: its policy has no machine.
    """
    said = read_line(line)
    with _refusing("driver's "):
        _check_hello(said, "")
    policy, config = said.get("policy", DEFAULT), said.get("config", {})
    if policy not in POLICIES:
        allowed = f"{', '.join(POLICIES)}; no other has a machine yet to compare a driver with"
        raise NoMachineError("driver's policy", brief(policy), allowed)
    for name in ("name", "release"):
        if len(said.get(name, "")) > _MOST_NAME_CHARACTERS:
            allowed = f"at most {_MOST_NAME_CHARACTERS} characters"
            raise DriverError(f"driver's {name}", brief(said[name]), allowed)
    refuse_unknown("driver's config", config, claims_of(policy).keys)
    refuse_unknown_words(policy, said.get("abilities", ()), said.get("left_out", ()))
    _refuse_wrong_values(policy, config)
    return Hello(
        name=said.get("name", ""),
        release=said.get("release", ""),
        policy=policy,
        config=config,
        abilities=frozenset(said.get("abilities", ())),
        unreported=frozenset(said.get("left_out", ())),
    )


def refuse_unknown_words(
    policy: str, abilities: Iterable[str], left_out: Iterable[str], of: str = "driver's "
) -> None:
    """Refuse abilities, and names of what is left out, that no driver of the policy can have.

    Raises:
        DriverError: the first of them.
    """
    refuse_unknown(f"{of}abilities", abilities, _ABILITIES)
    refuse_unknown(f"{of}left_out", left_out, evidence_of(policy).adapter.fields.names)


def refuse_unknown(key: str, words: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse words that are not among the allowed.

    Raises:
        DriverError: the first of them.
    """
    for word in words:
        if word not in allowed:
            raise DriverError(key, brief(word), ", ".join(allowed))


def _refuse_wrong_values(policy: str, config: Mapping[str, Sequence[Any]]) -> None:
    """Each value of a key must be one that a configuration can have."""
    kind = claims_of(policy).config
    types = {key.name: key.type for key in fields(kind)}
    with _refusing("driver's config."):
        for key, values in config.items():
            for value in values:
                if value is not None:
                    typed(key, types[key], value)
        only = {key: values[0] for key, values in config.items() if len(values) == 1}
        refuse_large_pool(
            kind.from_mapping({key: value for key, value in only.items() if value is not None})
        )


@contextmanager
def _refusing(of: str) -> Iterator[None]:
    """What is refused in the block is refused as the driver's own."""
    try:
        yield
    except DriverError:
        raise
    except InputError as error:
        raise DriverError(f"{of}{error.field}", brief(error.found), error.allowed) from None


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
    extras = evidence_of(case.config.policy).adapter.request_extras(case)
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
        "output": request.output_tokens(request.max_tokens),
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
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise DriverError(f"driver's steps[{index}]", brief(record), "an object")
    return Played(records, None if error is None else failure_of(error))


def failure_of(error: Any) -> Failure:
    """An `error` entry, all that is there of it as text."""
    said = error if isinstance(error, dict) else {"type": "Error", "message": str(error)}
    texts = (str(said.get(key, "")) for key in ("type", "message", "at", "of"))
    return Failure(*(text[:_MOST_ERROR_CHARACTERS] for text in texts))


def read_line(line: str) -> Json:
    """A JSON object.

    Raises:
        DriverError: the line is none.
    """
    with _refusing("driver's "):
        return json_object(line)
