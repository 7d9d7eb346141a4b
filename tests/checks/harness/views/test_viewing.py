"""Files of every kind as documents: the steps of the file, or of both sides."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.pages.document import unpacked
from checks.harness.views.viewing import document_of_file
from tests.checks.command import lockstep

RECORDED = Path(__file__).parents[3] / "recorded"
EXAMPLES = Path(__file__).parents[4] / "examples"
Json = dict[str, Any]


def counterexample(policy: str, instance: str, directory: Path) -> Path:
    """The counterexample of the first refuted rule in this instance."""
    named = {instance.name: instance for instance in machine_of(policy).instances}
    exploration = explore_instance(named[instance])
    path = directory / "found.jsonl"
    write_counterexample(exploration, exploration.findings[0], path)
    return path


def test_a_counterexample_points_to_the_step_that_breaks_the_rule(tmp_path: Path) -> None:
    document = document_of_file(counterexample("spyre", "documented", tmp_path))

    violation = document["violation"]
    (shown,) = unpacked(document)[violation["frame"]]
    assert violation["rule"] == "SPY-VOL-1"
    assert violation["rule"] in dict(shown["broken"])
    assert document["overview"]["broken"] == {3: ["SPY-VOL-1"]}
    assert shown["meters"][0]["over"]
    assert document["rules"]["SPY-VOL-1"]["says"] == violation["says"]


def test_what_breaks_a_rule_between_steps_is_a_frame_of_its_own(tmp_path: Path) -> None:
    document = document_of_file(counterexample("spyre", "released", tmp_path))

    last = document["overview"]["count"] - 1
    (shown,) = unpacked(document)[last]
    assert document["violation"]["rule"] == "LIF-5"
    assert document["violation"]["frame"] == last
    assert shown["aborted"] == ["0"]
    assert document["overview"]["broken"] == {last: ["LIF-5"]}


def test_what_a_connector_has_is_known_where_its_rules_are_judged(tmp_path: Path) -> None:
    document = document_of_file(counterexample("vllm-v1", "sync load, lost", tmp_path))

    broken = {rule for rules in document["overview"]["broken"].values() for rule in rules}
    assert broken == {"V1-KV-10", "V1-KV-12"}


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_recording_stands_beside_the_reference(path: Path) -> None:
    document = document_of_file(path)

    assert document["sides"][0] == "reference"
    assert len(document["sides"]) == 2
    frames = unpacked(document)
    steps = sum("record" in json.loads(line) for line in path.read_text().splitlines())
    taken = sum(theirs is not None for _, theirs in frames)
    differs = document["divergence"]
    assert taken == steps if differs is None else taken == differs["frame"] + 1 <= steps
    for ours, theirs in frames[: taken if differs is None else differs["frame"]]:
        assert ours["step"] == theirs["step"]
        assert [row["id"] for row in ours["rows"]] == [row["id"] for row in theirs["rows"]]


def test_a_release_that_raises_ends_with_its_error() -> None:
    document = document_of_file(RECORDED / "sendnn-model_length_assertion.jsonl")

    violation = document["violation"]
    assert violation["rule"] == "crash"
    assert "AssertionError" in violation["found"]
    assert unpacked(document)[violation["frame"]][1] is None


def test_a_trace_has_a_frame_for_every_step_up_to_one_that_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    ran = lockstep(
        *("run", EXAMPLES / "first.jsonl", "--config", EXAMPLES / "first.toml"),
        *("--using", "reference", "--trace", path),
    )
    assert ran.code == 0

    document = document_of_file(path)

    written = path.read_text().splitlines()
    lines = [json.loads(line) for line in written[1:]]
    shown = [line for (line,) in unpacked(document)]
    assert [line["step"] for line in shown] == [line["step"] for line in lines]
    assert [line["finished"] for line in shown] == [line["finished"] for line in lines]
    refused = {str(at): rule for at, rule in document["overview"]["refused"].items()}
    assert refused == {str(line["step"]): line["refusal"] for line in lines if line["refusal"]}

    planted = json.dumps(lines[7] | {"tkv": 7})
    path.write_text("\n".join([*written[:8], planted, *written[9:], ""]))
    document = document_of_file(path)

    assert document["divergence"]["frame"] == 7 == document["overview"]["count"] - 1
    (field,) = document["divergence"]["fields"]
    assert (field["field"], field["found"]) == ("tkv", 7)


def test_view_writes_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    path = counterexample("spyre", "documented", tmp_path)
    page = tmp_path / "page.html"

    ran = lockstep("view", path, "--out", page, "--json", tmp_path / "report.json")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"written: {page} (4 steps, 1 broken rule)\n"
    text = page.read_text(encoding="utf-8")
    addresses = ("http://www.w3.org/2000/svg",)  # a name, which nothing is fetched from
    for address in addresses:
        text = text.replace(address, "")
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text
