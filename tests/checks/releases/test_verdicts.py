"""Verdicts of campaigns on record, and how `lockstep rules` quotes them."""

from pathlib import Path

import pytest

from checks.evidence import CONFORMED, recorded, verdicts_on
from checks.registry import RULES
from tests.checks.command import lockstep

RECORD = {
    "toy 1.0": {
        "seed": 0,
        "episodes": 3,
        "steps": 1_200,
        "rules": ["LIF-1", "SPY-LEN-1"],
        "broken": {"SPY-LEN-1": 7},
        "known": {},
    }
}


def test_a_rule_is_told_by_release_with_its_bounds() -> None:
    assert verdicts_on("LIF-1", RECORD) == {"toy 1.0": "holds for 3 episodes, 1,200 steps"}
    assert verdicts_on("SPY-LEN-1", RECORD) == {"toy 1.0": "broken in 7 of 1,200 steps, as known"}
    assert verdicts_on("SPY-VOL-3", RECORD) == {}  # not judged


def test_episodes_that_a_known_difference_ended_are_told() -> None:
    known = {"SND-1": 2, "SND-2": 0, "SND-3": 1}

    (told,) = verdicts_on("LIF-1", {"toy 1.0": RECORD["toy 1.0"] | {"known": known}}).values()

    assert told.endswith("1,200 steps, of which SND-1, SND-3 ended 3 before their end")


def test_a_campaign_renews_the_entry_of_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conformed.json"
    monkeypatch.setattr("checks.cli.conform.CONFORMED", path)
    monkeypatch.setattr("checks.cli.conform.recipe_of", lambda *_: "as if it were a release")

    ran = lockstep("conform", "template", "--episodes", 3, "--record")

    entry = recorded(path)["toy 1.0"]
    assert ran.code == 0
    assert entry["episodes"] == 3
    assert entry["steps"] > 100
    assert "LIF-3" in entry["rules"]
    assert "BLK-1" not in entry["rules"]  # it asks for blocks, which the toy does not report


def test_rules_on_record_are_rules_and_were_judged_in_steps() -> None:
    record = recorded(CONFORMED)

    assert any(release.startswith("sendnn-inference 2.6.3 ") for release in record)
    for verdicts in record.values():
        assert verdicts["steps"] > 10_000
        assert set(verdicts["rules"]) <= set(RULES)


def test_rules_quotes_the_releases_in_which_a_rule_held() -> None:
    ran = lockstep("rules", "SPY-VOL-1")

    release = next(
        name for name in recorded(CONFORMED) if name.startswith("sendnn-inference 2.6.3 ")
    )
    told = verdicts_on("SPY-VOL-1", recorded(CONFORMED))[release]
    assert told.startswith("holds for ")
    assert f"released {told}: {release}" in " ".join(ran.out.split())
