"""JUnit, SARIF and annotations: every rule is a test case, and the files keep their schemas."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from checks.cli.ci import Case, github_lines, write_junit, write_sarif
from tests.checks.command import lockstep
from tests.checks.reports import SCHEMAS, validated

SARIF = Path(__file__).with_name("sarif-schema-2.1.0.json")  # as OASIS publishes it
STRANGE = Case(
    suite="a < b",
    name="R-1",
    status="failed",
    says="100 % of & 'these'",
    found="\x00 and ::\n, <",
    file="a,b:c.jsonl",
)


def judged() -> list[Any]:
    """A report with refuted rules, rules that hold, and rules that do not apply."""
    lockstep("explore", "documented", "--junit", "j.xml", "--sarif", "s.json")
    log = json.loads(Path("s.json").read_text())
    return list(log["runs"][0]["results"])


def test_junit_file_opens_in_another_program() -> None:
    judged()
    page = Path("page.html")
    reader = Path(sys.executable).with_name("junit2html")
    subprocess.run([reader, "j.xml", page], check=True, capture_output=True)
    text = page.read_text()
    assert "SPY-VOL-1" in text
    assert "batch 2 x tkv 4 = 8, limit 6" in text
    summary = subprocess.run(
        [reader, "--summary-matrix", "j.xml"], capture_output=True, text=True, check=True
    )
    assert "1" in summary.stdout


def test_sarif_log_is_as_its_standard_has_it_and_has_every_rule() -> None:
    (failed,) = judged()  # what holds is no result: code scanning shows each as an alert
    log = json.loads(Path("s.json").read_text())
    Draft7Validator(json.loads(SARIF.read_text())).validate(log)
    rules = {rule["id"]: rule for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert set(rules) >= {"LIF-1", "SPY-VOL-1"}
    assert "More: lockstep rules SPY-VOL-1" in rules["SPY-VOL-1"]["help"]["text"]
    place = failed["locations"][0]["physicalLocation"]
    assert failed["ruleId"] == "SPY-VOL-1"
    assert failed["partialFingerprints"].keys() == {"lockstep/v1"}
    assert place["region"] == {"startLine": 1}
    assert place["artifactLocation"]["uri"] == "counterexamples/documented-spy-vol-1.jsonl"


def test_annotation_names_the_rule_and_the_file() -> None:
    ran = lockstep("explore", "documented", "--format", "github")
    assert ran.code == 1
    (line,) = [line for line in ran.out.splitlines() if line.startswith("::")]
    assert line.startswith(
        "::error file=counterexamples/documented-spy-vol-1.jsonl,title=SPY-VOL-1 in documented::"
    )


def test_what_is_as_expected_passes() -> None:
    options = ("--expect", "recorded", "--format", "github", "--junit", "j.xml")
    ran = lockstep("explore", "documented", *options)
    assert (ran.code, "::error" in ran.out) == (0, False)
    assert 'failures="0"' in Path("j.xml").read_text()


def test_what_cannot_stand_in_a_file_as_it_is_is_escaped() -> None:
    write_junit(Path("j.xml"), "explore", [STRANGE])
    write_sarif(Path("s.json"), "explore", 1, [STRANGE])
    assert "\\x00 and ::" in Path("j.xml").read_text()
    Draft7Validator(json.loads(SARIF.read_text())).validate(json.loads(Path("s.json").read_text()))
    assert list(github_lines([STRANGE])) == [
        "::error file=a%2Cb%3Ac.jsonl,title=R-1 in a < b::100 %25 of & 'these'%0A\x00 and ::%0A, <"
        "%0Awritten: a,b:c.jsonl"
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["fuzz", "--target", "reference", "--judge", "--episodes", 2],
        ["conform", "template", "--episodes", 2],
        ["prove", "PRV-PAD-1"],
        ["rules", "SPY-VOL"],
    ],
    ids=lambda schema: str(schema[0]),
)
def test_every_command_with_verdicts_writes_the_three(command: list[object]) -> None:
    ran = lockstep(*command, "--junit", "j.xml", "--sarif", "s.json", "--format", "github")
    assert ran.code in (0, 1)
    Draft7Validator(json.loads(SARIF.read_text())).validate(json.loads(Path("s.json").read_text()))
    assert Path("j.xml").read_text().count("<testcase ") > 0
    for rule in json.loads(Path("s.json").read_text())["runs"][0]["tool"]["driver"]["rules"]:
        # Source: GitHub, "SARIF support for code scanning", required properties
        described = [rule[key]["text"] for key in ("shortDescription", "fullDescription", "help")]
        assert all(described), rule["id"]
        assert max(map(len, described[:2])) <= 1_024


def test_there_is_a_schema_for_every_report_and_a_report_that_is_none_is_noticed() -> None:
    names = {"bisect", "conform", "explore", "fuzz", "mutants", "prove", "replay", "rules", "run"}
    assert {path.stem for path in SCHEMAS.glob("*.json")} == names | {
        *("calibrate", "check", "simulate", "survey", "view")
    }
    lockstep("rules", "SPY-VOL-1", "--json", "r.json")
    report = json.loads(Path("r.json").read_text())
    with pytest.raises(AssertionError, match="'new' was unexpected"):
        validated(report | {"new": 1})
    with pytest.raises(AssertionError, match="outcome: 'good' is not one of"):
        validated(report | {"outcome": "good"})
