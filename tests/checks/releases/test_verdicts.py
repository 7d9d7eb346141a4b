"""Verdicts of campaigns on record, and how `lockstep rules` quotes them."""

from datetime import date
from pathlib import Path

import pytest

from checks.evidence import CONFORMED, evidence_on_releases, recorded, verdicts_on
from checks.explore.policy import machine_of
from checks.harness.campaigns.drawn import decisive_keys, held_to
from checks.registry import RULES, claims_of
from spec.spyre.variants import Queue
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


WORLDS = {
    "day": "2026-11-27",
    "edges": {"small": 900, "other": 1_200, "blocks of 256": 50},
    "behind": {"other": 100},
    "refused": {"blocks of 256": "ValueError: blocks of 16 only"},
    "known": {"TOY-9": 3},
    "broken": {"SPY-LEN-1": 1},
    "rules": ["LIF-1", "SPY-LEN-1"],
}
EDGES = (
    "2,000 of 2,100 edges of 2 worlds, the rest behind known differences, 1 refused at their start"
    " (2026-11-27)"
)


def test_a_rule_is_told_by_release_with_its_bounds() -> None:
    assert verdicts_on("LIF-1", RECORD) == {"toy 1.0": "holds for 3 episodes, 1,200 steps"}
    assert verdicts_on("SPY-LEN-1", RECORD) == {"toy 1.0": "broken in 7 of 1,200 steps, as known"}
    assert verdicts_on("SPY-VOL-3", RECORD) == {}  # not judged


def test_a_rule_is_told_on_the_edges_of_worlds_too() -> None:
    record = {"toy 1.0": RECORD["toy 1.0"] | {"worlds": WORLDS}}
    (held,) = verdicts_on("LIF-1", record).values()
    assert held == f"holds for 3 episodes, 1,200 steps; holds on {EDGES}"
    (broken,) = verdicts_on("SPY-LEN-1", record).values()
    assert broken.endswith(f"as known; broken in 1 step on {EDGES}")


def test_what_was_exhaustive_is_told_and_what_is_not_on_record_is_named() -> None:
    whole = WORLDS | {"behind": {}, "refused": {}, "known": {}}
    record = {"toy 1.0": RECORD["toy 1.0"] | {"worlds": whole}, "toy 0.9": RECORD["toy 1.0"]}
    record["toy 1.0"] |= {"situations": 40, "watched": "10 steps"}
    extent = "3 episodes, 1,200 steps"
    assert evidence_on_releases(record) == {
        "toy 1.0": {
            "exhaustive": "all 2,150 edges of 3 worlds (2026-11-27)",
            "guided": f"{extent}, 40 situations",
            "watched": "10 steps",
        },
        "toy 0.9": {"exhaustive": "not on record", "guided": extent, "watched": "not on record"},
    }


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
    assert entry["drawn"]["admission"] == ["exact"]
    assert 1 <= min(entry["drawn"]["block_size"]) <= max(entry["drawn"]["block_size"]) <= 16
    assert "LIF-3" in entry["rules"]
    assert "BLK-1" not in entry["rules"]  # it asks for blocks, which the toy does not report


def test_worlds_are_recorded_beside_the_campaign_and_neither_renews_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conformed.json"
    path.write_text("{}", encoding="utf-8")
    for module in ("conform", "worlds", "campaigns"):
        monkeypatch.setattr(f"checks.cli.{module}.CONFORMED", path)
    monkeypatch.setattr("checks.cli.conform.recipe_of", lambda *_: "as if it were a release")
    worlds, cases = ("--exhaustive", "--record"), ("--episodes", 3, "--record")

    alone = lockstep("conform", "template", *worlds)
    assert alone.code == 2
    assert "allowed: a release whose campaign is on record" in alone.err
    assert [lockstep("conform", "template", *asked).code for asked in (cases, worlds, cases)] == [
        0,
        0,
        0,
    ]
    entry = recorded(path)["toy 1.0"]
    (world,) = (world for world in machine_of("spyre").worlds if world.config.queue is Queue.FCFS)
    assert entry["worlds"]["edges"] == {world.name: world.edges}
    assert entry["worlds"]["day"] == date.today().isoformat()
    assert entry["episodes"] == 3
    ran = lockstep("conform", "template", "--exhaustive", "--expect", "recorded")
    assert (ran.code, ran.err) == (0, "")


def test_rules_on_record_are_rules_and_were_judged_in_steps() -> None:
    record = recorded(CONFORMED)

    assert any(release.startswith("sendnn-inference 2.6.3 ") for release in record)
    for verdicts in record.values():
        assert verdicts["steps"] > 10_000
        assert set(verdicts["rules"]) <= set(RULES)


def test_drawn_values_on_record_are_those_of_keys_of_the_policy() -> None:
    record = recorded(CONFORMED)
    for policy, release in (("nano-vllm", "nano-vllm-npu 0.0.2"), ("vllm-v1", "vLLM 0.28.0")):
        config = claims_of(policy).config()
        drawn = record[release]["drawn"]
        assert drawn.keys() <= decisive_keys(config).keys()
        assert all(drawn.values())
        assert release in [held.release for held in held_to(config, record)]


def test_rules_quotes_the_releases_in_which_a_rule_held() -> None:
    ran = lockstep("rules", "SPY-VOL-1")

    release = next(
        name for name in recorded(CONFORMED) if name.startswith("sendnn-inference 2.6.3 ")
    )
    told = verdicts_on("SPY-VOL-1", recorded(CONFORMED))[release]
    assert told.startswith("holds for ")
    assert f"released {told}: {release}" in " ".join(ran.out.split())
