"""Twelve schedulers broken in twelve ways: all that shows a finding names the right thing."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from checks.harness.views.viewing import document_of_file
from tests.checks.command import lockstep
from tests.checks.first_sight.broken import TEXT

ROOT = Path(__file__).parents[3]
# Written down before it was measured: the rule, the error or the field that a reader must see; the
# rule of the stale hash says it since, then it was the field "cached"; a budget that is one too
# large breaks one of two rules of the budget first, depending on the case.
NAMES = {
    "leak": "V1-KV-2",
    "budget": "V1-BUD-",
    "stale hash": "V1-KV-17",
    "lost abort": "V1-LIF-3",
    "order": "V1-ORD-2",
    "statistic": "V1-STA-1",
    "crash in abort": "crash: KeyError",
    "free order": "V1-KV-8",
    "cached tokens": "V1-BUD-2",
    "victim": "V1-PRE-2",
    "too many slots": "max_num_seqs",
}
FAST = ("leak",)


def driver(name: str) -> Path:
    path = Path("mine.py")
    path.write_text(TEXT.format(root=str(ROOT), name=name), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in NAMES],
)
def test_text_ci_files_and_page_name_the_same(name: str) -> None:
    due = NAMES[name]
    ran = lockstep(
        *("conform", driver(name), "--episodes", 6 if name in FAST else 25, "--json", "r.json"),
        *("--junit", "j.xml", "--sarif", "s.json", "--format", "github"),
    )

    assert ran.code == 1, ran.err
    assert due in "\n".join(ran.out.splitlines()[:3])
    first = json.loads(Path("r.json").read_text())["findings"][0]
    assert due in first["says"]
    (failure, *_) = ElementTree.parse("j.xml").iter("failure")
    assert failure.get("message") == first["says"]
    annotation = next(line for line in ran.out.splitlines() if line.startswith("::error "))
    assert annotation.startswith("::error file=mine.py,line=")
    assert due in annotation.partition("::error ")[2].replace("%3A", ":").partition("::")[0]
    result = json.loads(Path("s.json").read_text())["runs"][0]["results"][0]
    assert due in result["message"]["text"].splitlines()[0]
    shown = document_of_file(Path(first["file"]))["violation"]
    assert due in f"{shown['rule']} {shown['says']}"
    assert shown["frame"] == first["step"]
    causes = [finding["name"] for finding in json.loads(Path("r.json").read_text())["findings"]]
    assert len(causes) == len(set(causes))


def test_an_error_of_the_driver_is_no_finding() -> None:
    ran = lockstep("conform", driver("crash in the driver"), "--episodes", 2)

    assert ran.code == 2
    assert ran.err.startswith("lockstep: an error of the driver mine, not of its scheduler, in ")
    assert "KeyError: '" in ran.err
    assert not Path("findings").exists()
