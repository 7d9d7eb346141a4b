"""Defects of vLLM V0 0.9.2: the release follows the machine's counterexamples.

Each row is a defect: the instance whose shortest counterexample is handed to the installed 0.9.2,
the rule that it refutes, and what a report that knows only the other defects must name first,
written by hand before it was measured. The release takes the same decisions in every step and
breaks the same rule, or raises where the machine's engine ends. Skipped where the release is not
installed.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from checks import registry
from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.trace.reading import Trace, read_trace
from checks.harness.campaigns.corpus import case_of_trace
from checks.harness.campaigns.elsewhere import replay_on_driver
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.policy import evidence_of
from checks.harness.standalone import with_own_steps
from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of
from spec.core.requests import Request
from tests.checks.drivers.put_back.trying import has_prefix

pytestmark = pytest.mark.thorough

INSTANCES = {instance.name: instance for instance in machine_of("vllm-v0").instances}
DEFECTS = {
    "a victim of priority is mislaid": ("released, priority, swap", "V0-PRG-1", "V0-PRI-6"),
    "the abort of a swapped request": ("released, caching, swap", "V0-PRG-1", "crash"),
    "a part of the watermark": ("released, watermark", "V0-PRG-3", "V0-SWP-6"),
    "in every block, for ever": ("released, chunked", "V0-PRG-3", "V0-PRE-1"),
    "CPU blocks of one that outgrew the GPU": ("released, swap", "V0-BLK-5", "V0-BLK-4"),
    "no space on the CPU": ("released, swap", "V0-PRG-1", "crash"),
    "swapped out half done": ("released, chunked, swap", "V0-PRG-3", "V0-SWP-6"),
    "computed before it is": ("released, chunked, caching", "V0-PFX-3", "V0-PFX-3"),
    "hits what it never computed": ("released, chunked, caching, swap", "V0-PFX-3", "V0-PFX-3"),
    "fewer cached than computed": ("released, chunked, caching, swap", "V0-PRG-1", "crash"),
    "shares below a block": ("released, partial prefills, caching", "V0-PRG-3", "V0-PRG-2"),
    "more sequences than may run": ("released, forks", "V0-PRG-1", "V0-BUD-2"),
    "an encoder's blocks stay": ("released, encoder, swap", "V0-BLK-3", "V0-BLK-3"),
}


@pytest.fixture(scope="module")
def release() -> Iterator[DriverSystem]:
    """The installed release."""
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    with closing(DriverSystem(lambda: Driver(command_of("vllm-v0")))) as system:
        yield system


@pytest.fixture
def counterexample(instance: str, rule: str, tmp_path: Path) -> Trace:
    """The shortest run that violates the rule."""
    exploration = _explored(instance)
    (finding,) = (finding for finding in exploration.findings if finding.rule == rule)
    path = tmp_path / "counterexample.jsonl"
    write_counterexample(exploration, finding, path)
    return read_trace(path)


_explored = cache(lambda instance: explore_instance(INSTANCES[instance]))


@pytest.mark.parametrize(("instance", "rule"), [row[:2] for row in DEFECTS.values()], ids=DEFECTS)
def test_the_release_follows_the_counterexample_of_its_machine(
    release: DriverSystem, counterexample: Trace
) -> None:
    done = replay_on_driver(counterexample, release)

    assert done.confirms(counterexample), (done.differs, done.failure, done.broken)


@pytest.mark.parametrize(("instance", "rule", "names"), DEFECTS.values(), ids=DEFECTS)
def test_a_report_that_does_not_know_of_it_names_it_first(
    release: DriverSystem, counterexample: Trace, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = evidence_of("vllm-v0")
    others = tuple(
        violation for violation in evidence.expected_violations if names not in violation.rules
    )
    unaware = evolve(evidence, expected_violations=others, known_differences=())
    monkeypatch.setitem(registry._PARTS, ("vllm-v0", "evidence"), unaware)
    case, terms = _as_case(counterexample), Terms()

    finding = compare(release, case, terms).finding

    assert finding is not None
    assert has_prefix(with_own_steps(release, case, terms, finding), names), finding


def _as_case(trace: Trace) -> Case:
    """A counterexample with each request's arrival and abort where its actions are."""
    case, step = case_of_trace(trace), 0
    requests, come = {request.id: request for request in case.requests}, dict[str, Request]()
    for action in trace.header["actions"]:
        what, _, request_id = action.partition(" ")
        if what == "arrive":
            come[request_id] = evolve(requests[request_id], arrival=step)
        elif what == "abort":
            come[request_id] = evolve(come[request_id], abort_at=step)
        else:
            step += 1
    return evolve(case, requests=tuple(come.values()))
