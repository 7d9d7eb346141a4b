"""Cases and systems that the tests of the harness share, and the search for a planted fault."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve, frozen

from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Finding
from checks.harness.policy import evidence_of, system_of
from checks.harness.reference import Reference
from checks.harness.system import ABILITIES_HERE, Action, Hello, InProcess, Scheduler, Step, System
from checks.registry import DEFAULT
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from tests.checks.faults.planting import Fault
from tests.checks.faults.spyre import FAULTS
from tests.recorded.scenes import asks

SPYRE_FAULTS = {fault.name: fault for fault in FAULTS}
ENGINE, REFERENCE = system_of(DEFAULT, "engine"), system_of(DEFAULT, "reference")
UNJUDGED = Terms(judged=False)  # compared as strictly as can be


def case(*requests: Request, **config: Any) -> Case:
    """A case of Spyre: blocks of 2 tokens, chunks of 4, unless `config` says otherwise."""
    small = {"block_size": 2, "chunk_size": 4, "max_model_len": 16, "max_num_seqs": 3}
    return Case(SpyreConfig(**{**small, **config}), requests)


SMALL = case(asks("0", 3, 3), asks("1", 5, 2, arrival=1))


def found_in(system: System, here: Case = SMALL, terms: Terms = UNJUDGED) -> Finding:
    """What is found in the case; something is."""
    finding = compare(system, here, terms).finding
    assert finding is not None
    return finding


# --- systems --------------------------------------------------------------------------------------


def system(
    name: str, start: Callable[[Case], Scheduler[Any]], policy: str = DEFAULT, **hello: Any
) -> InProcess:
    """A system of this process; `start` makes a scheduler for a case."""
    return InProcess(Hello(name, name, policy, abilities=ABILITIES_HERE, **hello), start)


@frozen(eq=False)
class There:
    """The source of a campaign whose one system is there already."""

    system: System

    def open(self) -> System:
        return self.system


@frozen
class _Changed:
    """The reference, but for what it says of a step: `change` gives fields other values."""

    reference: Reference
    change: Callable[[Step], dict[str, Any]]

    def arrive(self, request_id: str) -> None:
        self.reference.arrive(request_id)

    def abort(self, request_id: str) -> None:
        self.reference.abort(request_id)

    def step(self, index: int, action: Action) -> Step:
        step = self.reference.step(index, action)
        return evolve(step, **self.change(step))


def changed(change: Callable[[Step], dict[str, Any]], **hello: Any) -> InProcess:
    """A system whose steps are the reference's with these changes."""
    return system("changed", lambda case: _Changed(_reference(case), change), **hello)


def faulty(fault: Fault, policy: str = DEFAULT) -> InProcess:
    """The reference of a policy with a fault that is switched in for its own calls only."""

    def planted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(*given: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                fault.plant(patch)
                return call(*given)

        return wrong

    def start(case: Case) -> Any:
        reference = planted(_reference)(case)
        calls = {name: planted(getattr(reference, name)) for name in ("arrive", "abort", "step")}
        return SimpleNamespace(**calls)

    return system(fault.name, start, policy)


def faulty_spyre(name: str) -> InProcess:
    """The reference of Spyre with the planted fault of this name."""
    return faulty(SPYRE_FAULTS[name])


def _reference(case: Case) -> Reference:
    return evidence_of(case.config.policy).reference(case)


# --- searching ------------------------------------------------------------------------------------


@frozen
class Hunt:
    """A search for a fault: the episode that found it, or the number of those that did not."""

    fault: str
    episode: int
    steps: int
    case: Case | None
    finding: Finding | None


SEED = 1  # with which all planted faults are found soon


def hunt(system: System, episodes: int, name: str = "", **pinned: Any) -> Hunt:
    """Run episodes until something is found, at most so many; `pinned`: keys that are not drawn."""
    plan = Plan(There(system), SEED, UNJUDGED, pinned)
    steps, name = 0, name or system.hello.name
    for index in range(episodes):
        case = plan.case(index)
        episode = compare(system, case, plan.terms)
        steps += episode.steps
        if episode.finding is not None:
            return Hunt(name, index, steps, case, episode.finding)
    return Hunt(name, episodes, steps, None, None)


def table_of(hunts: Iterable[Hunt]) -> str:
    """A line for each fault: what found it, in which episode, after how many compared steps."""
    rows = [("fault", "found by", "rule", "episode", "steps"), *map(_row, hunts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _row(one: Hunt) -> tuple[str, ...]:
    if one.finding is None:
        return one.fault, "not found", "", f"{one.episode:,} in all", f"{one.steps:,}"
    found_by = f"{one.finding.kind}: {one.finding.cause}"
    return one.fault, found_by, one.finding.rule_or_kind, f"{one.episode:,}", f"{one.steps:,}"
