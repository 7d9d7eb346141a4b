"""Serving a workload: arrivals, aborts and the clock."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.harness.case import Case
from checks.harness.runs.measuring import serve
from checks.harness.runs.serving import served
from checks.harness.script import Script
from engine.core.clock import step_time
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from tests.requests import request

CONFIG = SpyreConfig(
    block_size=4, chunk_size=8, max_model_len=64, max_num_seqs=2, num_blocks=20, prefill_time=8
)


def steps_of(*requests: Request) -> list[Step]:
    return list(served(Case(CONFIG, requests)))


def arrivals(steps: list[Step]) -> dict[str, int]:
    """By request: the first step after its arrival."""
    first: dict[str, int] = {}
    for step in steps:
        for sequence in step.before.present:
            first.setdefault(sequence.id, step.index)
    return first


# --- the clock ------------------------------------------------------------------------------------


def test_prefill_steps_take_8_units_and_all_others_1_unless_configured() -> None:
    configured = SpyreConfig(prefill_time=2.5, decode_time=0.5)
    for config, times in ((SpyreConfig(), [8, 1, 1]), (configured, [2.5, 0.5, 0.5])):
        assert [step_time(config, kind) for kind in ("prefill", "decode", "idle")] == times


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param(
            [request("a", 9, 3)],
            [("prefill", 0), ("prefill", 8), ("decode", 16), ("decode", 17)],
            id="a step begins when the one before ends",
        ),
        pytest.param(
            [request("a", 3, 1), request("b", 3, 1, arrival=3)],
            [("prefill", 0), ("idle", 8), ("idle", 9), ("prefill", 10)],
            id="idle until the step of the next arrival",
        ),
        pytest.param(
            [
                request("a", 3, 1, arrival_time=5.0),
                request("b", 3, 1, arrival_time=100.5),
                request("c", 3, 1, arrival_time=101.0),
            ],
            [("prefill", 5.0), ("prefill", 100.5), ("prefill", 108.5)],
            id="put forward while no request is there",
        ),
        pytest.param(
            [request("a", 3, 1, arrival_time=100.0), request("b", 3, 1, arrival=2)],
            [("idle", 0), ("idle", 1), ("prefill", 2), ("prefill", 100)],
            id="not put forward over an arrival given by its step",
        ),
        pytest.param([], [], id="no request, no step"),
    ],
)
def test_clock(requests: list[Request], expected: list[tuple[str, float]]) -> None:
    steps = steps_of(*requests)

    assert [(step.kind, step.time) for step in steps] == expected
    assert [step.index for step in steps] == list(range(len(steps)))


# --- arrivals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "step", "time", "prefilled"),
    [
        ({"arrival": 4}, 4, 11, 4),
        ({"arrival_time": 8.0}, 1, 8, 2),
        ({"arrival_time": 8.1}, 2, 9, 2),
    ],
    ids=["before its step", "exactly when a step begins", "before the first step after its time"],
)
def test_request_arrives_early(
    moment: dict[str, Any], step: int, time: float, prefilled: int
) -> None:
    steps = steps_of(request("a", 3, 9), request("b", 3, 2, **moment))

    assert arrivals(steps) == {"a": 0, "b": step}
    assert steps[step].time == time
    assert [step.index for step in steps if step.chunk and step.chunk.id == "b"] == [prefilled]


@pytest.mark.parametrize("moment", [{}, {"arrival_time": 1.0}], ids=["by step", "by time"])
def test_requests_of_the_same_moment_arrive_in_the_order_of_the_workload(
    moment: dict[str, Any],
) -> None:
    steps = steps_of(*(request(id_, 3, 1, **moment) for id_ in "bca"))

    assert [step.chunk.id for step in steps if step.chunk] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param(
            [request("a", 3, 2), request("b", 3, 1, after="a", arrival_time=0.0)],
            [("prefill", 0), ("decode", 8), ("prefill", 9)],
            id="with the end of the one before",
        ),
        pytest.param(
            [request("a", 3, 2), request("b", 3, 1, after="a", arrival_time=90.5)],
            [("prefill", 0), ("decode", 8), ("prefill", 99.5)],
            id="some time after it",
        ),
        pytest.param(
            [
                request("a", 3, 1),
                request("b", 3, 1, after="a", arrival_time=5.0),
                request("c", 3, 1, after="b", arrival_time=2.0),
                request("d", 3, 1, arrival_time=14.0),
            ],
            [("prefill", 0), ("prefill", 13), ("prefill", 21), ("prefill", 29)],
            id="one after the other, and others between",
        ),
        pytest.param(
            [request("b", 3, 1, after="z", arrival_time=5.0)],
            [("prefill", 5)],
            id="no request that it names",
        ),
    ],
)
def test_a_turn_arrives_after_the_one_before_has_ended(
    requests: list[Request], expected: list[tuple[str, float]]
) -> None:
    assert [(step.kind, step.time) for step in steps_of(*requests)] == expected


def test_latencies_of_a_turn_count_from_its_own_arrival() -> None:
    turn = request("b", 3, 1, after="a", arrival_time=90.5)
    spread = serve("spyre", [request("a", 3, 2), turn]).summary.end_to_end_units

    assert (spread.count, spread.p50, spread.max) == (2, 8, 9)


@pytest.mark.parametrize("gone", [{"abort_at": 2}, {"abort_at": 0}, {"arrival": 3, "abort_at": 2}])
def test_no_turn_arrives_after_one_whose_client_has_left(gone: dict[str, Any]) -> None:
    turns = (request(id_, 3, 1, after=last, arrival_time=0.0) for last, id_ in ("ab", "bc"))

    assert arrivals(steps_of(request("a", 3, 9, **gone), *turns, request("d", 3, 1))).keys() <= {
        "a",
        "d",
    }


def test_a_turn_whose_client_leaves_before_it_comes_is_never_sent_nor_are_those_behind_it() -> None:
    second = request("b", 3, 1, after="a", arrival_time=0.0, abort_at=1)
    third = request("c", 3, 1, after="b", arrival_time=0.0)

    assert arrivals(steps_of(request("a", 3, 4), second, third)) == {"a": 0}


def test_turns_come_in_episodes_of_campaigns_too() -> None:
    turn = request("b", 3, 1, after="a", arrival_time=2.0)
    script = Script(Case(CONFIG, (request("a", 3, 2), turn)))

    arriving = [action.arrive for action in script]

    assert script.over
    assert [ids for ids in arriving if ids] == [("a",), ("b",)]


# --- aborts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", [{"arrival": 3, "abort_at": 2}, {"arrival_time": 9.0, "abort_at": 1}]
)
def test_client_that_goes_away_before_its_request_arrives_never_sends_it(
    moment: dict[str, Any],
) -> None:
    steps = steps_of(request("a", 3, 6), request("b", 3, 2, **moment))

    assert arrivals(steps) == {"a": 0}
    assert all(step.aborted == () for step in steps)
    assert steps[-1].after.aborted == frozenset()


def test_client_that_goes_away_with_the_step_of_its_arrival_is_aborted_while_waiting() -> None:
    steps = steps_of(request("a", 3, 4), request("b", 3, 2, arrival=1, abort_at=1))

    assert steps[1].aborted == ("b",)
    assert steps[1].before.aborted == {"b"}
    assert arrivals(steps) == {"a": 0}


def test_request_is_aborted_in_its_prefill() -> None:
    steps = steps_of(request("a", 20, 4, abort_at=2), request("b", 3, 1))

    assert steps[1].after.prefilling is not None
    assert [step.aborted for step in steps] == [(), (), ("a",)]
    assert steps[2].before.prefilling is None
    assert steps[2].before.pool.references == {}
    assert steps[2].chunk is not None
    assert steps[2].chunk.id == "b"


def test_request_is_aborted_while_it_decodes_and_the_last_step_has_nothing_to_do() -> None:
    steps = steps_of(request("a", 3, 9, abort_at=3))

    assert [step.kind for step in steps] == ["prefill", "decode", "decode", "idle"]
    assert steps[-1].aborted == ("a",)
    assert steps[-1].after.aborted == {"a"}


def test_client_that_goes_away_after_its_request_has_finished_changes_nothing() -> None:
    steps = steps_of(request("a", 3, 2, abort_at=2), request("b", 3, 4))

    assert steps[-1].after.finished == {"a", "b"}
    assert steps[-1].after.aborted == frozenset()


# --- random workloads -----------------------------------------------------------------------------

moments = st.one_of(
    st.fixed_dictionaries({"arrival": st.integers(0, 12)}),
    st.fixed_dictionaries({"arrival_time": st.floats(0, 60, allow_nan=False)}),
    st.fixed_dictionaries({"arrival_time": st.floats(0, 9), "after": st.sampled_from("0123")}),
)
clients = st.tuples(moments, st.none() | st.integers(0, 25), st.integers(1, 20), st.integers(1, 6))


@given(st.lists(clients, max_size=5))
def test_each_request_finishes_or_leaves_and_the_clock_never_goes_back(
    drawn: list[tuple[dict[str, Any], int | None, int, int]],
) -> None:
    requests = [
        request(str(index), prompt_len, max_tokens, abort_at=abort_at, **moment)
        for index, (moment, abort_at, prompt_len, max_tokens) in enumerate(drawn)
    ]

    steps = steps_of(*requests)

    times = [step.time for step in steps]
    assert times == sorted(times)
    assert [step.index for step in steps] == list(range(len(steps)))
    end = steps[-1].after if steps else SpyreMachine.of(CONFIG, requests).initial()
    assert end.is_idle
    gone = {request_id for step in steps for request_id in step.aborted}
    assert (
        end.aborted == gone <= {request.id for request in requests if request.abort_at is not None}
    )
    never_sent = {request.id for request in requests} - end.finished - gone
    assert all(
        request.abort_at is not None or request.after in never_sent | gone
        for request in requests
        if request.id in never_sent
    )
