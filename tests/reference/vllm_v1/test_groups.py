"""Connectors and images beside groups of layers in the vLLM V1 machine, with blocks of 4 tokens."""

import pytest

from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import Connector
from spec.vllm_v1.records import Load
from tests.reference.scenes import arrived, of_parts, steps_from
from tests.reference.vllm_v1.scenes import machine
from tests.requests import request


def test_tokens_that_are_brought_have_slots_first_and_only_where_they_are_read() -> None:
    # The token behind 12 brought ones reads the tokens 10 to 12 of the window.
    scene = machine(
        request("a", 14), external={"a": 12}, connector=Connector.SYNC, kv_groups="sliding 3"
    )

    (row,) = scene.step(arrived(scene)).planned.running

    assert (row.blocks, row.tables) == ((1, 2, 3, 5), ((0, 0, 4, 6),))


def test_hits_of_a_window_that_end_before_it_are_not_taken() -> None:
    scene = machine(
        *(of_parts(name, ("system", 4), (name, 8)) for name in "ab"),
        external={"b": 11},
        connector=Connector.ASYNC,
        prefix_caching=True,
        kv_groups="sliding 3",
    )

    step = scene.step(arrived(scene))

    (loading,) = step.planned.skipped
    (first,) = step.planned.running
    assert loading.load is Load.LOADING
    assert loading.blocks[0] == first.blocks[0]
    assert loading.tables[0][:2] == (0, 0)


def test_a_chunk_that_stops_in_front_of_an_image_goes_on_to_the_end_of_its_block() -> None:
    images = Prompt.of_stream("images", 10).with_spans([(0, 2, "a"), (3, 3, "b")])
    scene = machine(
        Request(id="a", prompt=images, max_tokens=8),
        kv_groups="mamba",
        prefix_caching=True,
        encoder_cache_size=4,
    )

    steps = steps_from(scene, arrived(scene), 4)

    assert [step.scheduled["a"] for step in steps] == [3, 1, 4, 2]


def test_what_is_lost_beside_groups_is_refused() -> None:
    loads = request("a", 8, external=8, external_if_lost=4)

    with pytest.raises(WorkloadError, match="external_if_lost: found 4; allowed: 0 with kv_groups"):
        machine(loads, connector=Connector.ASYNC, kv_groups="sliding 3")
