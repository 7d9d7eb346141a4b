"""Runs without end in which a request is never served, done by the releases themselves.

Each row is an instance whose clients come back, and the rule that its lasso breaks: the
counterexample is handed to the installed release, which takes the same decisions in every step,
through the loop and back to where it began. Skipped where the release is not installed.
"""

from contextlib import closing
from pathlib import Path

import pytest

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.trace.reading import read_trace
from checks.harness.campaigns.elsewhere import replay_on_driver
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of

pytestmark = pytest.mark.thorough

LASSOS = [
    ("sendnn", "spyre", "open, shipped", "LIF-6"),
    ("sendnn", "spyre", "open, pausing, a single token", "LIF-6"),
    ("sendnn", "spyre", "open, pausing, a single token", "SPY-PAU-5"),
    ("sendnn", "spyre", "open, pausing, not interleaved, a single token", "LIF-6"),
    ("sendnn", "spyre", "open, pausing, not interleaved, a single token", "SPY-PAU-5"),
    ("nano-vllm", "nano-vllm", "open, a single token", "NANO-LIF-6"),
    ("vllm-v1==0.28.0", "vllm-v1", "open, priority", "V1-PRG-5"),
    ("vllm-v0", "vllm-v0", "open, a single token", "V0-PRG-3"),
    ("vllm-v0", "vllm-v0", "open, chunked, preempted", "V0-PRG-3"),
    ("vllm-v0", "vllm-v0", "open, adapters", "V0-PRG-3"),
]


@pytest.mark.parametrize(("driver", "policy", "title", "rule"), LASSOS)
def test_the_release_starves_the_request_that_its_machine_starves(
    driver: str, policy: str, title: str, rule: str, tmp_path: Path
) -> None:
    name, _, version = driver.partition("==")
    recipe = recipe_of(name, version or None)
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip(f"not installed: {driver}")
    instance = next(instance for instance in machine_of(policy).instances if instance.name == title)
    exploration = explore_instance(instance)
    (finding,) = (finding for finding in exploration.findings if finding.rule == rule)
    path = tmp_path / "lasso.jsonl"
    write_counterexample(exploration, finding, path)
    trace = read_trace(path)

    with closing(DriverSystem(lambda: Driver(command_of(driver)))) as release:
        done = replay_on_driver(trace, release)

    assert done.confirms(trace), (done.differs, done.failure, done.broken)
