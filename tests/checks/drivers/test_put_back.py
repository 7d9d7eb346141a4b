"""Defects put back into installed releases are found, named, and excused by no known difference."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from checks.explore.policy import machine_of
from checks.harness.driver.protocol import DriverError
from checks.registry import POLICIES
from tests.checks.drivers.put_back.trying import WithDefects, defect_table, has_prefix, with_defects

LEAST = {"sendnn": 50, "vllm-v1": 20}  # defects that can be seen
LEAST_NAMED = 0.9  # of these
SHRINKING_STEPS = 1_000
TABLES = {driver: defect_table(driver) for driver in LEAST}
EACH = [
    pytest.param(driver, name, id=f"{driver}, {name}")
    for driver, table in TABLES.items()
    for name, defect in table.items()
    if "unseen" not in defect
]


@pytest.mark.parametrize("driver", LEAST)
def test_there_are_enough_defects_and_each_says_what_is_wrong(driver: str) -> None:
    table = TABLES[driver]

    assert sum("unseen" not in defect for defect in table.values()) >= LEAST[driver]
    assert all(defect["says"].endswith(".") and defect["tokens"] for defect in table.values())
    assert len({defect["says"] for defect in table.values()}) == len(table)


@pytest.mark.parametrize("driver", LEAST)
def test_most_reports_name_first_what_a_reader_must_know(driver: str) -> None:
    named = ["instead" not in row for row in TABLES[driver].values() if "unseen" not in row]

    assert sum(named) >= LEAST_NAMED * len(named)


@pytest.mark.parametrize("driver", LEAST)
def test_the_worlds_that_show_defects_are_worlds_of_the_policy(driver: str) -> None:
    known = {world.name for policy in POLICIES for world in machine_of(policy).worlds}
    assert {row["world"] for row in TABLES[driver].values() if "world" in row} <= known


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
@pytest.mark.parametrize(("driver", "name"), EACH)
def test_a_defect_is_found_and_named(
    driver: str, name: str, releases: dict[str, WithDefects]
) -> None:
    if driver not in releases:
        pytest.skip("not installed")
    defect = TABLES[driver][name]

    hunt = releases[driver].hunt(name, seed=1)
    small = hunt.small(SHRINKING_STEPS)

    assert small is not None, hunt.found_by
    assert has_prefix(small.finding, defect.get("instead", defect["names"])), small.finding


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
