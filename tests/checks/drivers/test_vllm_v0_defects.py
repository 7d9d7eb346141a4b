"""What exploring the machine of vLLM V0's release finds, done by the release itself.

Each row is a defect: the instance whose shortest counterexample is handed to the installed 0.9.2,
and the rule that falls there. It takes the same decisions in every step and breaks the same rule,
or raises where the machine's engine ends. Skipped where the release is not installed.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.trace.reading import read_trace
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.elsewhere import done_by
from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of

pytestmark = pytest.mark.thorough

INSTANCES = {one.name: one for one in machine_of("vllm-v0").instances}
DEFECTS = {
    "a victim of priority is mislaid": ("released, priority, swap", "V0-PRG-1"),
    "the abort of a swapped request": ("released, caching, swap", "V0-PRG-1"),
    "a part of the watermark": ("released, watermark", "V0-PRG-3"),
    "in every block, for ever": ("released, chunked", "V0-PRG-3"),
    "CPU blocks of one that outgrew the GPU": ("released, swap", "V0-BLK-5"),
    "no space on the CPU": ("released, swap", "V0-PRG-1"),
    "swapped out half done": ("released, chunked, swap", "V0-PRG-3"),
    "computed before it is": ("released, chunked, caching", "V0-PFX-3"),
    "hits what it never computed": ("released, chunked, caching, swap", "V0-PFX-3"),
    "fewer cached than computed": ("released, chunked, caching, swap", "V0-PRG-1"),
    "shares below a block": ("released, partial prefills, caching", "V0-PRG-3"),
    "more sequences than may run": ("released, forks", "V0-PRG-1"),
    "an encoder's blocks stay": ("released, encoder, swap", "V0-BLK-3"),
}


@pytest.fixture(scope="module")
def release() -> Iterator[DriverSystem]:
    """The installed release."""
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    with closing(DriverSystem(lambda: Driver(command_of("vllm-v0")))) as system:
        yield system


@pytest.mark.parametrize(("instance", "rule"), DEFECTS.values(), ids=DEFECTS)
def test_the_release_does_what_its_machine_comes_to(
    release: DriverSystem, instance: str, rule: str, tmp_path: Path
) -> None:
    exploration = explore_instance(INSTANCES[instance])
    (finding,) = (one for one in exploration.findings if one.rule == rule)
    path = tmp_path / "counterexample.jsonl"
    write_counterexample(exploration, finding, path)
    trace = read_trace(path)

    done = done_by(trace, release)

    assert done.confirms(trace), (done.differs, done.failure, done.broken)
