"""Killed and resumed work gives the same answer as one uninterrupted run."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.cli import contract
from checks.evidence import EXPLORED, LARGE, recorded
from checks.harness.driver.process import DRIVER_FILES
from tests.checks.cli.kills import killed_and_called_again
from tests.checks.command import lockstep
from tests.checks.harness.driver.files import faulty_driver


def _explored(report: str) -> dict[str, Any]:
    """The verdicts of a report in the form of a record."""
    found = json.loads(report)["instances"][0]
    kept = ("about", "states", "transitions", "depth", "violations", "rules")
    witnesses = {rule: edges for rule, edges in found["witnesses"].items() if edges}
    return {name: found[name] for name in kept} | {"witnesses": witnesses}


def _kill_explore(instance: str, kills: int, within_s: tuple[float, float], seed: int) -> int:
    """Kill and restart an exploration until it ends; return the number of kills."""
    ended = killed_and_called_again(
        ["explore", instance, "--resume", "kept", "--json", "-"],
        kills=kills,
        within_s=within_s,
        seed=seed,
    )
    assert (ended.code, _explored(ended.out)) == (
        int(bool(recorded(EXPLORED)[instance]["violations"])),
        recorded(EXPLORED)[instance],
    )
    return ended.kills


def test_explore_killed_and_resumed_ends_as_recorded() -> None:
    assert _kill_explore("exact, four requests", 1, (0.0, 0.2), seed=1)


@pytest.mark.thorough
def test_explore_killed_fifty_times_and_resumed_ends_as_recorded() -> None:
    kills, seed = 0, 0
    while kills < 50:
        Path("kept").unlink(missing_ok=True)
        instance = ("exact, four requests", "shipped, three slots full")[seed % 2]
        kills += _kill_explore(instance, 50 - kills, (0.4, 2.0), seed)
        seed += 1


@pytest.mark.thorough
def test_explore_with_the_compiled_machine_killed_and_resumed_ends_as_recorded() -> None:
    name = "five, shared prefix"
    ended = killed_and_called_again(
        ["explore", "--large", name, "--resume", "kept", "--json", "-"],
        kills=6,
        within_s=(1.0, 3.0),
    )

    assert ended.kills > 1
    assert _explored(ended.out) == recorded(LARGE)[name]


def test_file_that_was_kept_again_and_again_is_named_once() -> None:
    assert contract._saved([Path("kept"), Path("r.json"), Path("kept")]) == "; saved: kept, r.json"


def test_explore_of_a_changed_instance_is_refused() -> None:
    assert lockstep("explore", "exact", "--max-states", 50, "--resume", "kept").code == 3
    changed = ("--set", "max_num_seqs=3")
    ran = lockstep("explore", "exact", *changed, "--max-states", 50, "--resume", "kept")
    assert ran.code == 2
    expected = "lockstep: kept: about.instance.config.max_num_seqs: found 2; allowed: 3\n"
    assert ran.err == expected


# --- campaigns ------------------------------------------------------------------------------------


def _without_times(report: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(report)
    if "worlds" in content:
        del content["worlds"]["seconds"]
    return {
        name: value for name, value in content.items() if not name.startswith(("secon", "steps_p"))
    }


def _kill_campaign(
    command: list[object], kills: int, within_s: tuple[float, float], seed: int = 0
) -> int:
    """Kill and restart a campaign until its report is that of one run; return the kills."""
    ended = killed_and_called_again(
        [*command, "--resume", "kept", "--json", "-"], kills=kills, within_s=within_s, seed=seed
    )
    at_once = lockstep(*command, "--json", "-")
    assert ended.code == at_once.code
    assert _without_times(ended.out) == _without_times(at_once.out)
    return ended.kills


def test_fuzz_killed_and_resumed_ends_as_at_once() -> None:
    assert _kill_campaign(["fuzz", "--target", "reference", "--episodes", 200], 1, (0.0, 0.2))


@pytest.mark.thorough
def test_conform_of_a_faulty_driver_killed_and_resumed_finds_the_same(tmp_path: Path) -> None:
    faulty_driver(tmp_path, "last come first served")
    assert _kill_campaign(["conform", "mine.py", "--episodes", 300], 2, (0.6, 1.2))


@pytest.mark.thorough
def test_worlds_killed_and_resumed_have_the_same_counts() -> None:
    driver = DRIVER_FILES / "template_vllm_v1.py"
    assert _kill_campaign(["conform", driver, "--exhaustive", "slots"], 2, (0.0, 0.5)) > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [["fuzz", "--episodes", 600], ["conform", "template", "--episodes", 300]],
    ids=["fuzz", "conform"],
)
def test_campaign_killed_twenty_times_ends_as_at_once(command: list[object]) -> None:
    kills = seed = 0
    while kills < 20:
        Path("kept").unlink(missing_ok=True)
        kills += _kill_campaign(command, 20 - kills, (1.5, 6.0), seed)
        seed += 1


def test_campaign_goes_on_to_more_episodes_and_stands_when_it_is_done() -> None:
    fuzz = ("fuzz", "--target", "reference", "--resume", "kept", "--json", "-", "--episodes")
    at_once = lockstep("fuzz", "--target", "reference", "--episodes", 9, "--json", "-")
    lockstep(*fuzz, 4)
    for _ in range(2):
        assert _without_times(lockstep(*fuzz, 9).out) == _without_times(at_once.out)


def test_campaign_of_another_seed_system_or_driver_is_refused(tmp_path: Path) -> None:
    mine = faulty_driver(tmp_path, "last come first served")
    conform = ("conform", "mine.py", "--episodes", 3, "--resume", "kept")
    lockstep(*conform)
    assert lockstep(*conform, "--seed", 1).err.startswith("lockstep: kept: about.seed: found 0; ")
    mine.write_text(mine.read_text() + "\n")
    assert lockstep(*conform).err.startswith("lockstep: kept: about.driver[0]: found '")
    assert "about.system" in lockstep("fuzz", "--episodes", 3, "--resume", "kept").err
