"""Endless runs are ended and name the missing event; slow runs continue."""

from collections.abc import Iterable

import pytest
from attrs import frozen

from checks.explore.policy import machine_of
from checks.harness.case import Case
from checks.harness.runs.endless import EndlessError, Loops
from checks.harness.runs.serving import run_workload, served
from checks.harness.runs.settings import Settings
from engine.core.clock import CostModel
from spec.spyre.config import SpyreConfig
from tests.requests import request


@frozen
class Quiet:
    """A step that samples nothing, with the state that it leaves."""

    index: int
    after: object
    outputs: tuple[int, ...] = ()


def observe(states: Iterable[object]) -> None:
    """Show the detector the states after steps that sample nothing."""
    loops = Loops()
    for index, state in enumerate(states):
        loops.observe(Quiet(index, state))


def instance_case(policy: str, instance: str) -> Case:
    (found,) = (it for it in machine_of(policy).instances if it.name == instance)
    return Case(found.config, found.requests)


@pytest.mark.parametrize(
    ("policy", "instance", "using", "found"),
    [
        ("nano-vllm", "oversized", "reference", "102 to 102 repeat for ever, with ['0', '1']"),
        ("nano-vllm", "oversized", "engine", "102 to 102 repeat for ever, with ['0', '1']"),
        ("vllm-v0", "released, chunked", "reference", "103 to 106 repeat for ever, with ['0']"),
    ],
)
def test_served_ends_where_steps_repeat_for_ever(
    policy: str, instance: str, using: str, found: str
) -> None:
    with pytest.raises(EndlessError, match="repeat for ever") as error:
        list(served(instance_case(policy, instance), using))
    assert str(error.value) == f"steps {found} pending"


def test_a_run_says_which_rules_ask_for_what_never_comes() -> None:
    case = instance_case("vllm-v0", "released, watermark")
    settings = Settings(case.config, CostModel.from_mapping({}, case.config))
    run = run_workload(settings, case.requests, using="reference")
    never = {
        violation.rule.id: violation.found
        for violation in run.broken
        if violation.step == run.steps - 1
    }
    assert not run.holds
    assert never == {
        rule: f"steps 103 to 103 repeat for ever, with {requests} pending"
        for rule, requests in {
            "V0-PRG-3": ["0", "1"],
            "V0-PRG-6": ["1"],
            "V0-SWP-10": ["0"],
        }.items()
    }
    assert {violation.rule for violation in run.broken} <= set(run.rules)


def test_a_long_prompt_samples_nothing_for_long_and_is_served() -> None:
    config = SpyreConfig(block_size=4, chunk_size=4, max_model_len=2048, max_num_seqs=2)
    steps = list(served(Case(config, (request("long", 2000, 2),))))
    assert (len(steps), steps[-1].finished) == (501, ("long",))


def test_no_loop_is_closed_before_the_last_client_is_through() -> None:
    case = instance_case("nano-vllm", "oversized")
    late = request("late", 4, 1, arrival=300)
    with pytest.raises(EndlessError, match="steps 400 to 400"):
        list(served(Case(case.config, (*case.requests, late))))


def test_a_loop_is_found_after_a_long_beginning() -> None:
    states = [*range(1_000), *(1_000 + number % 7 for number in range(9_000))]
    with pytest.raises(EndlessError) as error:
        observe(states)
    assert error.value.last - error.value.first == len(error.value.states) == 7
    assert error.value.last < 2_000
