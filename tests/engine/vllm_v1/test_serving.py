"""The engine of vLLM V1 on its device: drafts, aborted requests and loads of a connector."""

from typing import Any

import pytest

from checks.policies.vllm_v1.engine import Foreseen, device_connector
from engine.paged.device import PagedDevice
from engine.vllm_v1.model_input import paged_shape
from engine.vllm_v1.observing import Observer
from engine.vllm_v1.plan import LoadStart
from engine.vllm_v1.serving import Engine
from spec.vllm_v1.config import VllmV1Config
from tests.requests import request


def config(**overrides: Any) -> VllmV1Config:
    """Blocks of 4, three requests, room for everything else."""
    small = {"block_size": 4, "max_num_seqs": 3, "max_model_len": 64, "num_blocks": 40}
    return VllmV1Config(**(small | {"max_num_batched_tokens": 16} | overrides))


def device(settings: VllmV1Config) -> PagedDevice:
    return PagedDevice(paged_shape(settings))


DRAFTING: dict[str, Any] = {"num_speculative_tokens": 3, "accepted_drafts": 2}


# --- without failures ---------------------------------------------------------------------------


def test_drafts_that_the_device_samples_itself_are_accepted() -> None:
    settings = config(**DRAFTING)
    engine = Engine(settings, device(settings), Foreseen(settings))
    engine.add(request("a", 5, 9))

    results = [engine.step() for _ in range(3)]

    assert [len(result.outputs["a"]) for result in results] == [1, 3, 3]
    assert [result.outcome and result.outcome.accepted for result in results] == [
        {},
        {"a": 2},
        {"a": 2},
    ]


def test_without_a_drafter_a_draft_is_accepted_only_by_chance() -> None:
    settings = config(num_speculative_tokens=3)
    engine = Engine(settings, device(settings))
    engine.add(request("a", 5, 9))

    assert [len(engine.step().outputs["a"]) for _ in range(4)] == [1, 1, 1, 1]


def test_clients_that_leave_while_the_model_runs_get_nothing_of_the_step() -> None:
    engine = Engine(config(), device(config()))
    for name in "ab":
        engine.add(request(name, 3, 9))
    engine.step()

    result = engine.step(leavers=("a",))

    assert result.outputs.keys() == {"b"}
    assert result.statistics.free_blocks == 39


# --- with a connector ---------------------------------------------------------------------------


def connected(**overrides: Any) -> Engine:
    """An engine whose connector brings what another instance has computed."""
    settings = config(**overrides)
    paged = device(settings)
    return Engine(settings, paged, connector=device_connector(paged, settings.block_size))


def test_external_tokens_that_come_within_the_step_are_read() -> None:
    engine, asked = connected(connector="sync"), request("a", 14, 3)
    engine.add(asked, external=12)

    first = engine.step()

    assert [turn.computed for turn in first.plan.turns] == [12]
    assert first.outputs == {"a": [asked.output_token(0)]}
    assert engine.step().outputs == {"a": [asked.output_token(1)]}


def test_external_tokens_that_are_lost_within_the_step_are_computed_in_the_next() -> None:
    engine, asked = connected(connector="sync"), request("a", 14, 3)
    engine.add(asked, external=12)

    first = engine.step(lost=("a",))

    assert first.outcome is not None
    assert (first.outputs, first.outcome.undone) == ({}, {"a": (14, 0)})
    assert engine.step().outputs == {"a": [asked.output_token(0)]}


def test_whole_blocks_that_come_of_a_lost_load_are_read() -> None:
    engine, asked = connected(connector="sync"), request("a", 14, 3)
    engine.add(asked, external=12, if_lost=11)

    first = engine.step(lost=("a",))

    assert first.outcome is not None
    assert first.outcome.undone == {"a": (14, 8)}
    assert engine.step().outputs == {"a": [asked.output_token(0)]}


@pytest.mark.parametrize(("if_lost", "valid"), [(3, 0), (11, 8), (12, 8)])
def test_whole_blocks_that_came_before_a_load_failed_are_read(if_lost: int, valid: int) -> None:
    engine, asked = connected(connector="async"), request("a", 14, 3)
    engine.add(asked, external=12, if_lost=if_lost)
    engine.step()
    assert engine.end_load("a", failed=True)

    last = engine.step()

    (turn,) = last.plan.turns
    assert (turn.computed, turn.new) == (valid, 14 - valid)
    assert last.outputs == {"a": [asked.output_token(0)]}


@pytest.mark.parametrize("failed", [False, True])
def test_external_tokens_that_come_between_steps_are_read_or_computed(failed: bool) -> None:
    engine, asked = connected(connector="async"), request("a", 14, 3)
    engine.add(asked, external=12)

    first = engine.step()
    assert [type(move) for move in first.plan.moves] == [LoadStart]
    assert engine.step().outputs == {}
    assert engine.end_load("a", failed)
    assert not engine.end_load("a", failed)
    last = engine.step()

    (turn,) = last.plan.turns
    assert (turn.computed, turn.new) == ((0, 14) if failed else (12, 2))
    assert last.outputs == {"a": [asked.output_token(0)]}


def test_blocks_are_kept_while_a_load_writes_to_them() -> None:
    engine = connected(connector="async")
    engine.add(request("a", 14, 3), external=12)
    engine.step()
    assert engine.abort("a")

    assert engine.step().statistics.free_blocks == 37
    assert engine.end_load("a")
    assert engine.step().statistics.free_blocks == 40


def test_loads_end_with_the_device_that_they_wrote_to() -> None:
    engine = connected(connector="async")
    for name in "ab":
        engine.add(request(name, 14, 3), external=12)
    engine.step()
    assert engine.abort("a")

    engine.replace_device(device(config()))

    assert not engine.end_load("b")
    state = Observer(engine.scheduler).state()
    assert ([row.id for row in state.waiting], state.draining) == (["b"], ())
    assert len(state.pool.free) == 40
