"""`lockstep conform --exhaustive`: every edge of small instances, and worlds before a campaign."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.explore.policy import machine_of
from tests.checks.command import lockstep
from tests.checks.harness.driver.files import faulty_driver

NAME = "first come, first served"
(EDGES,) = (world.edges for world in machine_of("spyre").worlds if world.name == NAME)


def report() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path("r.json").read_text(encoding="utf-8"))
    return read


def test_every_edge_of_the_worlds_is_taken_by_a_driver() -> None:
    ran = lockstep("conform", "template", "--exhaustive", "--json", "r.json")
    worlds = report()["worlds"]
    assert (ran.code, ran.err) == (0, "")
    assert worlds["edges"] == worlds["taken"] == EDGES
    assert (worlds["left"], worlds["behind"]) == (0, 0)
    assert report()["verdicts"]["every edge of the worlds"] == "holds"
    paths, steps = worlds["paths"], worlds["steps"]
    says = f"toy 1.0: all {EDGES} edges of 1 world, as the reference has them ({paths} paths, "
    assert f"{says}{steps:,} steps, " in ran.out


def test_with_a_time_the_worlds_come_first_and_then_a_campaign(tmp_path: Path) -> None:
    faulty_driver(tmp_path, "last come first served")
    ran = lockstep("conform", "mine.py", "--time", 3, "--json", "r.json")
    assert ran.code == 1
    found = report()
    assert [finding["kind"] for finding in found["findings"]] == ["divergence"]
    assert "on a path of the worlds" in ran.out
    assert found["worlds"]["taken"] < EDGES
    path = found["findings"][0]["path"]
    assert [label for label in path if label.startswith("arrive")] == path[:2]
    again = lockstep("conform", "mine.py", "--case", found["findings"][0]["file"])
    assert (again.code, "as recorded" in again.out) == (1, True)
    right = lockstep("conform", "template", "--case", found["findings"][0]["file"])
    assert (right.code, "no difference" in right.out) == (0, True)


def test_the_time_ends_the_worlds_with_the_share_that_was_taken() -> None:
    ran = lockstep("conform", "template", "--exhaustive", "--time", 0.02, "--json", "r.json")
    worlds = report()["worlds"]
    assert ran.code == 3
    assert 0 < worlds["taken"] == EDGES - worlds["left"]
    share = f"{worlds['taken']} of {EDGES} edges ({worlds['taken'] / EDGES:.1%}) of 1 world"
    assert share in ran.out
    assert f"  incomplete: {worlds['left']} edges left" in ran.out


def test_with_a_number_of_episodes_there_are_no_worlds() -> None:
    assert lockstep("conform", "template", "--episodes", 2, "--json", "r.json").code == 0
    assert "worlds" not in report()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("none", "--exhaustive"), f"found 'none'; allowed: {NAME!r}: toy 1.0 can do no other"),
        ((NAME,), f"INSTANCE: found {NAME!r}; allowed: together with --exhaustive"),
        (("--exhaustive", "--episodes", 3), "allowed: not together with --episodes"),
        (("--exhaustive", "--case", "a.jsonl"), "allowed: not together with --case"),
        (("--exhaustive", "--set", "max_num_seqs=3"), "a system and keys of a world"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: tuple[str, ...], says: str) -> None:
    ran = lockstep("conform", "template", *arguments)
    assert ran.code == 2
    assert says in ran.err
