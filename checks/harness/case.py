"""Cases: what one episode runs."""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen

from checks.export.trace.requests import request_as_json
from checks.harness.choices import Node
from spec.core.configuration import PolicyConfig
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


def _changed_keys(config: PolicyConfig) -> dict[str, Any]:
    default = config.from_mapping({}).as_mapping()
    return {key: value for key, value in config.as_mapping().items() if value != default.get(key)}


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
