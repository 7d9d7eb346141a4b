"""Drivers as processes: the template, and copies of it that misbehave."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from checks.ending import OutOfTimeError
from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.driver.client import Driver
from checks.harness.driver.process import DriverGoneError
from checks.harness.driver.protocol import DriverError
from checks.harness.driver.system import DriverCommand, DriverSystem
from checks.harness.finding import Kind
from checks.harness.system import Action, System
from checks.releases.trial import trial_cases
from tests.checks.harness.cases import There
from tests.checks.harness.driver.files import TEMPLATE, faulty_driver
from tests.recorded.scenes import asks
from tests.refusals import refusal


def new_driver(path: Path) -> Driver:
    return Driver([sys.executable, str(path)])


def opened(path: Path) -> DriverSystem:
    return DriverCommand((sys.executable, str(path))).open()


def trial(system: System) -> Case:
    return next(trial_cases(Plan(There(system))))


def test_a_driver_introduces_itself_and_takes_steps() -> None:
    with closing(opened(TEMPLATE)) as system:
        config = trial(system).config
    with closing(new_driver(TEMPLATE)) as driver:
        first, second = "a", "b"
        driver.start(Case(config, (asks(first, 20, 5), asks(second, 30, 5))))
        played = driver.play([Action((first, second)), Action(abort=(second,)), Action()])

    assert (driver.hello.name, driver.hello.release) == ("template", "toy 1.0")
    assert played.failure is None
    assert [record["kind"] for record in played.records] == ["prefill", "decode", "decode"]
    assert [record["waiting"] for record in played.records] == [[second], [], []]


def test_an_episode_can_begin_again_at_any_time() -> None:
    with closing(opened(TEMPLATE)) as system:
        case = trial(system)
        episodes = [compare(system, case, Terms()) for _ in range(2)]

    assert episodes[0].steps == episodes[1].steps > 10
    assert episodes[0].finding is episodes[1].finding is None


def test_a_driver_that_is_not_there_is_refused() -> None:
    assert refusal(DriverError, Driver, ["./no-such-driver"]) == (
        "cannot start ./no-such-driver: no such file or directory"
    )


def test_a_driver_that_ends_at_once_is_refused_with_its_last_words(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import sys\nsys.exit('no such module: torch')\n", encoding="utf-8")

    with pytest.raises(DriverError, match=r"it ended with code 1\nno such module: torch"):
        new_driver(path)


def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="driver's version: found 2; allowed: 1"):
        new_driver(faulty_driver(tmp_path, "speaks version 2"))


def test_a_driver_that_does_not_answer_is_abandoned(tmp_path: Path) -> None:
    command = sys.executable, str(faulty_driver(tmp_path, "says nothing"))

    with pytest.raises(OutOfTimeError, match="did not answer within 0 s after its start; --start-"):
        Driver(command, start_seconds=0.2)


def test_a_driver_that_dies_is_a_finding_in_the_step_in_which_it_did(tmp_path: Path) -> None:
    with closing(opened(faulty_driver(tmp_path, "dies"))) as system:
        case = trial(system)
        episode, again = (compare(system, case, Terms()) for _ in range(2))

    first = min(request.arrival for request in case.requests)
    assert episode.finding is not None
    assert (episode.finding.kind, episode.finding.step) == (Kind.CRASH, first)
    assert episode.finding.says == "DriverGone: it ended with code 1\nout of memory"
    assert again.finding == episode.finding  # the campaign goes on with a new process


def test_a_driver_that_dies_on_the_way_is_played_again_step_by_step(tmp_path: Path) -> None:
    with closing(opened(TEMPLATE)) as system:
        case = trial(system)
        steps = compare(system, case, Terms()).steps
    with closing(opened(faulty_driver(tmp_path, "dies later"))) as system:
        episode = compare(system, case, Terms())

    assert episode.finding is not None
    assert (episode.finding.kind, episode.finding.cause) == (Kind.CRASH, "DriverGone")
    assert 1 < episode.finding.step == episode.steps < steps


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("talks nonsense", "driver's line: found 'nonsense'; allowed: a JSON object"),
        ("forgets a field", "driver's record of step 0, outputs: found nothing; allowed: a value"),
    ],
)
def test_a_driver_that_does_not_keep_to_the_protocol_is_refused(
    tmp_path: Path, fault: str, says: str
) -> None:
    system = opened(faulty_driver(tmp_path, fault))
    with closing(system), pytest.raises(DriverError) as refused:
        compare(system, trial(system), Terms())

    assert says in str(refused.value)


def test_a_driver_that_has_gone_says_so_when_it_is_asked() -> None:
    driver = new_driver(TEMPLATE)
    driver.close()

    with pytest.raises((DriverGoneError, ValueError)):
        driver.play([Action()])
