"""Lockstep from Python.

    from lockstep import api

    config = api.configuration("spyre", block_size=4, max_model_len=64)
    requests = api.requests([{"id": "a", "prompt_len": 9, "max_tokens": 3}])
    for step in api.serve(config, requests):
        print(step.kind, step.scheduled)

- Read: `configuration`, `read_configuration`, `requests`, `read_requests`.
- Step and judge: `reference`, `serve`, `Judge`, `judge_of`.
- Measure: `simulate` gives the latencies and other figures of a workload.
- Explore: `explore` your own model, `explore_requests` under a configuration.
- Conform: `conform` checks a `Driver` class or a `System` in this process, or a driver file in its
  own process; `replay` repeats its findings.

Names that `__all__` lists are stable; others may change. Every function raises `InputError` for
invalid input, with the key, the value and the allowed values.
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
from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.judging import Broken, Judge
from checks.harness.policy import evidence_of
from checks.harness.runs.endless import EndlessError
from checks.harness.runs.serving import served
from checks.harness.runs.settings import Settings
from checks.harness.runs.simulating import simulate as run_simulation
from checks.harness.system import Action, Failure, Hello, InProcess, Scheduler, System, Taken
from checks.registry import DEFAULT, POLICIES, claims_of
from engine.core.clock import CostModel
from engine.core.metrics import Summary
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
    "Summary",
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
    "simulate",
]


def policies() -> tuple[str, ...]:
    """The policies that have a reference: the values of the key `policy`."""
    return tuple(POLICIES)


def configuration(policy: str = DEFAULT, **keys: Any) -> PolicyConfig:
    """A configuration of a policy; other keys have their defaults.

    Raises:
        ConfigError: the policy or a key is unknown, a value has the wrong type or is out of range.
    """
    config: PolicyConfig = claims_of(policy).config.from_mapping(keys)
    return config


def read_configuration(path: Path | str, **keys: Any) -> PolicyConfig:
    """The configuration in a TOML file; `keys` override its values.

    Raises:
        ConfigError: as for `configuration`, with file and line; or the file cannot be read.
    """
    config = read_settings(Path(path)).config
    return type(config).from_mapping(config.as_mapping() | keys) if keys else config


def requests(lines: Iterable[Mapping[str, Any]]) -> tuple[Request, ...]:
    """Requests from mappings with the keys of a workload line.

    Raises:
        WorkloadError: a mapping is no request.
    """
    return tuple(map(request_of, lines))


def read_requests(
    path: Path | str, *, limit: int | None = None, format: str | None = None
) -> tuple[Request, ...]:
    """The requests of a workload file, at most the first `limit`.

    `format`: one of those in `spec/chapters/workloads.md`; by default what the content looks like.

    Raises:
        WorkloadError: the file cannot be read, or a line is no request; names file and line.
    """
    return read_workload(path, format, limit).requests


def reference(config: PolicyConfig, requests: Iterable[Request]) -> Scheduler[Any]:
    """The policy's reference scheduler for these requests, none of which has arrived yet.

    Drive it with `arrive`, `abort` and `step`. `step` returns a record with the states before and
    after it (`before`, `after`) and its transitions (`events`).

    Raises:
        WorkloadError: a request can never be served.
    """
    case = Case(config, tuple(requests))
    scheduler: Scheduler[Any] = evidence_of(config.policy).reference(case)
    return scheduler


def serve(config: PolicyConfig, requests: Iterable[Request]) -> Iterator[Any]:
    """The steps of the reference until all requests have arrived and left.

    Each request has its own times of arrival and abort.

    Raises:
        WorkloadError: a request can never be served.
        EndlessError: the steps repeat forever and no client event is pending.
    """
    yield from served(Case(config, tuple(requests)))


def simulate(
    config: PolicyConfig, requests: Iterable[Request], cost: Mapping[str, float] | None = None
) -> Summary:
    """The figures of a workload under the decisions of the policy's scheduler; no rule is judged.

    `cost`: a table `[cost]` of step costs; by default the policy's own.

    Raises:
        ConfigError: a key of `cost` is unknown or its value is no cost.
        WorkloadError: a request can never be served.
    """
    charged = presentation_of(config.policy).cost
    if cost is not None:
        charged = CostModel.from_mapping(cost, config)
    return run_simulation(Settings(config, charged), tuple(requests)).summary


def judge_of(config: PolicyConfig, requests: Iterable[Request]) -> Judge:
    """A judge with every applicable rule: `observe(step)` yields the violations of a step.

    Pass the steps of one run in order.
    """
    return Judge(claims_of(config.policy).context_of(config, tuple(requests)))
