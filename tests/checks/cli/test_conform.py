"""`lockstep conform` of the driver template and of faulty copies."""

import json
from pathlib import Path

from tests.checks.cli.test_fuzz import FINDING_KEYS, KEYS
from tests.checks.command import lockstep
from tests.checks.harness.driver.files import faulty_driver

RECORDED = Path(__file__).parents[2] / "recorded"


def test_the_template_does_as_the_reference_and_the_bounds_are_named() -> None:
    ran = lockstep("conform", "template", "--episodes", 10, "--json", "r.json")

    report = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert (ran.code, ran.err) == (0, "")
    absent = "batch, blocks, computed, left_padding, reserved, tkv"
    assert f"not compared: events, refusal, {absent}" in ran.out
    assert "not judged, for the driver does not report `blocks`: BLK-1, " in ran.out
    assert "never happened: prefix_hit; preempt; pause" in ran.out
    steps = report["steps"]
    assert (
        f"template (toy 1.0): no unknown difference in 10 episodes, {steps:,} steps compared"
        f" (exact without {absent}, seed 0), {len(report['rules'])} rules judged in {steps:,} of"
        " them; "
    ) in ran.out
    assert steps > 300
    assert report["findings"] == []
    judged = {"judged", "on_device", "rules", "not_judged", "missed", "excused"}
    assert report.keys() >= KEYS | judged | {"driver", "release"}
    assert "LIF-3" in report["rules"]


def test_a_difference_is_made_small_filed_and_met_again(tmp_path: Path) -> None:
    mine = faulty_driver(tmp_path, "last come first served")

    ran = lockstep("conform", "mine.py", "--episodes", 5, "--json", "r.json")

    finding = json.loads(Path("r.json").read_text(encoding="utf-8"))["findings"][0]
    assert ran.code == 1
    assert mine.exists()
    assert (finding["kind"], finding["step"]) == ("divergence", 0)
    assert finding["times"] > 1
    assert finding["cause"] == "scheduled"
    assert finding.keys() >= FINDING_KEYS | {"says", "rules"}
    assert LAST_COME in ran.out
    assert f"again: lockstep conform mine.py --case {finding['file']}" in ran.out

    again = lockstep("conform", "mine.py", "--case", finding["file"])
    recorded = lockstep("conform", "mine.py", "--case", finding["file"], "--recorded")
    right = lockstep("conform", "template", "--case", finding["file"])

    assert (again.code, recorded.code, right.code) == (1, 1, 0)
    as_recorded = [
        lockstep("conform", driver, "--case", finding["file"], "--expect", "recorded").code
        for driver in ("mine.py", "template")
    ]
    assert as_recorded == [0, 1]
    assert LAST_COME in again.out
    assert LAST_COME in recorded.out
    assert again.out.endswith("as recorded\n")
    assert "toy 1.0: no difference in" in right.out
    assert "the file says: divergence in step 0: scheduled\n" in right.out


LAST_COME = """\
SPY-PRI-5 is broken: Requests are admitted in the order of their arrival.
  found in step 0: 1 admitted before 0
  release: toy 1.0
"""


def test_a_recording_of_a_known_difference_holds_without_its_driver() -> None:
    path = RECORDED / "sendnn-model_length_assertion.jsonl"

    ran = lockstep("conform", "sendnn", "--case", path, "--recorded")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "SND-3 after 4 equal steps, as known\nas recorded\n"


def test_a_driver_that_talks_nonsense_ends_the_campaign_with_its_words(tmp_path: Path) -> None:
    faulty_driver(tmp_path, "talks nonsense")

    ran = lockstep("conform", "mine.py", "--episodes", 1)

    assert ran.code == 2
    assert "driver's line: found 'nonsense'; allowed: a JSON object" in ran.err


def test_a_driver_that_starts_no_second_time_ends_the_campaign_with_its_words(
    tmp_path: Path,
) -> None:
    """Each core starts its own driver; a failed start is reported like that of the first driver."""
    path = faulty_driver(tmp_path, "starts once")

    ran = lockstep("conform", "mine.py", "--episodes", 4)

    assert ran.code == 2
    assert ran.err.splitlines() == [
        f"lockstep: {path} does not run as a driver: it ended with code 1",
        "not a second time",
    ]
