"""Requests of Spyre whose images are not encoded: the text's reading and that of 2.6.3."""

from typing import Any

import pytest
from attrs import evolve

from reference.spyre.machine import SpyreMachine
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.state import State
from spec.spyre.variants import Queue
from tests.requests import request

SMALL: dict[str, Any] = {"block_size": 4, "chunk_size": 8, "max_model_len": 64, "num_blocks": 5}


def served(config: SpyreConfig) -> SpyreMachine:
    """Requests i, j and k with images, a and b without; b has two blocks, the others three."""
    requests = [request(name, 3 if name == "b" else 6, 3) for name in "ijkab"]
    return SpyreMachine.of(config, [evolve(row, has_images=row.id in "ijk") for row in requests])


def arrived(machine: SpyreMachine, names: str) -> State:
    """The state in which these have arrived, in this order."""
    state = machine.initial()
    for name in names:
        state = machine.arrive(state, name)
    return state


def test_a_request_whose_images_are_not_encoded_is_passed_over_and_keeps_its_place() -> None:
    machine = served(SpyreConfig(**SMALL | {"num_blocks": 16}))
    first = machine.step(arrived(machine, "iab"))

    ready = machine.encoded(first.after, "i")
    steps = [machine.step(ready)]
    steps.append(machine.step(steps[-1].after))

    assert (first.scheduled, first.refusal) == ({"a": 6}, None)
    assert [row.id for row in ready.waiting] == ["i", "b"]
    assert [step.scheduled for step in steps] == [{"a": 1}, {"i": 6}]


def test_the_encoder_is_given_images_of_as_many_requests_as_there_are_slots() -> None:
    machine = served(SpyreConfig(**SMALL, max_num_seqs=2))

    first = machine.step(arrived(machine, "jik"))
    second = machine.step(first.after)

    assert [event.id for event in first.happened("encode")] == ["j", "i"]
    assert [event.id for event in second.happened("encode")] == ["k"]
    assert second.scheduled == {}
    assert second.after.encoding == {"i", "j", "k"}


@pytest.mark.parametrize(
    ("config", "prefilled"),
    [(SpyreConfig(**SMALL, queue=Queue.OVERTAKING), {"b": 3}), (released_2_6_3(**SMALL), {"a": 1})],
)
def test_in_the_release_one_that_lacks_blocks_keeps_others_from_their_prefill(
    config: SpyreConfig, prefilled: dict[str, int]
) -> None:
    machine = served(config)
    state = machine.step(arrived(machine, "a")).after
    for name in "kb":
        state = machine.arrive(state, name)

    step = machine.step(machine.step(state).after)

    assert step.scheduled == prefilled
    assert step.before.encoding == {"k"}


@pytest.mark.parametrize(
    ("config", "untold"), [(SpyreConfig(**SMALL), set[str]()), (released_2_6_3(**SMALL), {"i"})]
)
def test_a_request_whose_images_fail_leaves_and_in_the_release_its_client_is_not_told(
    config: SpyreConfig, untold: set[str]
) -> None:
    machine = served(config)

    left = machine.unencodable(machine.step(arrived(machine, "i")).after, "i")

    assert left.is_idle
    assert (left.aborted, left.encoding) == ({"i"}, frozenset())
    assert left.untold == untold
