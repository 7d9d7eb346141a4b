"""The large instances: explored to the recorded counts and verdicts, which rules show."""

import pytest

from checks.evidence import LARGE, recorded, recorded_verdicts
from checks.explore.exploring import explore_compiled
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.registry import claims_of
from tests.checks.command import lockstep

BY_NAME = {
    instance.name: instance
    for instance in (*machine_of("spyre").large, *machine_of("spyre").thorough)
}
FAST = ("five, documented",)


def is_as_recorded(name: str) -> bool:
    explored = explore_compiled(BY_NAME[name])
    kept = recorded(LARGE)[title_of(BY_NAME[name])]
    counts = {key: getattr(explored.result, key) for key in ("states", "transitions", "depth")}
    found = counts | {"rules": list(explored.rules), "violations": explored.violations}
    return found == {key: kept[key] for key in found}


def test_all_are_on_record_and_have_more_states_than_the_reference_goes_through() -> None:
    record = recorded(LARGE)

    assert list(record) == [
        title_of(instance)
        for instance in (*machine_of("spyre").large, *machine_of("spyre").thorough)
    ]
    assert min(instance["states"] for instance in record.values()) > 20_000


@pytest.mark.parametrize("name", FAST)
def test_they_are_explored_to_the_recorded_counts_and_verdicts(name: str) -> None:
    assert is_as_recorded(name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [instance.name for instance in machine_of("spyre").large if instance.name not in FAST]
)
def test_all_are_explored_to_the_recorded_counts_and_verdicts(name: str) -> None:
    assert is_as_recorded(name)


def test_what_large_instances_show_stands_behind_what_small_ones_do() -> None:
    verdicts = {
        verdict.rule.id: verdict
        for verdict in recorded_verdicts(claims_of("spyre").registry.rules.values())
    }

    volume, finding = verdicts["SPY-VOL-1"], verdicts["SPY-VOL-4"]

    assert volume.refuted_in_large == ("five, documented", "eight, documented")
    assert "; compiled: refuted in: five, documented; eight, documented (" in volume.explored
    assert "compiled" not in finding.explored  # judged on some edges only


@pytest.mark.thorough
def test_one_of_the_hour_is_explored_to_the_recorded_counts_and_verdicts() -> None:
    assert is_as_recorded("seven, evictions between hits")


def test_the_hour_is_offered_with_the_minute() -> None:
    minute, hour = (
        lockstep("explore", "--large", *options, "--list").out for options in ([], ["--thorough"])
    )

    assert all(
        instance.name in minute and instance.name in hour for instance in machine_of("spyre").large
    )
    assert all(
        instance.name not in minute and instance.name in hour
        for instance in machine_of("spyre").thorough
    )
    assert lockstep("explore", "--thorough", "--list").code == 2


def test_what_does_not_go_with_them_is_refused() -> None:
    for options in (["--using", "reference"], ["--record", "--max-states", "9"]):
        ran = lockstep("explore", "--large", "five, documented", *options)

        assert ran.code == 2
        assert options[0] in ran.err
    assert "five, preemption" in lockstep("explore", "--large", "--list").out
