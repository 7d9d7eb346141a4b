"""Lockstep from Python.

    from lockstep import api

    config = api.configuration("spyre", block_size=4, max_model_len=64)
    requests = api.requests([{"id": "a", "prompt_len": 9, "max_tokens": 3}])
    for step in api.serve(config, requests):
        print(step.kind, step.scheduled)

- Read: `configuration`, `read_configuration`, `requests`, `read_requests`.
- Step and judge: `reference`, `serve`, `Judge`, `judge_of`.
- Explore: `explore` a model of one's own, `explore_requests` under a configuration.
- Conform: `conform` a `Driver`'s class or a `System` in this process, or a driver's file in one of
  its own; `replay` what it found.

Names that `__all__` lists keep their meaning; others may change. Every function raises `InputError`
for what it cannot use, with the key, the value and what is allowed.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.cli.configuration import read_settings
from checks.drivers.lockstep_driver import END_OF_SEQUENCE, Driver
from checks.drivers.lockstep_driver import serve as serve_driver
from checks.explore.bounds import Bounds
from checks.explore.model import Always, Eventually, Model, OnStep, Transition, Witness
from checks.explore.result import Outcome, Result
from checks.explore.search import explore
from checks.harness.case import Case
from checks.harness.endless import EndlessError
from checks.harness.judging import Broken, Judge
from checks.harness.policy import evidence_of
from checks.harness.serving import served
from checks.harness.system import Action, Failure, Hello, InProcess, Scheduler, System, Taken
from checks.registry import DEFAULT, POLICIES, claims_of
from engine.workloads import read_workload
from engine.workloads.own import request_of
from lockstep.conforming import Conformed, Explored, Judged, conform, explore_requests, replay
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.requests import Request

__all__ = [
    "END_OF_SEQUENCE",
    "Action",
    "Always",
    "Bounds",
    "Broken",
    "Case",
    "Conformed",
    "Driver",
    "EndlessError",
    "Eventually",
    "Explored",
    "Failure",
    "Hello",
    "InProcess",
    "InputError",
    "Judge",
    "Judged",
    "Model",
    "OnStep",
    "Outcome",
    "PolicyConfig",
    "Request",
    "Result",
    "Scheduler",
    "System",
    "Taken",
    "Transition",
    "Witness",
    "configuration",
    "conform",
    "explore",
    "explore_requests",
    "judge_of",
    "policies",
    "read_configuration",
    "read_requests",
    "reference",
    "replay",
    "requests",
    "serve",
    "serve_driver",
]


def policies() -> tuple[str, ...]:
    """The schedulers that there is a reference of, as the key `policy` names them."""
    return tuple(POLICIES)


def configuration(policy: str = DEFAULT, **keys: Any) -> PolicyConfig:
    """A configuration of a policy; what is not given has its default.

    Raises:
        ConfigError: an unknown policy or key, a value of the wrong type or out of range.
    """
    config: PolicyConfig = claims_of(policy).config.from_mapping(keys)
    return config


def read_configuration(path: Path | str, **keys: Any) -> PolicyConfig:
    """The configuration of a TOML file; `keys` override its own.

    Raises:
        ConfigError: as `configuration`, with file and line; or the file cannot be read.
    """
    config = read_settings(Path(path)).config
    return type(config).from_mapping(config.as_mapping() | keys) if keys else config


def requests(lines: Iterable[Mapping[str, Any]]) -> tuple[Request, ...]:
    """Requests, each given as a line of a workload file has it.

    Raises:
        WorkloadError: a line that is no request.
    """
    return tuple(map(request_of, lines))


def read_requests(path: Path | str, *, limit: int | None = None) -> tuple[Request, ...]:
    """The requests of a workload file, at most the first `limit`: ours, Azure's or Mooncake's.

    Raises:
        WorkloadError: the file cannot be read, or a line is no request; with file and line.
    """
    return read_workload(path, limit=limit).requests


def reference(config: PolicyConfig, requests: Iterable[Request]) -> Scheduler[Any]:
    """The policy's reference, for these requests, none of which has arrived yet.

    `arrive`, `abort` and `step` say what happens; each step comes back as a record with the states
    before and after it (`before`, `after`) and the transitions that it is made of (`events`).

    Raises:
        WorkloadError: a request that could never be served.
    """
    case = Case(config, tuple(requests))
    scheduler: Scheduler[Any] = evidence_of(config.policy).reference(case)
    return scheduler


def serve(config: PolicyConfig, requests: Iterable[Request]) -> Iterator[Any]:
    """Every step of the reference until all requests have arrived and left, as they themselves say.

    Raises:
        WorkloadError: a request that could never be served.
        EndlessError: no client is left to come or go, and the steps repeat for ever.
    """
    yield from served(Case(config, tuple(requests)))


def judge_of(config: PolicyConfig, requests: Iterable[Request]) -> Judge:
    """Holds every rule that applies against steps: `observe(step)` yields those that it breaks.

    The steps of one run are shown in their order.
    """
    return Judge(claims_of(config.policy).context_of(config, tuple(requests)))
