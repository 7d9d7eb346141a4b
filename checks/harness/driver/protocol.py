"""The line protocol between us and a driver: what is sent, what comes back, checked.

JSON lines over the driver's standard streams, described in `spec/chapters/drivers.md`. The driver
speaks first: one line that says who it is and what it can do. Then each of our lines is answered
by one line.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from attrs import field, fields, frozen

from checks.conformance.leftout import FIELDS
from checks.policies import POLICIES
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config

FORMAT = "lockstep-driver"
VERSION = 1

Json = dict[str, Any]

_ABILITIES = ("abort", "abort_running", "ends", "tensors")


class DriverError(InputError):
    """A driver that is not there, does not start, or does not speak the protocol."""


class NoMachineError(DriverError):
    """A driver of a policy that there is no machine of: nothing can be compared."""


@frozen
class Hello:
    """A driver's first line.

    `release`: of the scheduler behind it. `policy`: whose configurations it takes. `config`: of
    each configuration key that it names, the values that it can do. `abilities`: some of `abort`,
    `abort_running`, `ends`, `tensors`. `left_out`: what it does not tell of a step.
    """

    name: str
    release: str
    policy: str = "spyre"
    config: Mapping[str, Sequence[Any]] = field(factory=dict)
    abilities: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()

    @staticmethod
    def of_line(line: str) -> "Hello":
        """The first line, read.

        Raises:
            DriverError: it is no such line, or of another version.
            NoMachineError: its policy has no machine.
        """
        told = read_line(line)
        for key, due in (("format", FORMAT), ("version", VERSION)):
            if told.get(key) != due:
                raise DriverError(f"driver's {key}", told.get(key), str(due))
        policy = told.get("policy", "spyre")
        if policy not in POLICIES:
            allowed = f"{', '.join(POLICIES)}; no other has a machine yet to compare a driver with"
            raise NoMachineError("driver's policy", policy, allowed)
        _refuse_others("config", told.get("config", ()), _keys_of(policy))
        _refuse_others("abilities", told.get("abilities", ()), _ABILITIES)
        _refuse_others("left_out", told.get("left_out", ()), FIELDS[policy].names)
        return Hello(
            name=str(told.get("name", "")),
            release=str(told.get("release", "")),
            policy=policy,
            config={key: list(values) for key, values in told.get("config", {}).items()},
            abilities=frozenset(told.get("abilities", ())),
            left_out=frozenset(told.get("left_out", ())),
        )

    @property
    def pinned(self) -> Json:
        """Keys of which it can do one value only."""
        only = {key: values[0] for key, values in self.config.items() if len(values) == 1}
        set_keys = {key: one for key, one in only.items() if one is not None}
        config = POLICIES[self.policy].config.from_mapping(set_keys)
        return {key: None if one is None else getattr(config, key) for key, one in only.items()}

    def can_do(self, config: PolicyConfig) -> bool:
        """True if it implements what the configuration asks for."""
        return config.policy == self.policy and all(
            getattr(config, key) in values for key, values in self.config.items()
        )


def _keys_of(policy: str) -> tuple[str, ...]:
    return tuple(key.name for key in fields(POLICIES[policy].config))


def _refuse_others(key: str, words: Iterable[str], allowed: Collection[str]) -> None:
    for word in words:
        if word not in allowed:
            raise DriverError(f"driver's {key}", word, ", ".join(allowed))


@frozen
class DriverFailure:
    """What a driver answered instead of a step: an error of the scheduler, or its own end."""

    type: str
    message: str
    at: str

    @property
    def cause(self) -> str:
        """Type and function, without what changes with every case."""
        return f"{self.type} {self.at.partition(' ')[2]}".strip()

    def __str__(self) -> str:
        told = f"{self.type}: {self.message}" if self.message else self.type
        return f"{told} ({self.at})" if self.at else told


@frozen
class Played:
    """The records of the steps that were taken, and why there are not more."""

    records: Sequence[Json]
    failure: DriverFailure | None = None


@frozen
class Action:
    """What the environment does around one step, ids of requests.

    `arrive`, then `abort`: before the step. `abort_running`: while the model runs, between the
    scheduler's decision and its update. `ends`: who samples the end of sequence; None: as said.
    `accepted`: how many of its drafts, by request; of others none. `loaded`, `lost`: whose external
    keys and values have come before the step, or turn out not to come; where they should come
    within a step, in it.
    """

    arrive: tuple[str, ...] = ()
    abort: tuple[str, ...] = ()
    abort_running: tuple[str, ...] = ()
    ends: tuple[str, ...] | None = None
    accepted: Mapping[str, int] = field(factory=dict)
    loaded: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def as_json(self) -> Json:
        """The action without what it does not do."""
        told = {
            "arrive": list(self.arrive),
            "abort": list(self.abort),
            "abort_running": list(self.abort_running),
            "loaded": list(self.loaded),
            "lost": list(self.lost),
        }
        known: Json = {name: ids for name, ids in told.items() if ids}
        if self.accepted:
            known["accepted"] = dict(self.accepted)
        return known if self.ends is None else known | {"ends": list(self.ends)}


def start_line(
    config: PolicyConfig,
    requests: Iterable[Request],
    *,
    tensors: bool,
    external: Mapping[str, int] | None = None,
) -> Json:
    """The line that begins an episode; nobody has arrived yet.

    `tensors`: whether the records shall have what the device was given, too. `external`: tokens
    that a connector has, by request.
    """
    has = external or {}
    return {
        "tensors": tensors,
        "do": "start",
        "config": config.as_mapping() | _worked_out(config),
        "requests": [
            _request(one) | ({"external": has[one.id]} if one.id in has else {}) for one in requests
        ],
    }


def _worked_out(config: PolicyConfig) -> Json:
    """What need not be configured, as a number."""
    told = {"num_blocks": config.pool_blocks}
    if isinstance(config, VllmV1Config):
        told["max_num_batched_tokens"] = config.token_budget
    return told


def _request(request: Request) -> Json:
    """Prompt and output by their tokens; the output up to `max_tokens`, whoever ends it earlier."""
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


def failure_of(error: Any) -> DriverFailure:
    """An `error` entry, whatever of it is there."""
    told = error if isinstance(error, dict) else {"type": "Error", "message": str(error)}
    return DriverFailure(*(str(told.get(key, "")) for key in ("type", "message", "at")))


def read_line(line: str) -> Json:
    """A JSON object.

    Raises:
        DriverError: the line is none.
    """
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise DriverError("driver's line", line.strip()[:200], "one JSON object")
    return told
