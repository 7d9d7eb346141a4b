"""Requests of Spyre whose grammars are not ready: the text's reading and that of 2.6.3."""

from typing import Any

import pytest
from attrs import evolve

from reference.spyre.machine import SpyreMachine
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.state import State
from tests.requests import request

SMALL: dict[str, Any] = {"block_size": 4, "chunk_size": 8, "max_model_len": 64, "num_blocks": 16}


def served(config: SpyreConfig) -> SpyreMachine:
    """Requests g and h with a grammar, a and b without."""
    requests = [request(name, 6, 3) for name in "ghab"]
    return SpyreMachine.of(config, [evolve(row, grammar=row.id in "gh") for row in requests])


def arrived(machine: SpyreMachine, names: str) -> State:
    """The state in which these have arrived, in this order."""
    state = machine.initial()
    for name in names:
        state = machine.arrive(state, name)
    return state


def test_a_request_whose_grammar_is_not_ready_is_passed_over_and_keeps_its_place() -> None:
    machine = served(SpyreConfig(**SMALL))
    first = machine.step(arrived(machine, "gab"))

    ready = machine.compiled(first.after, "g")
    steps = [machine.step(ready)]
    steps.append(machine.step(steps[-1].after))

    assert (first.scheduled, first.refusal) == ({"a": 6}, None)
    assert [row.id for row in ready.waiting] == ["g", "b"]
    assert [step.scheduled for step in steps] == [{"a": 1}, {"g": 6}]


def test_in_the_release_it_keeps_the_others_from_their_prefill_and_goes_to_the_front() -> None:
    machine = served(released_2_6_3(**SMALL))

    step = machine.step(arrived(machine, "agh"))
    held = machine.step(step.after)
    again = machine.step(machine.step(machine.arrive(held.after, "b")).after)

    assert (step.scheduled, held.scheduled, held.refusal) == ({"a": 6}, {"a": 1}, "SPY-PRI-3")
    assert (again.scheduled, again.refusal) == ({}, "SPY-STR-1")
    assert [row.id for row in again.after.waiting] == ["g", "h", "b"]


@pytest.mark.parametrize(
    ("config", "order"), [(SpyreConfig(**SMALL), "gahb"), (released_2_6_3(**SMALL), "abgh")]
)
def test_in_the_release_newcomers_with_a_grammar_stand_behind_the_others(
    config: SpyreConfig, order: str
) -> None:
    state = arrived(served(config), "gahb")

    assert "".join(row.id for row in state.waiting) == order
