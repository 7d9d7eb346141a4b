"""Cases: what one episode runs."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, field, fields, frozen

from checks.export.trace.records import converter, joined, structured
from checks.export.trace.requests import request_as_json
from checks.harness.choices import Node
from checks.registry import claims_of
from spec.core.configuration import PolicyConfig
from spec.core.errors import TraceError, WorkloadError
from spec.core.requests import Request


@frozen
class Case:
    """A configuration, its requests, and what surrounds the scheduler.

    `config`: of the policy's own class. `surroundings`: what else a policy's generator draws, by
    name, as files write it (what a drafter foresees, what a connector holds). `swarm`: how frequent
    each kind of action is in it, an attrs class, where it was drawn. `choices`: the draws that it
    was made of, from which it can be made again.
    """

    config: Any
    requests: tuple[Request, ...]
    surroundings: Mapping[str, Any] = field(factory=dict)
    swarm: Any = field(default=None, eq=False)
    choices: Node = field(default=(), eq=False, repr=False)

    def as_mapping(self) -> dict[str, Any]:
        """Configuration, requests and surroundings as files write them."""
        return {
            "config": self.config.as_mapping(),
            "requests": [request_as_json(request) for request in self.requests],
            **self.surroundings,
        }

    @property
    def parameters(self) -> str:
        """What was drawn, in one line: keys that differ from their default, and the swarm."""
        swarm = {} if self.swarm is None else asdict(self.swarm)
        drawn = {**_changed_keys(self.config), **swarm}
        return " ".join(f"{name}={_short(value)}" for name, value in drawn.items())


@frozen(kw_only=True)
class _Held:
    """What a connector holds of a request: so many tokens, loaded every so many steps."""

    tokens: int
    every: int = 1
    fails: bool = False


@frozen(kw_only=True)
class _Surroundings:
    """What surrounds the scheduler, as files write it."""

    right_drafts: Mapping[str, str] = field(factory=dict)
    external: Mapping[str, _Held] = field(factory=dict)


def surroundings_from_json(entries: Mapping[str, Any], ids: Collection[str]) -> dict[str, Any]:
    """What surrounds the requests with these ids, as a file has it; unknown entries are ignored.

    Raises:
        TraceError: an entry is malformed, or of a request that is not there.
    """
    said = {key.name: entries[key.name] for key in fields(_Surroundings) if key.name in entries}
    structured(converter(), said, _Surroundings)
    for name, by_request in said.items():
        for request_id, what in by_request.items():
            place = joined(name, request_id)
            if request_id not in ids:
                raise TraceError(place, what, "requests that the header names")
            if name == "right_drafts" and not {*what} <= {"0", "1"}:
                raise TraceError(place, what, "digits 0 and 1")
            if name == "external" and what.get("every", 1) < 1:
                raise TraceError(joined(place, "every"), what["every"], "1 or more")
    return said


def refuse_unservable(config: PolicyConfig, requests: Iterable[Request], path: Path) -> None:
    """Refuse what no run could complete, of a file whose first line has configuration and requests.

    Raises:
        WorkloadError: the request, with the file.
    """
    for request in requests:
        try:
            claims_of(config.policy).refuse_unservable(request, config)
        except WorkloadError as error:
            raise error.at(path, 1) from None


def _changed_keys(config: PolicyConfig) -> dict[str, Any]:
    default = config.from_mapping({}).as_mapping()
    return {key: value for key, value in config.as_mapping().items() if value != default.get(key)}


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
