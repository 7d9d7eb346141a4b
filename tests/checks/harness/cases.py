"""Cases and systems that the tests of the harness share, and the search for a planted fault."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve, frozen

from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Finding
from checks.harness.policy import evidence_of, system_of
from checks.harness.reference import Reference
from checks.harness.system import ABILITIES_HERE, Action, Hello, InProcess, Scheduler, Step, System
from checks.registry import DEFAULT
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from tests.checks.faults.planting import Planted
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
    """The first finding in the case; there must be one."""
    finding = compare(system, here, terms).finding
    assert finding is not None
    return finding


# --- systems --------------------------------------------------------------------------------------


def system(
    name: str, start: Callable[[Case], Scheduler[Any]], policy: str = DEFAULT, **hello: Any
) -> InProcess:
    """A system in this process; `start` makes a scheduler for a case."""
    return InProcess(Hello(name, name, policy, abilities=ABILITIES_HERE, **hello), start)


@frozen(eq=False)
class There:
    """The source of a campaign with one existing system."""

    system: System

    def open(self) -> System:
        return self.system


@frozen
class _Changed:
    """The reference with changed fields in its steps, as `change` says."""

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


def faulty(fault: Planted, policy: str = DEFAULT) -> InProcess:
    """The reference of a policy with a fault that is active only in its own calls."""

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
    """Run at most `episodes` until the first finding; `pinned`: keys with a fixed value."""
    plan = Plan(There(system), SEED, UNJUDGED, pinned)
    steps, name = 0, name or system.hello.name
    for index in range(episodes):
        case = plan.case(index)
        episode = compare(system, case, plan.terms)
        steps += episode.steps
        if episode.finding is not None:
            return Hunt(name, index, steps, case, episode.finding)
    return Hunt(name, episodes, steps, None, None)


def hunt_table(hunts: Iterable[Hunt]) -> str:
    """A line for each fault: the kind of finding, the episode, the number of compared steps."""
    rows = [("fault", "found by", "rule", "episode", "steps"), *map(_row, hunts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _row(hunt: Hunt) -> tuple[str, ...]:
    if hunt.finding is None:
        return hunt.fault, "not found", "", f"{hunt.episode:,} in all", f"{hunt.steps:,}"
    cause = f"{hunt.finding.kind}: {hunt.finding.cause}"
    return hunt.fault, cause, hunt.finding.rule_or_kind, f"{hunt.episode:,}", f"{hunt.steps:,}"
