"""Twelve schedulers of vLLM V1 that are wrong in twelve ways, as drivers in a process of their own.

Each is the reference's machine with one fault; it reports all that a driver can.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from attrs import evolve

from checks.drivers.lockstep_driver import Driver
from checks.harness.case import Case
from checks.harness.policy import evidence_of
from checks.harness.reference import Reference
from checks.harness.system import Action, Json
from checks.registry import claims_of
from reference.core.frozen_map import updated
from reference.vllm_v1 import step, transitions
from spec.core.requests import Prompt, Request
from spec.vllm_v1.records import Step
from tests.checks.faults.vllm_v1 import FAULTS
from tests.checks.harness.driver.faithful import Names, names_of_blocks
from tests.checks.policies.vllm_v1.driver import record_of

PLANTED = {fault.name: fault for fault in FAULTS}

Patch = Callable[[pytest.MonkeyPatch], None]


def _leaks(patch: pytest.MonkeyPatch) -> None:
    """A victim's first block keeps a reference."""
    right = transitions.preempt

    def preempt(ctx: Any, plan: Any, row: Any) -> Any:
        done = right(ctx, plan, row)
        pool = done.state.pool
        if not row.blocks or row.blocks[0] in pool.references:
            return done
        free = tuple(block for block in pool.free if block != row.blocks[0])
        leaked = evolve(pool, free=free, references=updated(pool.references, {row.blocks[0]: 1}))
        return evolve(done, state=evolve(done.state, pool=leaked))

    patch.setattr(transitions, "preempt", preempt)


def _admits_one_more(patch: pytest.MonkeyPatch) -> None:
    """Admission has a slot more than is configured."""
    right = step.schedule_waiting

    def schedule_waiting(ctx: Any, plan: Any) -> Any:
        config = evolve(ctx.config, max_num_seqs=ctx.config.max_num_seqs + 1)
        return right(evolve(ctx, config=config), plan)

    patch.setattr(step, "schedule_waiting", schedule_waiting)


def planted(name: str) -> Patch:
    """A fault of the table of planted ones."""
    return PLANTED[name].plant


def none(_patch: pytest.MonkeyPatch) -> None:
    """The machine is right; what is wrong stands elsewhere."""


MACHINES: dict[str, Patch] = {
    "leak": _leaks,
    "budget": planted("running tokens are free"),
    "stale hash": planted("blocks keep their old content"),
    "order": planted("last of the queue goes first"),
    "free order": planted("table freed from its head"),
    "cached tokens": planted("cached tokens count"),
    "victim": planted("first of the queue gives way"),
    "too many slots": _admits_one_more,
}


class Scheduler:
    """The reference's machine, wrong in the way of this name."""

    def __init__(self, name: str, case: Case) -> None:
        self.name = name
        self.reference: Reference = self.call(evidence_of("vllm-v1").reference, case)
        self.names: Names = names_of_blocks(self.reference.machine.ctx)
        self.steps = 0

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            MACHINES.get(self.name, none)(patch)
            return function(*given)

    def arrive(self, request_id: str) -> None:
        self.call(self.reference.arrive, request_id)

    def abort(self, request_id: str) -> None:
        if self.name == "crash in abort":
            running = {row.id: row for row in self.reference.state.running}
            del running[request_id]
        if self.name != "lost abort":
            self.call(self.reference.abort, request_id)

    def step(self, action: Action) -> Step:
        taken: Step = self.call(self.reference.step, self.steps, action)
        self.steps += 1
        return taken


class Reporting(Driver):  # type: ignore[misc]
    """Reports all that the machine does."""

    name = ""
    under_test = (Scheduler, "reference")
    hello: ClassVar[Json] = {
        "name": "mine",
        "release": "mine 0.1",
        "policy": "vllm-v1",
        "config": {
            **{"connector": ["none"], "num_speculative_tokens": [0], "num_lookahead_tokens": [0]},
            **{"release": ["0.28.0"], "scheduling": ["fcfs"]},
        },
        "abilities": ["abort", "order"],
    }

    def start(self, config: Json) -> None:
        keys = {key: value for key, value in config.items() if key not in self.not_configured}
        own = claims_of("vllm-v1").config.from_mapping(keys)
        requests = tuple(map(_request, self.requests.values()))
        self.scheduler = Scheduler(self.name, Case(own, requests))

    def step(self, action: Json) -> Json:
        arrive, abort = tuple(action.get("arrive", ())), tuple(action.get("abort", ()))
        for request_id in arrive:
            self.scheduler.arrive(request_id)
        for request_id in abort:
            self.scheduler.abort(request_id)
        done = Action(arrive, abort)
        taken = self.scheduler.step(done)
        record = record_of(self.scheduler.names, self.scheduler.reference.machine.ctx, taken, done)
        if self.name == "statistic":
            record["statistics"]["waiting"] += bool(taken.finished)
        if self.name == "crash in the driver" and taken.finished:
            record["of"] = {row.id: row for row in taken.after.running}[taken.finished[0]]
        return record


def _request(said: Json) -> Request:
    output = tuple(said["output"])
    return Request(
        id=said["id"],
        prompt=Prompt.of_tokens(said["prompt"]),
        max_tokens=said["max_tokens"],
        output_len=said["output_len"] if said["output_len"] < said["max_tokens"] else None,
        output=output,
        priority=said["priority"],
    )


TEXT = '''"""A driver of mine."""

import sys

sys.path.insert(0, {root!r})

from lockstep_driver import serve
from tests.checks.first_sight.broken import Reporting


class Mine(Reporting):
    """It is wrong in this way."""

    name = {name!r}


serve(Mine)
'''
