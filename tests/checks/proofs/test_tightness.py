"""Tightness of `exact` by brute force: each refused request is admitted anyway and followed."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from checks.proofs.links import reachable_edges
from reference.spyre import admission
from reference.spyre.machine import SpyreMachine
from spec.spyre.config import SpyreConfig
from spec.spyre.state import State
from tests.checks.proofs.instances import instance

TWO = ((1, 3), (1, 3))  # prompts of a token, three to generate


def tiny(**keys: Any) -> SpyreConfig:
    sizes = {"block_size": 1, "chunk_size": 1, "max_model_len": 4, "max_num_seqs": 2}
    off = {"prefix_caching": False, "interleave": False}
    return SpyreConfig(**{**sizes, **off, "max_batch_tkv_limit": 5, **keys})


def refusing(config: SpyreConfig) -> Iterator[State]:
    """Every reachable state of two requests in which `exact` refuses the second."""
    for edge in reachable_edges(instance(config, *TWO)):
        if edge.step is not None and edge.step.refusal == "SPY-VOL-4":
            yield edge.before


def largest_volume(
    config: SpyreConfig, state: State, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, bool]:
    """From this state on without the rule, all generating all they may; was one preempted?"""
    machine = SpyreMachine.of(config, instance(config, *TWO).requests)
    volumes, preempted = [0], False
    with monkeypatch.context() as without:
        without.setattr(admission, "last_chunk_refusal", lambda *_: None)
        while not state.is_idle:
            step = machine.step(state, lambda _: False)
            volumes.append(step.volume)
            preempted |= bool(step.happened("preempt"))
            state = step.after
    return max(volumes), preempted


def test_without_reservation_a_preemption_can_come_before_the_step_over_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(reservation=False, num_blocks=5)

    found = {largest_volume(config, state, monkeypatch) for state in refusing(config)}

    # Where both begin together one is preempted below the limit of 5, and `exact` refuses what
    # could be served; behind a row that has begun, the step over the limit comes first.
    assert found == {(4, True), (6, False)}


def test_with_reservation_the_step_over_the_limit_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(reservation=True, num_blocks=8)

    found = {largest_volume(config, state, monkeypatch) for state in refusing(config)}

    assert found == {(6, False)}


def test_with_reservation_each_refusal_is_of_a_request_that_would_exceed_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = 0
    for block_size, limit, num_blocks in product((1, 2), range(3, 9), range(2, 9)):
        config = tiny(
            block_size=block_size,
            chunk_size=block_size,
            max_batch_tkv_limit=limit,
            num_blocks=num_blocks,
        )
        if num_blocks * block_size < config.max_model_len:
            continue  # no request could be served
        for state in refusing(config):
            volume, preempted = largest_volume(config, state, monkeypatch)
            assert (volume > limit, preempted) == (True, False), (config, state)
            refused += 1
    assert refused == 64
