"""Each reference makes the moves that the proofs about its policy speak of.

The thorough tier compares all edges and runs, with `prove --expect recorded`.
"""

from itertools import islice

import pytest

from checks.explore.policy import machine_of
from checks.proofs.links import Link, reachable_edges
from checks.proofs.nano_vllm import moves as nano_vllm
from checks.proofs.spyre import moves as spyre
from checks.proofs.vllm_v1 import moves as vllm_v1

LINKS = {link.policy: link for link in (spyre.LINK, nano_vllm.LINK, vllm_v1.LINK)}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_the_reference_makes_the_moves_near_the_start_of_instances_and_in_two_runs(
    link: Link,
) -> None:
    for instance in machine_of(link.policy).instances:
        if link.covers(instance.config) and instance.name not in link.stops | link.beside:
            for edge in islice(reachable_edges(instance), 100):
                assert not [*link.move_differences(edge)], instance.name
    for number in range(2):
        assert not [*link.differences_in_run(number)]
