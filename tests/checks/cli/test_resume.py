"""Work that is killed, however and whenever, and resumed ends with the answer of one run."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.evidence import EXPLORED, recorded
from tests.checks.cli.kills import killed_and_called_again
from tests.checks.command import lockstep


def _explored(report: str) -> dict[str, Any]:
    """What a report of one instance says, as the record has it."""
    found = json.loads(report)["instances"][0]
    kept = ("about", "states", "transitions", "depth", "violations", "rules")
    witnesses = {rule: edges for rule, edges in found["witnesses"].items() if edges}
    return {name: found[name] for name in kept} | {"witnesses": witnesses}


def _kill_explore(instance: str, kills: int, within_s: tuple[float, float], seed: int) -> int:
    """Returns how often it was killed until it ended."""
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
    assert _kill_explore("shipped, three slots full", 2, (1.0, 2.0), seed=1)


@pytest.mark.thorough
def test_explore_killed_fifty_times_and_resumed_ends_as_recorded() -> None:
    kills, seed = 0, 0
    while kills < 50:
        Path("kept").unlink(missing_ok=True)
        instance = ("exact, four requests", "documented")[seed % 2]
        kills += _kill_explore(instance, 50 - kills, (1.0, 12.0), seed)
        seed += 1


def test_explore_of_a_changed_instance_is_refused() -> None:
    assert lockstep("explore", "exact", "--max-states", 50, "--resume", "kept").code == 3
    changed = ("--set", "max_num_seqs=3")
    ran = lockstep("explore", "exact", *changed, "--max-states", 50, "--resume", "kept")
    assert ran.code == 2
    expected = "lockstep: kept: about.instance.config.max_num_seqs: found 2; allowed: 3\n"
    assert ran.err == expected
