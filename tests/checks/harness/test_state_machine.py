"""The state machine finds nothing in equals, and what it finds prints as a program."""

import pytest
from checks.fuzz.subjects import SUBJECTS
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.checks.fuzz.faulty import faulty
from tests.checks.fuzz.machine import machine_of

QUICK = settings(
    print_blob=False,  # the program alone, on a build server too
    max_examples=40,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("target", SUBJECTS)
def test_every_target_does_as_the_reference(target: str) -> None:
    run_state_machine_as_test(machine_of(SUBJECTS[target]), settings=QUICK)


def failure_of(name: str) -> BaseException:
    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(machine_of(faulty(name)), settings=QUICK)
    return failed.value


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["last come first served", "rows not padded", "never at max tokens"]
)
def test_a_faulty_target_is_found(name: str) -> None:
    assert ", found " in str(failure_of(name))


def test_a_failure_prints_as_a_program_that_fails_again() -> None:
    failure = failure_of("prefills not noted")
    _, begins, program = "\n".join(failure.__notes__).partition("state = ")

    assert "'prompt_parts': [['a', 1]], 'max_tokens': 1}" in program
    assert program.endswith("\nstate.arrive()\nstate.step(ends=[])\nstate.teardown()")
    assert program.count("\nstate.") <= 6
    with pytest.raises(AssertionError) as again:
        exec(begins + program, {"Lockstep": machine_of(faulty("prefills not noted"))})
    assert str(again.value) == "step 0, after.last_kind : 'prefill', found 'decode'"
