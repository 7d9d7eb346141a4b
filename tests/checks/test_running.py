"""Serving a workload: who arrives when, who goes away when, what the clock says, what is judged."""

from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from checks.harness.running import Broken, Judge, serve, step_time
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.rules import REGISTRY, Kind

CONFIG = SpyreConfig(
    block_size=4, chunk_size=8, max_model_len=64, max_num_seqs=2, num_blocks=20, prefill_time=8
)


def request(id_: str, prompt_len: int, max_tokens: int, **more: Any) -> Request:
    prompt = Prompt.of_stream(f"prompt {id_}", prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, **more)


def served(*requests: Request, config: SpyreConfig = CONFIG) -> list[Step]:
    return list(serve(SpyreMachine.of(config, requests), requests))


def arrivals(steps: list[Step]) -> dict[str, int]:
    """By request: the step before which it was handed in."""
    first: dict[str, int] = {}
    for step in steps:
        for one in step.before.present:
            first.setdefault(one.id, step.index)
    return first


# --- the clock ------------------------------------------------------------------------------------


def test_prefill_steps_take_8_units_and_all_others_1_unless_configured() -> None:
    assert [step_time(SpyreConfig(), kind) for kind in ("prefill", "decode", "idle")] == [8, 1, 1]
    slow = SpyreConfig(prefill_time=2.5, decode_time=0.5)
    assert [step_time(slow, kind) for kind in ("prefill", "decode", "idle")] == [2.5, 0.5, 0.5]


def test_steps_are_numbered_and_begin_when_the_one_before_ends() -> None:
    steps = served(request("a", 9, 3))

    assert [(step.index, step.time, step.kind) for step in steps] == [
        (0, 0, "prefill"),
        (1, 8, "prefill"),
        (2, 16, "decode"),
        (3, 17, "decode"),
    ]


# --- arrivals -------------------------------------------------------------------------------------


def test_request_arrives_before_the_step_that_it_names() -> None:
    steps = served(request("a", 3, 9), request("b", 3, 2, arrival=4))

    assert arrivals(steps) == {"a": 0, "b": 4}
    assert steps[4].chunk is not None
    assert steps[4].chunk.id == "b"


def test_steps_are_idle_until_the_step_of_the_next_arrival() -> None:
    steps = served(request("a", 3, 1), request("b", 3, 1, arrival=3))

    assert [step.kind for step in steps] == ["prefill", "idle", "idle", "prefill"]
    assert [step.time for step in steps] == [0, 8, 9, 10]


def test_request_arrives_before_the_first_step_that_begins_at_its_time_or_later() -> None:
    exactly, later = request("exactly", 3, 9, arrival_time=8.0), request("late", 3, 2)

    steps = served(request("a", 3, 9), exactly)
    assert arrivals(steps)["exactly"] == 1

    steps = served(request("a", 3, 9), evolve(later, arrival_time=8.1))
    assert (arrivals(steps)["late"], steps[2].time) == (2, 9)


def test_clock_is_put_forward_while_nobody_is_there() -> None:
    steps = served(
        request("a", 3, 1, arrival_time=5.0),
        request("b", 3, 1, arrival_time=100.5),
        request("c", 3, 1, arrival_time=101.0),
    )

    assert [(step.kind, step.time) for step in steps] == [
        ("prefill", 5.0),
        ("prefill", 100.5),
        ("prefill", 108.5),
    ]
    assert arrivals(steps) == {"a": 0, "b": 1, "c": 2}


def test_clock_is_not_put_forward_over_an_arrival_given_by_its_step() -> None:
    steps = served(request("a", 3, 1, arrival_time=100.0), request("b", 3, 1, arrival=2))

    assert [(step.kind, step.time) for step in steps] == [
        ("idle", 0),
        ("idle", 1),
        ("prefill", 2),
        ("prefill", 100),
    ]


def test_requests_of_the_same_moment_arrive_in_the_order_of_the_workload() -> None:
    by_step = served(*(request(id_, 3, 1) for id_ in "bca"))
    by_time = served(*(request(id_, 3, 1, arrival_time=1.0) for id_ in "bca"))

    for steps in (by_step, by_time):
        assert [step.chunk.id for step in steps if step.chunk] == ["b", "c", "a"]


def test_empty_workload_takes_no_step() -> None:
    assert served() == []


# --- aborts ---------------------------------------------------------------------------------------


def test_client_that_goes_away_before_its_request_arrives_never_sends_it() -> None:
    by_step = served(request("a", 3, 6), request("b", 3, 2, arrival=3, abort_at=2))
    by_time = served(request("a", 3, 6), request("b", 3, 2, arrival_time=9.0, abort_at=1))

    for steps in (by_step, by_time):
        assert arrivals(steps) == {"a": 0}
        assert all(step.aborted == () for step in steps)
        assert steps[-1].after.aborted == frozenset()


def test_client_that_goes_away_with_the_step_of_its_arrival_is_aborted_while_waiting() -> None:
    steps = served(request("a", 3, 4), request("b", 3, 2, arrival=1, abort_at=1))

    assert steps[1].aborted == ("b",)
    assert steps[1].before.aborted == {"b"}
    assert arrivals(steps) == {"a": 0}


