"""Recordings of released schedulers are compared with the reference, without the release."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import spec
from checks.harness.campaigns.recording import (
    Recording,
    RecordingError,
    outcome_as_json,
    read_recording,
    record,
)
from checks.harness.comparison import compare
from checks.harness.finding import FOR_EVER, Episode, Kind
from checks.harness.policy import evidence_of
from checks.harness.system import Json
from checks.registry import POLICIES
from tests.checks.policies.spyre.driver import driver
from tests.recorded.scenes import FILE_NAMES, SCENES
from tests.refusals import refusal

RECORDED = Path(__file__).parents[3] / "recorded"
FILES = sorted(RECORDED.glob("*.jsonl"))
SURVEYED = sorted((RECORDED / "survey").glob("*.jsonl"))


def again(recording: Recording) -> Episode:
    return compare(recording, recording.case, recording.terms)


@pytest.mark.parametrize("path", [*FILES, *SURVEYED], ids=lambda path: path.stem)
def test_a_recorded_release_ends_as_recorded(path: Path) -> None:
    recording, is_surveyed = read_recording(path), path in SURVEYED

    episode = again(recording)

    assert outcome_as_json(episode, recording.terms) == recording.outcome
    assert recording.terms.rules_only == is_surveyed == bool(episode.findings)


def test_there_is_a_case_for_each_way_in_which_a_release_ends_or_hangs() -> None:
    causes = {
        violation["cause"]
        for path in SURVEYED
        for violation in read_recording(path).outcome["broken"]
    }

    assert {
        "AssertionError execute_model",
        "AssertionError _prepare_decode",
        "AssertionError _can_decode_all_requests",
        "a request waits for ever",
    } <= causes


def test_a_cause_of_an_earlier_recording_is_read_as_it_is_called_now() -> None:
    path = next(path for path in SURVEYED if path.stem == "sendnn-broken-rule-spy-pri-4-9b02cfcc")

    assert "somebody waits for ever" in path.read_text(encoding="utf-8")
    assert read_recording(path).outcome["broken"][-1]["cause"] == FOR_EVER


def test_the_chapter_names_every_case_of_the_survey_and_no_other() -> None:
    chapter = (Path(spec.__file__).parent / "chapters" / "releases.md").read_text(encoding="utf-8")

    assert set(re.findall(r"`(sendnn-[a-z0-9-]+)`", chapter)) == {path.stem for path in SURVEYED}


def test_every_scene_is_recorded_and_ends_with_its_difference() -> None:
    assert {path.name for path in FILES} == set(FILE_NAMES.values())
    for name, scene in SCENES.items():
        recording = read_recording(RECORDED / FILE_NAMES[name])
        assert recording.case == scene.case
        assert recording.outcome["known"] == scene.known
        assert recording.command == f"python -m tests.recorded.make {scene.driver}"


def test_every_known_difference_has_a_recording() -> None:
    met = {read_recording(path).outcome["known"] for path in FILES}

    known = {row.id for policy in POLICIES for row in evidence_of(policy).known_differences}
    assert known <= met


def altered(tmp_path: Path, scene: str, change: Callable[[list[Json]], None]) -> Recording:
    """The recording of a scene, changed line by line."""
    text = (RECORDED / FILE_NAMES[scene]).read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    change(lines)
    path = tmp_path / "altered.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return read_recording(path)


def leak_one_block_more(lines: list[Json]) -> None:
    lines[2]["record"]["before"]["blocks"]["reserved"] += 1


def count_less_than_the_chunk(lines: list[Json]) -> None:
    record = next(
        line["record"]
        for line in lines
        if "others" in line.get("record", {}) and line["record"]["others"]
    )
    record["others"][0]["computed"] = 1


def free_in_another_order(lines: list[Json]) -> None:
    lines[2]["record"]["free_list"].reverse()


def assert_elsewhere(lines: list[Json]) -> None:
    failure = next(line["failure"] for line in lines if "failure" in line)
    failure["at"] = "scheduler.py:1 update_from_output: assert False"


@pytest.mark.parametrize(
    ("scene", "change", "kind"),
    [
        ("leaked_reservation", leak_one_block_more, Kind.DIVERGENCE),
        ("counted_ahead", count_less_than_the_chunk, Kind.DIVERGENCE),
        ("model_length_assertion", assert_elsewhere, Kind.CRASH),
        ("freed_to_the_end", free_in_another_order, Kind.DIVERGENCE),
    ],
)
def test_what_only_looks_like_a_known_difference_is_a_finding(
    tmp_path: Path, scene: str, change: Callable[[list[Json]], None], kind: Kind
) -> None:
    episode = again(altered(tmp_path, scene, change))

    assert episode.known is None
    assert episode.finding is not None
    assert episode.finding.kind is kind


def test_another_release_has_no_part_in_what_is_known_of_this_one(tmp_path: Path) -> None:
    def newer(lines: list[Json]) -> None:
        lines[0]["release"] = "sendnn-inference 2.7.0 on vLLM 0.28.0"

    episode = again(altered(tmp_path, "freed_to_the_end", newer))

    assert episode.known is None
    assert episode.finding is not None
    assert episode.finding.cause == "after.pool.free"


def test_a_recording_of_other_actions_is_refused(tmp_path: Path) -> None:
    def late(lines: list[Json]) -> None:
        lines[1]["action"] = {}

    with pytest.raises(RecordingError, match=r"altered.jsonl, line 2: action: found \{\}"):
        again(altered(tmp_path, "pausing", late))


@pytest.mark.parametrize("wrong", [[[1], [1, 2]], [[1.5]], ["x"], None])
def test_tensors_that_are_none_are_refused_with_their_line(tmp_path: Path, wrong: object) -> None:
    def put(lines: list[Json]) -> None:
        lines[4]["record"]["tensors"]["block_table"] = wrong

    with pytest.raises(RecordingError, match=r"altered.jsonl, line 5: record.*\btensors.*: found "):
        again(altered(tmp_path, "pausing", put))


@pytest.mark.parametrize(
    ("line", "text", "told"),
    [
        (1, '{"format": "lockstep-trace", "version": 1}', "format: found 'lockstep-trace'"),
        (1, '{"format": "lockstep-recording", "version": 2}', "version: found 2"),
        (3, "nonsense", "line: found 'nonsense'; allowed: a JSON object"),
        (
            1,
            '{"format": "lockstep-recording", "version": 1}',
            "driver: found nothing; allowed: a value",
        ),
    ],
)
def test_a_file_that_is_no_recording_is_refused(
    tmp_path: Path, line: int, text: str, told: str
) -> None:
    lines = (RECORDED / "sendnn-pausing.jsonl").read_text(encoding="utf-8").splitlines()
    lines[line - 1] = text
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")

    assert told in refusal(RecordingError, read_recording, path)


def test_what_is_recorded_comes_back(tmp_path: Path) -> None:
    scene, path = SCENES["early_end"], tmp_path / "r.jsonl"

    made = record(driver(), scene.case, scene.terms, path, about="a", command="b")
    read = read_recording(path)

    assert (read.case, read.about, read.command) == (scene.case, "a", "b")
    assert again(read).steps == made.steps == 13


def test_the_action_of_the_step_in_which_a_driver_fails_is_recorded(tmp_path: Path) -> None:
    recording = read_recording(RECORDED / FILE_NAMES["model_length_assertion"])

    path = tmp_path / "again.jsonl"
    record(recording, recording.case, recording.terms, path, about="", command="")

    *_, failed, _outcome = map(json.loads, path.read_text().splitlines())
    assert failed.keys() == {"action", "failure"}
    assert len(read_recording(path).actions) == len(recording.records) + 1
