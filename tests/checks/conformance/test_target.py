"""A driver under the fuzzer's own harness, and the same case as the campaign runs it."""

import sys

from checks.conformance.client import Driver
from checks.conformance.episode import Terms, run_episode
from checks.conformance.lab import DriverLab
from checks.conformance.target import subject_of
from checks.conformance.trial import trial_case
from checks.fuzz.lockstep import run_case
from tests.checks.conformance.driver_files import TEMPLATE

COMMAND = [sys.executable, str(TEMPLATE)]


def test_the_fuzzers_harness_finds_what_the_campaign_finds() -> None:
    with Driver(COMMAND) as driver:
        case = trial_case(driver.hello)
        by_step = run_case(subject_of(driver), case)
    with DriverLab(lambda: Driver(COMMAND)) as lab:
        at_once = run_episode(lab, case, Terms())

    assert by_step.finding is None
    assert at_once.finding is None
    assert by_step.steps > 10
