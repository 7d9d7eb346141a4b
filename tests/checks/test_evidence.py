"""What is on record: exact counts and verdicts of the default instances, and nothing vacuous."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.evidence import (
    EXPLORED,
    chapter_path,
    recorded,
    recorded_verdicts,
    unwitnessed,
    with_table,
)
from checks.models.instances import DEFAULT
from spec.rules import REGISTRY, Rule
from tests.checks.command import Ran, lockstep

RULES = list(REGISTRY.values())


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Mapping[str, Any], Path]:
    """`lockstep explore` on the default set: how it ended, its report, its counterexamples."""
    place = tmp_path_factory.mktemp("explored")
    ran = lockstep("explore", "--json", place / "report.json", "--out", place)
    report = json.loads((place / "report.json").read_text(encoding="utf-8"))
    return ran, {one["instance"]: one for one in report}, place


def test_the_default_set_is_explored_to_the_recorded_counts_and_verdicts(
    explored: tuple[Ran, Mapping[str, Any], Path],
) -> None:
    ran, report, _ = explored
    assert ran.code == 1
    record = recorded(EXPLORED)
    assert list(report) == list(record) == [instance.name for instance in DEFAULT]
    for name, kept in record.items():
        found = report[name]
        assert found["stopped_by"] is None
        seen = {rule: edges for rule, edges in found["witnesses"].items() if edges}
        now = {key: found[key] for key in kept if key != "witnesses"} | {"witnesses": seen}
        assert now == kept, name


def test_exactly_the_known_rules_are_refuted() -> None:
    refuted = {one.rule.id: one.refuted_in for one in recorded_verdicts(RULES)}
    assert {rule: where for rule, where in refuted.items() if where} == {
        "SPY-VOL-1": ("documented",),
        "SPY-LEN-1": ("odd length, shipped", "odd length, documented", "odd length, exact"),
        "SPY-PAU-6": ("shipped, not interleaved",),
    }


def test_every_counterexample_is_confirmed_by_replay(
    explored: tuple[Ran, Mapping[str, Any], Path],
) -> None:
    files = sorted(explored[2].glob("*.jsonl"))
    assert len(files) == 5
    for file in files:
        ran = lockstep("replay", file)
        assert (ran.code, ran.out.splitlines()[-1]) == (1, "the violation is confirmed")


def test_every_rule_is_judged_and_witnessed_somewhere() -> None:
    assert unwitnessed(RULES, recorded(EXPLORED)) == []


def test_a_rule_whose_witness_is_never_seen_would_be_found() -> None:
    vacuous = Rule(
        id="SPY-NEVER-1",
        sentence="Never applies.",
        source=RULES[0].source,
        kind=RULES[0].kind,
        witness=lambda _ctx, _step: False,
        applies=lambda _config: True,
    )
    assert unwitnessed([*RULES, vacuous], recorded(EXPLORED)) == ["SPY-NEVER-1"]


def test_the_chapter_shows_every_rule_with_the_recorded_verdict() -> None:
    chapter = chapter_path().read_text(encoding="utf-8")
    assert chapter == with_table(chapter, recorded_verdicts(RULES))


def test_the_chapter_speaks_of_every_rule_before_the_table_lists_them() -> None:
    prose = chapter_path().read_text(encoding="utf-8").partition("<!-- rules -->")[0]
    assert [rule.id for rule in RULES if rule.id not in prose] == []
