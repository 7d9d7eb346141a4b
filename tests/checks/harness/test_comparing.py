"""Differences at each strictness, and their names."""

from typing import Any

import pytest
from attrs import evolve

from checks.harness.comparing import Difference, Strictness, differences
from checks.harness.policy import evidence_of
from checks.harness.runs.serving import served
from reference.core.frozen_map import FrozenMap
from spec.core.records import Event
from spec.spyre.records import Step
from tests.checks.harness.cases import case
from tests.recorded.scenes import asks

EXACT, OBSERVABLE, DECISIONS = Strictness


def a_decode_step() -> Step:
    """Two rows of one block each."""
    here = case(asks("0", 1, 4), asks("1", 1, 4), interleave=False, prefix_caching=False)
    step: Step = next(step for step in served(here) if step.kind == "decode")
    return step


STEP = a_decode_step()
ROW = STEP.after.decoding[0]


def seen(
    found: Step, strictness: Strictness = EXACT, *unreported: str, expected: Step = STEP
) -> tuple[Difference, ...]:
    return differences(evidence_of("spyre").compared[strictness], expected, found, unreported)


def fields(found: Step, strictness: Strictness = EXACT, *unreported: str) -> list[str]:
    return [f"{row.field} {row.place}".strip() for row in seen(found, strictness, *unreported)]


def with_after(**changes: Any) -> Step:
    return evolve(STEP, after=evolve(STEP.after, **changes))


def with_pool(**changes: Any) -> Step:
    return with_after(pool=evolve(STEP.after.pool, **changes))


def test_equal_steps_have_no_difference() -> None:
    for strictness in Strictness:
        assert seen(evolve(STEP), strictness) == ()


def test_a_list_and_a_tuple_of_the_same_tokens_are_the_same() -> None:
    outputs = {id_: tuple(tokens) for id_, tokens in STEP.outputs.items()}
    assert seen(evolve(STEP, outputs=outputs)) == ()


def test_a_difference_says_field_place_and_both_values() -> None:
    row = evolve(ROW, computed=9)
    found = with_after(decoding=(row, *STEP.after.decoding[1:]))
    assert seen(found) == (Difference("after.decoding.computed", "1", 2, 9),)


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        pytest.param(evolve(STEP, tkv=9), ["tkv"], id="a number"),
        pytest.param(evolve(STEP, scheduled={"1": 1}), ["scheduled 0"], id="an entry"),
        pytest.param(evolve(STEP, refusal="BLK-9"), ["refusal"], id="a refusal"),
        pytest.param(
            with_after(decoding=STEP.after.decoding[::-1]), ["after.decoding"], id="an order"
        ),
        pytest.param(with_after(last_kind="idle"), ["after.last_kind"], id="what ran last"),
        pytest.param(
            with_pool(free=STEP.after.pool.free[::-1]), ["after.pool.free"], id="the free list"
        ),
        pytest.param(
            with_pool(keys=FrozenMap({1: b"\1"}), cached=FrozenMap({b"\1": (1,)})),
            ["after.pool.keys 1", "after.pool.cached 01"],
            id="cached content",
        ),
        pytest.param(
            evolve(STEP, events=(*STEP.events, Event("pause", "1", "SPY-PAU-2"))),
            [f"events {len(STEP.events)}"],
            id="an event",
        ),
    ],
)
def test_every_field_counts_where_exact(found: Step, differs: list[str]) -> None:
    assert fields(found) == differs


def test_decisions_come_before_what_follows_from_them() -> None:
    found = evolve(with_after(decoding=(), paused=STEP.after.decoding), kind="idle", tkv=0)
    assert fields(found) == ["kind", "tkv", "after.decoding", "after.paused"]


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        pytest.param(evolve(STEP, refusal="BLK-9"), [], id="a refusal"),
        pytest.param(with_pool(free=STEP.after.pool.free[::-1]), [], id="the order of the free"),
        pytest.param(with_pool(free=STEP.after.pool.free[1:]), ["blocks free"], id="a free block"),
        pytest.param(
            with_after(decoding=(evolve(ROW, computed=9), *STEP.after.decoding[1:])),
            ["decoding 1 computed", "decoding 1 tkv"],
            id="a row",
        ),
    ],
)
def test_what_a_trace_shows_counts_where_observable(found: Step, differs: list[str]) -> None:
    assert fields(found, OBSERVABLE) == differs


def test_the_running_queue_is_observable_where_a_request_is_prefilled() -> None:
    slot = evolve(STEP.after, prefilling=evolve(ROW, id="2"))
    ran_last = evolve(STEP, after=evolve(slot, last_kind="prefill"))

    found = seen(ran_last, OBSERVABLE, expected=evolve(STEP, after=slot))

    assert found == (Difference("running", "", ["1", "0", "2"], ["2", "1", "0"]),)


def test_only_what_was_scheduled_and_came_out_counts_for_decisions() -> None:
    found = evolve(with_after(decoding=()), volume=9, events=(), outputs={})
    assert fields(found, DECISIONS) == ["outputs 0", "outputs 1"]


def test_what_is_not_reported_does_not_count() -> None:
    found = evolve(with_pool(keys=FrozenMap({1: b"\1"}), free=()), events=())
    assert fields(found, EXACT, "events", "after.pool.keys") == ["after.pool.free"]
    assert fields(found, EXACT, "events", "after.pool") == []
    assert fields(found, EXACT, "event", "after.po") == [
        "after.pool.free",
        "after.pool.keys 1",
        "events 0",
    ]
