"""Strategies and the state machine: right schedulers pass, a failure prints as a program."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from checks.harness.finding import Kind
from checks.harness.policy import evidence_of, system_of
from lockstep import api, strategies
from lockstep.state_machine import machine_of
from tests.lockstep.broken import broken, class_named

QUICK = settings(
    max_examples=8,
    stateful_step_count=20,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    phases=(Phase.generate, Phase.shrink),
)


@pytest.mark.parametrize("policy", api.policies())
def test_configurations_and_workloads_of_each_policy_can_be_served(policy: str) -> None:
    @QUICK
    @given(data=st.data())
    def serve(data: st.DataObject) -> None:
        config = data.draw(strategies.configurations(policy, max_num_seqs=2))
        requests = data.draw(strategies.workloads(config))
        ended = set[str]()
        try:
            for step in api.serve(config, requests):
                ended.update(step.finished)
        except api.EndlessError:  # as a release may leave requests waiting
            assert evidence_of(policy).expected_reason(Kind.ENDLESS, config)
        assert config.max_num_seqs == 2
        assert ended <= {request.id for request in requests}

    serve()


@QUICK
@given(data=st.data())
def test_actions_have_each_request_arrive_before_its_client_leaves(
    data: st.DataObject,
) -> None:
    requests = data.draw(strategies.cases("nano-vllm")).requests
    actions = data.draw(strategies.actions(requests))

    arrived = [request_id for action in actions for request_id in action.arrive]
    assert arrived == [request.id for request in requests]
    for index, action in enumerate(actions):
        there = {request_id for earlier in actions[:index] for request_id in earlier.arrive}
        assert set(action.abort) <= there


@pytest.mark.parametrize("policy", ["spyre", "vllm-v1"])
def test_every_rule_holds_of_a_reference(policy: str) -> None:
    run_state_machine_as_test(machine_of(system_of(policy, "reference")), settings=QUICK)


def test_a_drivers_class_and_its_file_are_driven_alike() -> None:
    run_state_machine_as_test(machine_of(class_named(broken())), settings=QUICK)
    run_state_machine_as_test(machine_of("template"), settings=QUICK)


ADMITTED = "SPY-ADM-1: A request is admitted only into"


def test_a_broken_rule_is_found() -> None:
    wrong = machine_of(class_named(broken("a slot too many")))

    with pytest.raises(AssertionError, match=ADMITTED):
        run_state_machine_as_test(
            wrong, settings=settings(QUICK, max_examples=200, phases=(Phase.generate,))
        )


@pytest.mark.thorough
def test_a_broken_rule_prints_as_a_short_program() -> None:
    wrong = machine_of(class_named(broken("a slot too many")))

    with pytest.raises(AssertionError, match=ADMITTED) as failed:
        run_state_machine_as_test(wrong, settings=settings(QUICK, max_examples=200))

    program = "\n".join(failed.value.__notes__)
    assert program.count("state.arrive()") <= 3
    assert program.rstrip().endswith("state.teardown()")


def test_a_scheduler_that_stands_still_is_found() -> None:
    class Stuck(class_named(broken())):  # type: ignore[misc]
        def run(self) -> object:
            return {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}

    with pytest.raises(AssertionError, match="SPY-PRI-4: No step is idle while a request"):
        run_state_machine_as_test(machine_of(Stuck), settings=QUICK)
