"""Drivers as processes: the template, and copies of it that misbehave."""

import sys
from pathlib import Path

import pytest
from checks.conformance.episode import Terms, run_episode
from checks.fuzz.finding import Kind
from checks.harness.driver.lab import DriverLab
<<<<<<< HEAD:tests/checks/conformance/test_client.py
=======
from tests.checks.conformance.driver_files import TEMPLATE, faulty_driver
>>>>>>> ce6f4e1 (Tests of the harness stand where the harness is; tight limits of the generators hold for the answers that are served):tests/checks/harness/driver/test_client.py

from checks.harness.driver import client
from checks.harness.driver.client import Driver, DriverGoneError
from checks.harness.driver.protocol import Action, DriverError
from checks.harness.driver.trial import trial_case
from tests.recorded.scenes import asks


def driver_of(path: Path) -> Driver:
    return Driver([sys.executable, str(path)])


def test_a_driver_says_who_it_is_and_takes_steps() -> None:
    with driver_of(TEMPLATE) as driver:
        config = trial_case(driver.hello).config
        first, second = "a", "b"
        driver.start(config, [asks(first, 20, 5), asks(second, 30, 5)])
        played = driver.play([Action((first, second)), Action(abort=(second,)), Action()])

    assert (driver.hello.name, driver.hello.release) == ("template", "toy 1.0")
    assert played.failure is None
    assert [told["kind"] for told in played.records] == ["prefill", "decode", "decode"]
    assert [told["waiting"] for told in played.records] == [[second], [], []]


def test_an_episode_can_begin_again_at_any_time() -> None:
    with DriverLab(lambda: driver_of(TEMPLATE)) as lab:
        case = trial_case(lab.hello)
        outcomes = [run_episode(lab, case, Terms()) for _ in range(2)]

    assert outcomes[0].steps == outcomes[1].steps > 10
    assert outcomes[0].finding is outcomes[1].finding is None


def test_a_driver_that_is_not_there_is_refused() -> None:
    with pytest.raises(DriverError) as refused:
        Driver(["./no-such-driver"])

    assert str(refused.value) == (
        "driver: found './no-such-driver'; "
        "allowed: a driver that can be started (No such file or directory)"
    )


def test_a_driver_that_ends_at_once_is_refused_with_its_last_words(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import sys\nsys.exit('no such module: torch')\n", encoding="utf-8")

    with pytest.raises(DriverError, match=r"it ended with code 1\nno such module: torch"):
        driver_of(path)


def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="driver's version: found 2; allowed: 1"):
        driver_of(faulty_driver(tmp_path, "speaks version 2"))


def test_a_driver_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "START_S", 0.2)

    with pytest.raises(DriverError, match="it did not answer within 0 s"):
        driver_of(faulty_driver(tmp_path, "says nothing"))


def test_a_driver_that_dies_is_a_finding_in_the_step_in_which_it_did(tmp_path: Path) -> None:
    path = faulty_driver(tmp_path, "dies")
    with DriverLab(lambda: driver_of(path)) as lab:
        case = trial_case(lab.hello)
        outcome = run_episode(lab, case, Terms())
        again = run_episode(lab, case, Terms())

    first = min(one.arrival for one in case.requests)
    assert outcome.finding is not None
    assert (outcome.finding.kind, outcome.finding.step) == (Kind.CRASH, first)
    assert outcome.finding.says == "DriverGone: it ended with code 1\nout of memory"
    assert again.finding == outcome.finding  # the campaign goes on with a new one


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("talks nonsense", "driver's line: found 'nonsense'; allowed: one JSON object"),
        ("forgets a field", "driver's record of step 0: found \"KeyError 'outputs'"),
    ],
)
def test_a_driver_that_does_not_keep_to_the_protocol_is_refused(
    tmp_path: Path, fault: str, told: str
) -> None:
    path = faulty_driver(tmp_path, fault)
    with DriverLab(lambda: driver_of(path)) as lab, pytest.raises(DriverError) as refused:
        run_episode(lab, trial_case(lab.hello), Terms())

    assert told in str(refused.value)


def test_a_driver_that_has_gone_says_so_when_it_is_asked() -> None:
    driver = driver_of(TEMPLATE)
    driver.close()

    with pytest.raises((DriverGoneError, ValueError)):
        driver.play([Action()])
