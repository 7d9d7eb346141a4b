"""The small cases of the survey that the chapter tells of, judged again from what releases told."""

import re
from pathlib import Path

import pytest
from checks.conformance.recording import judged_again, judged_as_json, read_recording

import spec

SURVEY = Path(__file__).parents[2] / "recorded" / "survey"
FILES = sorted(SURVEY.glob("*.jsonl"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_release_breaks_what_it_broke(path: Path) -> None:
    recording = read_recording(path)

    judged = judged_again(recording)

    assert recording.alone
    assert judged_as_json(judged) == recording.outcome
    assert judged.findings


def test_there_is_a_case_for_each_way_in_which_a_release_ends_or_hangs() -> None:
    causes = {one["cause"] for path in FILES for one in read_recording(path).outcome["broken"]}

    assert {
        "AssertionError execute_model",
        "AssertionError _prepare_decode",
        "AssertionError _can_decode_all_requests",
        "somebody waits for ever",
    } <= causes


def test_every_case_is_told_of_in_the_chapter_and_every_file_that_it_names_is_there() -> None:
    chapter = (Path(spec.__file__).parent / "chapters" / "releases.md").read_text(encoding="utf-8")

    assert set(re.findall(r"`(sendnn-[a-z0-9-]+)`", chapter)) == {path.stem for path in FILES}
