"""The vLLM V1 machine with a step in flight: results come a step late, some to no one."""

from typing import Any

import pytest

from reference.core.guards import GuardError
from reference.vllm_v1 import transitions
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.errors import ConfigError
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Flight, GivenBack, Sequence, Step
from tests.reference.scenes import arrived, of_parts, steps_from
from tests.reference.vllm_v1.scenes import ids, machine
from tests.requests import request

EARLY = Environment(ends=lambda _row: True)


def ahead(*requests: Any, **config: Any) -> VllmV1Machine:
    return machine(*requests, steps_in_flight=1, **config)


def row(step: Step, request_id: str) -> Sequence:
    return next(row for row in step.after.present if row.id == request_id)


def test_step_is_planned_before_the_results_of_the_last_are_known() -> None:
    served = ahead(request("0", 3, 3))

    first, second, third, fourth, *_ = steps_from(served, arrived(served), 6)

    assert (first.scheduled, first.outputs, first.results_of) == ({"0": 3}, {}, None)
    assert row(first, "0").placeholders == 1
    assert second.scheduled == {"0": 1}
    assert second.results_of == Flight({"0": 3}, ("0",))
    assert (row(second, "0").generated, row(second, "0").placeholders) == (1, 1)
    assert row(second, "0").computed == 4
    assert (third.scheduled, len(third.outputs["0"])) == ({"0": 1}, 1)
    assert (fourth.scheduled, fourth.finished) == ({}, ("0",))


def test_end_is_reported_by_a_step_that_is_in_flight_itself() -> None:
    served = ahead(request("0", 3, 1))

    *_, last, reports, lands = steps_from(served, arrived(served), 4)

    assert last.finished == ("0",)
    assert reports.reported == ("0",)
    assert reports.after.flights == (Flight({}),)
    assert lands.after.is_idle


def test_drafts_are_planned_before_those_in_flight_are_verified_and_rolled_back_after() -> None:
    served = ahead(request("0", 3, 9), num_speculative_tokens=2, accepted_drafts=1)

    first, second, third = steps_from(served, arrived(served), 3)

    assert (first.drafts, row(first, "0").drafts) == ({}, 2)
    assert (second.scheduled, second.drafts) == ({"0": 3}, {"0": 2})
    assert (row(second, "0").computed, row(second, "0").placeholders) == (6, 3)
    assert third.results_of == Flight({"0": 3}, ("0",), {"0": 2})
    assert (third.accepted, len(third.outputs["0"])) == ({"0": 1}, 2)
    assert (row(third, "0").computed, row(third, "0").placeholders) == (8, 3)  # one less than 9, 4


def test_victim_gets_the_drafts_that_were_in_flight_and_has_nothing_to_roll_back() -> None:
    requests = (request(name, 3, 9) for name in "01")
    scarce = {"num_blocks": 4, "reserve_full_prompt": False}
    served = ahead(*requests, num_speculative_tokens=2, accepted_drafts=1, **scarce)

    *_, third = steps_from(served, arrived(served), 3)

    assert third.preempted == ("1",)
    assert third.accepted == {"0": 1, "1": 1}
    assert [event.id for event in third.happened("rollback")] == ["0"]
    assert (row(third, "1").generated, row(third, "1").computed) == (3, 0)


def test_stop_is_seen_late_and_the_token_after_it_discarded() -> None:
    served = ahead(request("0", 3, 5))
    begun = served.step(arrived(served), EARLY).after

    stopped = served.step(begun, EARLY)
    following = served.step(stopped.after, EARLY)

    assert stopped.scheduled == {"0": 1}
    assert stopped.finished == ("0",)
    assert following.results_of == Flight({"0": 1}, ("0",))
    assert following.outputs == {}


def test_victim_has_the_token_of_the_step_in_flight_while_it_waits() -> None:
    served = ahead(request("0", 4, 3), request("1", 4, 3), num_blocks=3, reserve_full_prompt=False)
    begun = served.step(arrived(served)).after

    step = served.step(begun)

    assert step.preempted == ("1",)
    assert {*step.outputs} == {"0", "1"}
    assert ids(step.after) == {"waiting": ["1"], "running": ["0"]}
    assert (row(step, "1").generated, row(step, "1").placeholders) == (1, 0)
    assert row(step, "1").computed == 0


