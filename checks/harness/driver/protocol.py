"""The line protocol of drivers: lines to send, and checked readers of the answers.

JSON lines over the driver's standard streams, described in `spec/chapters/drivers.md`. The driver
begins with a line of its name, its release and its abilities. Then it answers each line with one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import fields, frozen

from checks.export.limits import refuse_large_sizes
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

_ABILITIES = (
    "abort",
    "abort_gone",
    "abort_running",
    "encoder_spans",
    "ends",
    "encodings",
    "fewer_drafts",
    "grammars",
    "lookups",
    "order",
    "reads_cache",
    "refusal",
    "sessions",
    "tensors",
)
_MOST_NAME_CHARACTERS, _MOST_ERROR_CHARACTERS = 200, 10_000


class DriverError(InputError):
    """A driver that is missing, does not start, or breaks the protocol."""


class NoMachineError(DriverError):
    """A driver of a policy without a machine: there is nothing to compare it with."""


_HELLO = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "name": {"type": "string"},
        "release": {"type": "string"},
        "policy": {"type": "string"},
        "config": {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}},
        "any_value": {"type": "array", "items": {"type": "string"}},
        "abilities": {"type": "array", "items": {"type": "string"}},
        "left_out": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["format", "version"],
}
_check_hello = schema_check(_HELLO)


def hello_of(line: str) -> Hello:
    """The driver's first line.

    Raises:
        DriverError: it breaks the protocol, or is of another version.
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
    refuse_unknown("driver's any_value", said.get("any_value", ()), claims_of(policy).keys)
    abilities, left_out = said.get("abilities", ()), said.get("left_out", ())
    refuse_unknown_words(policy, abilities, left_out)
    _refuse_wrong_values(policy, config)
    return Hello(
        name=said.get("name", ""),
        release=said.get("release", ""),
        policy=policy,
        config={**_defaults_of_later_keys(policy, said.get("any_value", ())), **config},
        abilities=frozenset(abilities),
        unreported=evidence_of(policy).adapter.fields.unreported(abilities, left_out),
    )


def _defaults_of_later_keys(policy: str, any_value: Collection[str]) -> Json:
    """What drivers that do not know a key are asked for; `any_value`: keys that they know."""
    config = claims_of(policy).config
    unknown = (name for name in config.LATER if name not in any_value)
    return {name: [getattr(fields(config), name).default] for name in unknown}


def refuse_unknown_words(
    policy: str, abilities: Iterable[str], left_out: Iterable[str], of: str = "driver's "
) -> None:
    """Refuse abilities and unreported fields that no driver of the policy can have.

    Raises:
        DriverError: there is one; the first is named.
    """
    refuse_unknown(f"{of}abilities", abilities, _ABILITIES)
    refuse_unknown(f"{of}left_out", left_out, evidence_of(policy).adapter.fields.names)


def refuse_unknown(key: str, words: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse words that are not allowed.

    Raises:
        DriverError: there is one; the first is named.
    """
    for word in words:
        if word not in allowed:
            raise DriverError(key, brief(word), ", ".join(allowed))


def _refuse_wrong_values(policy: str, config: Mapping[str, Sequence[Any]]) -> None:
    """Refuse values that a configuration cannot have.

    Raises:
        DriverError: there is one; the first is named.
    """
    kind = claims_of(policy).config
    types = {key.name: key.type for key in fields(kind)}
    with _refusing("driver's config."):
        for key, values in config.items():
            for value in values:
                typed(key, types[key], value)
        only = {key: values[0] for key, values in config.items() if len(values) == 1}
        refuse_large_sizes(
            kind.from_mapping({key: value for key, value in only.items() if value is not None})
        )


@contextmanager
def _refusing(of: str) -> Iterator[None]:
    """Turn input errors of the block into driver errors; `of` comes before the field's name."""
    try:
        yield
    except DriverError:
        raise
    except InputError as error:
        raise DriverError(f"{of}{error.field}", brief(error.found), error.allowed) from None


@frozen
class Played:
    """The records of the steps that were taken, and the failure that ended them, if any."""

    records: Sequence[Json]
    failure: Failure | None = None


def start_line(case: Case, *, tensors: bool) -> Json:
    """The line that begins an episode, in which no request has arrived yet.

    `tensors`: whether records shall include the tensors that the device was given.
    """
    config, derived = case.config.as_mapping(), case.config.derived()
    extras = evidence_of(case.config.policy).adapter.request_extras(case)
    return {
        "tensors": tensors,
        "do": "start",
        "config": config | derived,
        "not_configured": [key for key in derived if key not in config],
        "requests": [_request(request) | extras.get(request.id, {}) for request in case.requests],
    }


def _request(request: Request) -> Json:
    """A request with its tokens; of the output all `max_tokens`, even if it ends earlier."""
    return {
        "id": request.id,
        "prompt": list(request.prompt.tokens()),
        "max_tokens": request.max_tokens,
        "output_len": request.end,
        "output": request.output_tokens(request.max_tokens),
        "priority": request.priority,
    }


def play_line(actions: Iterable[Action]) -> Json:
    """The line that asks for a step for each action."""
    return {"do": "play", "steps": [action.as_json() for action in actions]}


def played(answer: Json) -> Played:
    """The answer to a `play` line.

    Raises:
        DriverError: it breaks the protocol.
    """
    records, error = answer.get("steps", []), answer.get("error")
    if not isinstance(records, list) or (error is None and "steps" not in answer):
        raise DriverError("driver's answer", str(answer)[:200], "steps, or an error")
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise DriverError(f"driver's steps[{index}]", brief(record), "an object")
    return Played(records, None if error is None else failure_of(error))


def failure_of(error: Any) -> Failure:
    """The failure that an `error` entry describes; its fields become text, cut where too long."""
    said = error if isinstance(error, dict) else {"type": "Error", "message": str(error)}
    texts = (str(said.get(key, "")) for key in ("type", "message", "at", "of"))
    return Failure(*(text[:_MOST_ERROR_CHARACTERS] for text in texts))


def read_line(line: str) -> Json:
    """The JSON object in a line.

    Raises:
        DriverError: there is none.
    """
    with _refusing("driver's "):
        return json_object(line)
