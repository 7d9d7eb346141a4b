"""`--expect`: exit code 0 if every verdict is the expected verdict, else 1."""

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from checks import evidence
from checks.cli.expect import UNDECIDED, Expected
from checks.evidence import recorded, write_record
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.registry import DEFAULT
from tests.checks.command import Ran, lockstep
from tests.checks.harness.driver.files import faulty_driver

EXPECTED = Expected("a report", {"a": "holds", "b": "refuted", "c": "holds", "d": UNDECIDED})


def everything(_name: str) -> bool:
    return True


def test_refuted_as_expected_is_as_expected() -> None:
    compared = EXPECTED.compared({"a": "holds", "b": "refuted", "c": "holds"}, everything)
    assert (compared.equal, compared.differences, compared.exit_code) == (3, [], 0)


def test_each_verdict_that_changed_is_named_in_either_direction() -> None:
    compared = EXPECTED.compared({"a": "refuted", "b": "holds", "e": "holds"}, everything)
    assert compared.exit_code == 1
    assert [str(difference) for difference in compared.differences] == [
        "a: refuted, expected holds",
        "b: holds, expected refuted",
        "c: not judged, expected holds",
        "e: holds, expected no verdict",
    ]


def test_what_is_not_asked_for_is_not_missed_and_counted() -> None:
    compared = EXPECTED.compared({"a": "holds"}, lambda name: name == "a")
    assert (compared.equal, compared.not_compared, compared.exit_code) == (1, 3, 0)


def test_no_verdict_is_no_success() -> None:
    compared = EXPECTED.compared({"a": "holds", "b": UNDECIDED}, lambda name: name in "ab")
    assert (compared.undecided, compared.exit_code) == (["b"], 3)
    wrong = EXPECTED.compared({"a": "refuted", "b": UNDECIDED}, lambda name: name in "ab")
    assert wrong.exit_code == 1


def test_what_was_undecided_in_the_report_is_not_compared() -> None:
    compared = EXPECTED.compared({"d": "refuted"}, lambda name: name == "d")
    assert (compared.differences, compared.not_compared, compared.exit_code) == ([], 4, 3)


# --- explore --------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record that a test may change."""
    path = tmp_path / "explored.json"
    path.write_bytes(evidence.EXPLORED.read_bytes())
    monkeypatch.setattr("checks.cli.explore_verdicts.EXPLORED", path)
    return path


def change(path: Path, **violations: dict[str, Any]) -> None:
    content = json.loads(path.read_text())
    for instance, found in violations.items():
        content[instance]["violations"] = found
    path.write_text(json.dumps(content))


def explored(*options: object) -> Ran:
    return lockstep("explore", "documented", "dialogue", *options)


def test_known_refutations_are_green(record: Path) -> None:
    assert explored().code == 1
    ran = explored("--expect", "recorded", "--json", "r.json")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("on record: ")
    report = json.loads(Path("r.json").read_text())
    assert (report["outcome"], report["expected"]["differences"]) == ("holds", [])


def test_verdict_that_changed_on_purpose_is_red_in_both_directions(record: Path) -> None:
    change(record, documented={}, dialogue={"SPY-VOL-1": {"found": "", "actions": []}})
    ran = explored("--expect", "recorded")
    assert ran.code == 1
    assert [line for line in ran.out.splitlines() if line.startswith("not as")] == snapshot(
        [
            "not as expected: documented: SPY-VOL-1: refuted, expected holds",
            "not as expected: dialogue: SPY-VOL-1: not seen, expected refuted",
        ]
    )


def test_a_removed_instance_is_missed_when_all_are_explored(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = recorded(record)
    write_record({name: content[name] for name in ("documented", "dialogue")}, record)
    whole = {title_of(instance): instance for instance in machine_of(DEFAULT).instances}

    def offer(*names: str) -> None:
        offered = [whole[name] for name in names]
        monkeypatch.setattr("checks.cli.explore.offered", lambda *_policies, **_large: offered)

    offer("documented", "dialogue")
    assert lockstep("explore", "--expect", "recorded").code == 0
    assert lockstep("explore", "documented", "--expect", "recorded").code == 0
    offer("documented")
    gone = lockstep("explore", "--expect", "recorded")
    assert gone.code == 1
    assert "not as expected: dialogue: SPY-VOL-1: not judged, expected not seen" in gone.out


def test_report_of_an_earlier_run_is_a_baseline() -> None:
    assert explored("--json", "earlier.json").code == 1
    only_one = lockstep("explore", "dialogue", "--expect", "earlier.json")
    assert only_one.code == 0
    assert "not compared" in only_one.out


def test_bound_that_leaves_verdicts_open_is_incomplete() -> None:
    assert explored("--expect", "recorded", "--max-states", 20).code == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--expect", "missing.json"), "cannot read missing.json: no such file or directory"),
        (("--expect", "other.json"), "other.json: command: found 'rules'; allowed: 'explore'"),
        (
            ("--expect", "dialogue.json"),
            "--expect dialogue.json: found 'documented'; allowed: an instance of the report",
        ),
        (
            ("--expect", "recorded", "--set", "max_num_seqs=4"),
            "--expect recorded: found 'documented'; allowed: default instances as they are",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    options: tuple[str, ...], says: str
) -> None:
    lockstep("explore", "dialogue", "--json", "dialogue.json")
    lockstep("rules", "SPY-VOL-1", "--json", "other.json")
    ran = explored(*options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"lockstep: {says}")


# --- campaigns ------------------------------------------------------------------------------------


def test_campaign_with_known_findings_is_green_and_red_when_one_is_gone_or_new(
    tmp_path: Path,
) -> None:
    faulty_driver(tmp_path, "last come first served")
    conform = ("--episodes", 2, "--json", "r.json")
    assert lockstep("conform", "mine.py", *conform).code == 1
    Path("r.json").rename("faulty.json")
    assert lockstep("conform", "mine.py", *conform, "--expect", "faulty.json").code == 0
    assert lockstep("conform", "template", *conform).code == 0
    Path("r.json").rename("right.json")

    gone = lockstep("conform", "template", *conform, "--expect", "faulty.json")
    new = lockstep("conform", "mine.py", *conform, "--expect", "right.json")

    assert (gone.code, new.code) == (1, 1)
    assert "not as expected: SPY-PRI-5: holds, expected refuted\n" in gone.out
    assert "not as expected: SPY-PRI-5: refuted, expected holds\n" in new.out


def test_campaign_of_other_episodes_or_systems_is_not_comparable() -> None:
    lockstep("fuzz", "--target", "reference", "--episodes", 3, "--json", "r.json")
    fuzz = ("fuzz", "--expect", "r.json", "--target")
    assert lockstep(*fuzz, "reference", "--episodes", 3, "--json", "again.json").code == 0

    other = lockstep(*fuzz, "reference", "--episodes", 4)
    engine = lockstep(*fuzz, "engine", "--episodes", 3)
    recorded = lockstep("fuzz", "--expect", "recorded", "--episodes", 3)

    assert [run.code for run in (other, engine, recorded)] == [2, 2, 2]
    assert other.err == (
        "lockstep: --expect r.json, episodes: found 4; allowed: 3, as there; other episodes are not"
        " comparable\n"
    )
    assert "--expect r.json, release: found 'engine'; allowed: reference, as there" in engine.err
    assert "--expect recorded: found 'engine'; allowed: a report, or one of nano" in recorded.err
