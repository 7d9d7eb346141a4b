"""The state machine passes equal systems, and prints a failure as a program."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from checks.harness.system import InProcess
from tests.checks.harness.cases import ENGINE, REFERENCE, faulty_spyre
from tests.checks.harness.state_machine import machine_of

QUICK = settings(
    print_blob=False,  # the program alone, on a build server too
    max_examples=25,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("system", [ENGINE, REFERENCE], ids=lambda system: system.hello.name)
def test_every_system_does_as_the_reference(system: InProcess) -> None:
    run_state_machine_as_test(machine_of(system), settings=QUICK)


def failure_of(name: str) -> BaseException:
    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(machine_of(faulty_spyre(name)), settings=QUICK)
    return failed.value


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["last come first served", "rows not padded", "never at max tokens"]
)
def test_a_faulty_system_is_found(name: str) -> None:
    assert ", found " in str(failure_of(name))


def test_a_failure_prints_as_a_program_that_fails_again() -> None:
    failure = failure_of("prefills not noted")
    _, begins, program = "\n".join(failure.__notes__).partition("state = ")

    assert "'prompt_parts': [['a', 1]], 'max_tokens': 1}" in program
    assert program.endswith("\nstate.arrive()\nstate.step(ends=[])\nstate.teardown()")
    assert program.count("\nstate.") <= 6
    with pytest.raises(AssertionError) as again:
        exec(begins + program, {"Lockstep": machine_of(faulty_spyre("prefills not noted"))})
    assert str(again.value) == "step 0, after.last_kind : 'prefill', found 'decode'"