def test_victim_may_end_while_it_waits() -> None:
    served = ahead(request("0", 4, 3), request("1", 4, 1), num_blocks=3, reserve_full_prompt=False)
    begun = served.step(arrived(served)).after
    two = served.step(begun, Environment(ends=lambda row: row.id == "1"))

    assert two.finished == ("1",)
    assert ids(two.after) == {"running": ["0"], "finished": ["1"]}


def test_token_of_an_aborted_request_is_discarded() -> None:
    served = ahead(request("0", 3, 3), request("1", 3, 3))
    begun = served.step(arrived(served)).after

    step = served.step(served.abort(begun, "0"))

    assert step.results_of == Flight({"0": 3, "1": 3}, ("0", "1"))
    assert {*step.outputs} == {"1"}


def test_client_may_leave_between_the_plan_and_the_results() -> None:
    served = ahead(request("0", 3, 3))
    begun = served.step(arrived(served)).after

    step = served.step(begun, Environment(served.ends_as_said, leavers=("0",)))

    assert (step.scheduled, step.outputs) == ({"0": 1}, {})
    assert step.after.aborted == {"0"}


@pytest.mark.parametrize("prompt", [3, 4])
def test_block_can_be_found_once_the_values_of_its_tokens_are_known(prompt: int) -> None:
    """The block of 4 tokens is full once the token at place 3 is planned and known."""
    served = ahead(request("0", prompt, 2), prefix_caching=True)

    steps = steps_from(served, arrived(served), 3)

    assert [len(step.after.pool.keys) for step in steps] == [prompt // 4, prompt // 4, 1]


def test_prompt_that_is_shared_is_found_while_it_is_in_flight() -> None:
    requests = (of_parts(name, ("system", 8), (name, 2)) for name in "ab")
    served = ahead(*requests, prefix_caching=True)
    begun = served.step(served.arrive(served.initial(), "a")).after

    step = served.step(served.arrive(begun, "b"))

    assert step.scheduled == {"a": 1, "b": 2}
    assert step.happened("prefix_hit")[0].id == "b"


SCARCE: dict[str, Any] = {"num_blocks": 2, "reserve_full_prompt": False}


def test_blocks_that_a_step_in_flight_writes_to_are_free_once_it_has_landed() -> None:
    served = ahead(request("0", 3, 5), connector="async")
    begun = served.step(arrived(served)).after

    gone = served.abort(begun, "0")
    step = served.step(gone)

    assert gone.flights[-1].frees == (GivenBack("0", (1,)),)
    assert (gone.pool.references, gone.present) == ({1: 1}, ())
    assert (step.after.pool.references, step.results_of) == ({}, gone.flights[0])


def test_without_a_connector_they_are_free_at_once() -> None:
    served = ahead(request("0", 3, 5))
    begun = served.step(arrived(served)).after

    assert served.abort(begun, "0").pool.references == {}


def test_up_to_0_28_0_requests_are_preempted_for_blocks_that_are_free_only_later() -> None:
    requests = (request("0", 4, 3), request("1", 4, 3))
    served = ahead(*requests, connector="async", **SCARCE)
    begun = served.step(arrived(served)).after

    step = served.step(begun)

    assert step.preempted == ("1", "0")
    assert (step.scheduled, {*step.outputs}) == ({}, {"0", "1"})


def test_0_33_0_lets_the_request_wait_that_lacks_blocks() -> None:
    requests = (request("0", 4, 3), request("1", 4, 3))
    served = ahead(*requests, connector="async", release="0.33.0", **SCARCE)
    begun = served.step(arrived(served)).after

    step = served.step(begun)

    assert (step.preempted, step.scheduled) == ((), {})
    assert {*step.outputs} == {"0", "1"}


def in_turn(served: VllmV1Machine, count: int) -> list[Step]:
    """So many steps, of which the second is the first with the second request."""
    first = served.step(served.arrive(served.initial(), "0"))
    return [first, *steps_from(served, served.arrive(first.after, "1"), count - 1)]


def test_request_has_a_turn_once_each_stage_of_a_pipeline_has_had_a_step() -> None:
    steps = in_turn(machine(request("0", 3, 2), request("1", 3, 2), steps_in_flight=2), 5)

    assert [step.scheduled for step in steps] == [{"0": 3}, {"1": 3}, {"0": 1}, {"1": 1}, {}]
    assert [[*step.outputs] for step in steps] == [[], [], ["0"], ["1"], ["0"]]


def test_victim_waits_for_what_two_steps_have_in_flight_for_it() -> None:
    settings: dict[str, Any] = {"num_blocks": 4, "reserve_full_prompt": False, "steps_in_flight": 2}
    *_, fifth, sixth = in_turn(machine(request("0", 7, 4), request("1", 5, 4), **settings), 6)

    assert (fifth.preempted, fifth.after.late) == (("1",), frozenset({"1"}))
    assert (sixth.admitted, [*sixth.outputs], sixth.after.late) == ((), ["1"], frozenset())


def test_victim_whose_blocks_are_to_be_sent_gets_no_late_token() -> None:
    requests = (request("0", 4, 3), request("1", 4, 3))
    served = ahead(*requests, connector="async", sends=True, **SCARCE)
    begun = served.step(arrived(served)).after

    assert served.step(begun).outputs == {}


def test_lost_load_takes_back_what_was_planned_since() -> None:
    served = VllmV1Machine.of(
        VllmV1Config(block_size=4, num_blocks=8, connector=Connector.SYNC, steps_in_flight=1),
        [request("0", 7, 5)],
        external={"0": 4},
    )
    begun = served.step(arrived(served)).after

    step = served.step(begun, Environment(served.ends_as_said, loses=lambda _id: True))

    assert (begun.flights[0].external, begun.running[0].computed) == ({"0": 4}, 7)
    assert (step.scheduled, step.outputs, step.failed_loads) == ({"0": 1}, {}, ("0",))
    assert (row(step, "0").computed, row(step, "0").placeholders) == (0, 0)
    assert step.after.flights[0].samples == ()


def test_no_results_come_without_a_step_in_flight() -> None:
    served = ahead(request("0", 3))

    with pytest.raises(GuardError, match="V1-ASY-1"):
        transitions.land(served.ctx, served.initial())


def test_token_comes_only_to_a_request_that_awaits_one() -> None:
    served = ahead(request("0", 3, 3))
    begun = served.step(arrived(served)).after
    once = transitions.receive(served.ctx, begun, "0")

    with pytest.raises(GuardError, match="V1-ASY-3"):
        transitions.receive(served.ctx, once, "0")


@pytest.mark.parametrize(
    ("beside", "allowed"),
    [
        ({"release": "0.11.2"}, "0.33.0, 0.28.0 beside steps_in_flight"),
        ({"steps_in_flight": 5}, "at most 4"),
        ({"steps_in_flight": 2, "connector": "sync"}, "none beside several steps in flight"),
    ],
)
def test_what_is_not_modelled_is_refused(beside: dict[str, Any], allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        VllmV1Config(**{"steps_in_flight": 1} | beside)

    assert refused.value.allowed == allowed


def test_what_a_step_in_flight_reads_behind_a_window_is_kept() -> None:
    config: dict[str, Any] = {"max_num_batched_tokens": 4, "kv_groups": "sliding 3"}
    flies = ahead(request("0", 13, 2), **config)
    waits = machine(request("0", 13, 2), **config)

    late, at_once = (
        [
            [*map(bool, row.tables[0])]
            for step in steps_from(served, arrived(served), 4)
            for row in step.planned.running
        ]
        for served in (flies, waits)
    )

    assert at_once == [[True], [True] * 2, [False, True, True], [False, False, True, True]]
    assert late == [[True], [True] * 2, [True] * 3, [False, True, True, True]]


@pytest.mark.parametrize(("release", "left"), [("0.28.0", [1, 3, 5, 7]), ("0.33.0", [3, 5, 7])])
def test_states_before_a_gap_come_back_from_0_33_0_on(release: str, left: list[int]) -> None:
    served = ahead(
        request("0", 33, 2),
        max_num_batched_tokens=8,
        prefix_caching=True,
        kv_groups="mamba",
        release=release,
    )

    *_, last = steps_from(served, arrived(served), 4)

    (running,) = last.planned.running
    assert [place for place, block in enumerate(running.tables[0]) if block] == left
    assert running.grown_from == (6 if release == "0.28.0" else 0)
