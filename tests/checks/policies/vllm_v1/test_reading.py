"""The device refuses a read exactly where the rule says that a token reads what is not computed."""

from collections.abc import Iterator
from typing import Any

import pytest

from checks.explore.policy import machine_of
from checks.policies.vllm_v1.paging import vllm_v1_watch
from engine.core.faults import ConstraintError
from spec.vllm_v1.records import Step
from spec.vllm_v1.rules import REGISTRY

RULE = REGISTRY["V1-KV-19"]
INSTANCES = {instance.name: instance for instance in machine_of("vllm-v1").instances}

Steps = tuple[Step, ...]


def runs(model: Any) -> Iterator[Steps]:
    """The steps to each edge of the graph, by a shortest way without a wrong read before it.

    Without steps in which a client left that had read what was lost in them: it gets no result.
    """
    pending: list[tuple[Any, Steps]] = [(state, ()) for state in model.initial()]
    seen = {state for state, _ in pending}
    for state, steps in pending:  # grows while it is read
        for edge in model.successors(state):
            run = steps
            if isinstance(edge.record, Step):
                run = (*steps, edge.record)
                if edge.record.after.lost != state.lost and refused(model, run):
                    continue
                yield run
                if RULE.found_of_step(model.ctx, edge.record):
                    continue
            if edge.state not in seen:
                seen.add(edge.state)
                pending.append((edge.state, run))


def refused(model: Any, run: Steps) -> bool:
    """True if the device refuses the last step of the run."""
    watch = vllm_v1_watch(model.ctx)
    for step in run[:-1]:
        watch.observe(step)
    try:
        watch.observe(run[-1])
    except ConstraintError:
        return True
    return False


@pytest.mark.parametrize("name", ["sync load, lost", "sync load, gone", "priority, hashed ahead"])
def test_device_refuses_what_reads_tokens_that_are_not_computed_and_nothing_else(name: str) -> None:
    model: Any = machine_of("vllm-v1").model(INSTANCES[name])
    found = 0
    for run in runs(model):
        wrong = bool(RULE.found_of_step(model.ctx, run[-1]))
        assert refused(model, run) == wrong, [step.scheduled for step in run]
        found += wrong

    assert found > 0


def test_request_that_relies_on_another_to_compute_lost_blocks_reads_nothing_once_it_is_gone() -> (
    None
):
    """Both read what 0 should have been brought; 0 was to compute it again, and is aborted."""
    model: Any = machine_of("vllm-v1").model(INSTANCES["sync load, lost"])
    broken = [run for run in runs(model) if RULE.found_of_step(model.ctx, run[-1])]

    first = min(broken, key=len)

    assert (len(first), first[0].failed_loads, first[1].scheduled) == (2, ("0", "1"), {"1": 1})
    assert first[1].before.aborted == {"0"}
    assert first[1].before.unfilled == ((1, 0), (2, 0))
