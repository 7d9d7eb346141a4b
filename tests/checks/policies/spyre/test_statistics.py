"""Statistics that a scheduler reports to its operators agree with its steps."""

from typing import Any

import pytest

from checks.harness.comparing import Strictness
from checks.policies.spyre.adapter import ADAPTER
from reference.spyre.machine import SpyreMachine
from spec.spyre.config import released_2_6_3
from spec.spyre.records import Step
from tests.recorded.scenes import WHOLE_CHUNK, asks

CONFIG = released_2_6_3(
    **{"chunk_size": 128, "max_model_len": 512, "max_num_seqs": 2, "num_blocks": 16},
    **{"max_batch_tkv_limit": 1024, "prefix_caching": True},
)
MACHINE = SpyreMachine.of(CONFIG, [asks("a", WHOLE_CHUNK, 3), asks("b", WHOLE_CHUNK, 2)])
RIGHT: dict[str, Any] = {
    **{"waiting": 0, "decoding": 2, "paused": 0, "pauses": 0, "resumes": 0, "usage": 5 / 16},
    **{"asked_tokens": 200, "cached_tokens": 128},
}


def hit() -> Step:
    """The second prompt finds the first chunk of the same tokens while the first decodes."""
    state = MACHINE.arrive(MACHINE.initial(), "a")
    for _ in range(2):
        state = MACHINE.step(state).after
    state = MACHINE.step(MACHINE.arrive(state, "b")).after  # one decode between two prefills
    return MACHINE.step(state)


def wrong(**said: Any) -> list[str]:
    record = {"statistics": RIGHT | said}
    found = ADAPTER.reported_twice(MACHINE.ctx, hit(), record, Strictness.OBSERVABLE)
    return [difference.field for difference in found]


def test_statistics_of_a_step_with_a_prefix_hit_are_right() -> None:
    assert wrong() == []


@pytest.mark.parametrize("name", RIGHT)
def test_a_statistic_that_is_one_off_is_named(name: str) -> None:
    assert wrong(**{name: RIGHT[name] + 1}) == [f"statistics.{name}"]
