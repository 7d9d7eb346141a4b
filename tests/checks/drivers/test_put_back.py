"""Defects put back into installed releases are found, most are named, and none is excused."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from checks.explore.policy import machine_of
from checks.harness.driver.protocol import DriverError
from checks.registry import POLICIES
from tests.checks.drivers.put_back.trying import (
    WithDefects,
    defect_table,
    has_prefix,
    names_of,
    with_defects,
)

LEAST = {"sendnn": 50, "vllm-v1": 20}  # defects that can be seen
LEAST_NAMED = 0.8  # of these; which rule breaks first depends on the case that is found
SHRINKING_STEPS = 1_000
TABLES = {driver: defect_table(driver) for driver in LEAST}


@pytest.mark.parametrize("driver", LEAST)
def test_there_are_enough_defects_and_each_says_what_is_wrong(driver: str) -> None:
    table = TABLES[driver]

    assert sum("unseen" not in defect for defect in table.values()) >= LEAST[driver]
    assert all(defect["says"].endswith(".") and defect["tokens"] for defect in table.values())
    assert len({defect["says"] for defect in table.values()}) == len(table)


@pytest.mark.parametrize("driver", LEAST)
def test_the_worlds_that_show_defects_are_worlds_of_the_policy(driver: str) -> None:
    known = {world.name for policy in POLICIES for world in machine_of(policy).worlds}
    assert {row["world"] for row in TABLES[driver].values() if "world" in row} <= known
    assert all("world" in row for row in TABLES[driver].values() if "rare" in row)


@pytest.fixture(scope="module")
def releases() -> Iterator[dict[str, WithDefects]]:
    with ExitStack() as running:
        found = {}
        for driver in LEAST:
            try:
                found[driver] = running.enter_context(with_defects(driver))
            except DriverError:
                continue
        yield found


@pytest.mark.thorough
@pytest.mark.parametrize("driver", LEAST)
def test_nothing_is_found_of_the_release_as_it_is(
    driver: str, releases: dict[str, WithDefects]
) -> None:
    if driver not in releases:
        pytest.skip("not installed")

    hunt = releases[driver].hunt("", seed=1, steps=3_000)

    assert (hunt.finding, dict(hunt.seen.overdue)) == (None, {})


@pytest.mark.thorough
@pytest.mark.parametrize("driver", LEAST)
def test_every_defect_is_found_and_most_are_named(
    driver: str, releases: dict[str, WithDefects]
) -> None:
    if driver not in releases:
        pytest.skip("not installed")

    lost, otherwise, named = [], [], 0
    for name, defect in TABLES[driver].items():
        if "unseen" in defect or "rare" in defect:
            continue
        hunt = releases[driver].hunt(name, seed=1)
        small = hunt.small(SHRINKING_STEPS)
        if small is None:
            lost.append(f"{name}: {hunt.found_by}")
        elif any(has_prefix(small.finding, name) for name in names_of(defect)):
            named += 1
        else:
            otherwise.append(f"{name}: {small.finding.name}, due {names_of(defect)}")

    assert not lost
    assert named >= LEAST_NAMED * (named + len(otherwise)), otherwise


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("driver", "name"),
    [
        (driver, name)
        for driver, table in TABLES.items()
        for name, defect in table.items()
        if "world" in defect
    ],
)
def test_a_defect_is_found_on_the_edges_of_its_world(
    driver: str, name: str, releases: dict[str, WithDefects]
) -> None:
    if driver not in releases:
        pytest.skip("not installed")
    (world,) = releases[driver].worlds(TABLES[driver][name]["world"])

    hunt = releases[driver].hunt_in(name, world)

    assert hunt.finding is not None or hunt.seen.overdue, hunt.found_by
