"""The compiled machine has the reference's graph: state for state and edge for edge."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.explore.compiled.agreement import Compared, compare
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.explore.search import explore
from checks.policies.spyre.compiled.model import SpyreCompiled
from checks.policies.spyre.compiled.support import unsupported
from checks.policies.spyre.model import spyre_model
from spec.core.requests import Oversized
from spec.spyre.config import SpyreConfig
from tests.checks.policies.spyre.compiled_faults import FAULTS

WORDS = 5  # enough for every default instance
MODULE = "tests.checks.policies.spyre.compiled_faults"
ROOT = Path(__file__).parents[4]


def compared(instance: Instance[SpyreConfig]) -> Compared:
    model = spyre_model(instance)
    return compare(model, SpyreCompiled(instance, model.ctx, WORDS))


@pytest.mark.thorough  # compiling takes most of it
def test_every_default_instance_has_the_same_graph() -> None:
    for instance in machine_of("spyre").instances:
        is_queued = instance.config.oversized is Oversized.QUEUED
        if instance.config.queue.is_by_width or is_queued:  # what it cannot have, and nothing else
            assert unsupported(instance) is not None
            continue
        found = compared(instance)

        counts = explore(spyre_model(instance), [])
        assert (instance.name, found.difference) == (instance.name, None)
        assert (found.states, found.edges) == (counts.states, counts.transitions)


@pytest.fixture(scope="module")
def noticed() -> dict[str, dict[str, Any]]:
    """What notices each planted fault, in plain Python, where functions can be replaced."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_a_difference_or_breaks_its_rules(
    noticed: dict[str, dict[str, Any]], fault: str
) -> None:
    *_, rules = FAULTS[fault]

    assert noticed[fault]["difference"] is not None or rules
    assert {*rules.split()} <= {*noticed[fault]["rules"]}