def test_request_is_aborted_in_its_prefill() -> None:
    steps = served(request("a", 20, 4, abort_at=2), request("b", 3, 1))

    assert steps[1].after.prefilling is not None
    assert [step.aborted for step in steps] == [(), (), ("a",)]
    assert steps[2].before.prefilling is None
    assert steps[2].before.pool.references == {}
    assert steps[2].chunk is not None
    assert steps[2].chunk.id == "b"


def test_request_is_aborted_while_it_decodes_and_the_last_step_has_nothing_to_do() -> None:
    steps = served(request("a", 3, 9, abort_at=3))

    assert [step.kind for step in steps] == ["prefill", "decode", "decode", "idle"]
    assert steps[-1].aborted == ("a",)
    assert steps[-1].after.aborted == {"a"}


def test_client_that_goes_away_after_its_request_has_finished_changes_nothing() -> None:
    steps = served(request("a", 3, 2, abort_at=2), request("b", 3, 4))

    assert steps[-1].after.finished == {"a", "b"}
    assert steps[-1].after.aborted == frozenset()


# --- whatever the workload ------------------------------------------------------------------------

moments = st.one_of(
    st.fixed_dictionaries({"arrival": st.integers(0, 12)}),
    st.fixed_dictionaries({"arrival_time": st.floats(0, 60, allow_nan=False)}),
)
clients = st.tuples(moments, st.none() | st.integers(0, 25), st.integers(1, 20), st.integers(1, 6))


@given(st.lists(clients, max_size=5))
def test_everybody_finishes_or_goes_away_and_the_clock_never_goes_back(
    drawn: list[tuple[dict[str, Any], int | None, int, int]],
) -> None:
    requests = [
        request(str(index), prompt_len, max_tokens, abort_at=abort_at, **moment)
        for index, (moment, abort_at, prompt_len, max_tokens) in enumerate(drawn)
    ]

    steps = served(*requests)

    times = [step.time for step in steps]
    assert times == sorted(times)
    assert [step.index for step in steps] == list(range(len(steps)))
    end = steps[-1].after if steps else SpyreMachine.of(CONFIG, requests).initial()
    assert end.is_idle
    gone = {one for step in steps for one in step.aborted}
    assert end.aborted == gone <= {one.id for one in requests if one.abort_at is not None}
    never_sent = {one.id for one in requests} - end.finished - gone
    assert all(request.abort_at is not None for request in requests if request.id in never_sent)


# --- the judge ------------------------------------------------------------------------------------


def judged(*steps: Step, keep: int = 10) -> Judge:
    judge = Judge(SpyreMachine.of(CONFIG, [request("a", 9, 6)]).ctx, keep=keep)
    for step in steps:
        judge.observe(step)
    return judge


def test_run_of_the_reference_breaks_no_rule() -> None:
    judge = judged(*served(request("a", 9, 6)))

    assert (judge.judged, judge.broken) == (7, [])
    assert len(judge.rules) > 50


def test_judge_holds_every_rule_of_one_step_and_of_one_state_against_it() -> None:
    judge = judged()

    assert {rule.kind for rule in judge.rules} == set(Kind) - {Kind.EVENTUALLY}
    assert all(rule.applies(CONFIG) for rule in judge.rules)


def test_planted_breach_is_reported_with_its_step_its_rule_and_what_was_found() -> None:
    *steps, last = served(request("a", 9, 6))
    wrong = evolve(last, tkv=last.tkv + 1, volume=last.volume + 1)

    judge = judged(*steps, wrong)

    assert judge.judged == 7
    assert judge.broken == [Broken(6, REGISTRY["SPY-TKV-2"], "tkv 15, rows reach 14")]


def test_judge_keeps_the_first_few_breaches_of_each_rule_and_counts_all_steps() -> None:
    *steps, last = (evolve(step, volume=0) for step in served(request("a", 9, 6)))
    wrong = [*steps, evolve(last, tkv=last.tkv + 1)]

    judge = judged(*wrong, keep=3)

    assert [(one.step, one.rule.id) for one in judge.broken] == [
        (0, "SPY-VOL-1"),
        (1, "SPY-VOL-1"),
        (2, "SPY-VOL-1"),
        (6, "SPY-TKV-2"),
    ]
    assert judge.judged == len(wrong) == 7


def test_abort_that_loses_a_block_is_seen_in_the_state_before_the_step() -> None:
    """The step itself leaves the pool as it is: only the abort has touched it."""
    step = served(request("a", 9, 6, abort_at=3))[-1]
    pool = evolve(step.before.pool, free=step.before.pool.free[1:])
    lossy = evolve(step, before=evolve(step.before, pool=pool), after=evolve(step.after, pool=pool))

    found = [(one.step, one.rule.id, one.found) for one in judged(lossy).broken]

    assert (3, "BLK-1", "19 free and 0 held of 20 blocks") in found
    assert "BLK-1" not in [one.rule.id for one in judged(step).broken]
