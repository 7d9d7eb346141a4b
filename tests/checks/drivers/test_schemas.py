"""Records of drivers, in recordings and of templates, keep the schemas."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from checks.chapters import schema_of_record
from checks.harness.campaigns.campaign import Plan, own_system
from checks.harness.campaigns.recording import record
from checks.harness.comparison import Terms
from checks.harness.driver.process import DRIVER_FILES
from checks.harness.policy import evidence_of
from checks.registry import POLICIES
from checks.releases.recipes import TEMPLATES
from lockstep.systems import DriverClass
from tests.lockstep.broken import class_named

RECORDED = Path(__file__).parents[2] / "recorded"
each_policy = pytest.mark.parametrize("policy", POLICIES)


def survey_records(path: Path) -> tuple[str, list[Any]]:
    """The policy of a recording, and its records."""
    header, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    policy = header["config"].get("policy", "spyre")
    return policy, [line["record"] for line in lines if "record" in line]


def errors(policy: str, records: list[Any]) -> list[str]:
    validator = Draft202012Validator(schema_of_record(policy))
    return [error.message for record in records for error in validator.iter_errors(record)]


def test_recorded_steps_of_every_release_are_valid() -> None:
    counts = dict.fromkeys(POLICIES, 0)
    for path in sorted(RECORDED.rglob("*.jsonl")):
        policy, records = survey_records(path)
        assert errors(policy, records) == [], path.name
        counts[policy] += len(records)

    assert min(counts.values()) > 50


@pytest.mark.parametrize("policy", ["spyre", "nano-vllm", "vllm-v1"])
def test_what_a_template_answers_is_valid(policy: str, tmp_path: Path) -> None:
    text = (DRIVER_FILES / TEMPLATES[policy]).read_text(encoding="utf-8")
    plan = Plan(DriverClass(class_named(text)))
    path = tmp_path / "recorded.jsonl"
    record(own_system(plan.system), plan.case(0), Terms(), path, about="", command="")

    assert errors(*survey_records(path)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "prefil"}, "'prefil' is not one of ['prefill', 'decode', 'idle']"),
        ({"waitng": []}, "Additional properties are not allowed ('waitng' was unexpected)"),
        ({"scheduled": {"a": "1"}}, "'1' is not of type 'integer'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    right = {
        **{"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []},
        **{"waiting": [], "decoding": [], "paused": []},
    }
    assert errors("spyre", [right]) == []

    assert errors("spyre", [right | change]) == [says]


@each_policy
def test_a_schema_names_all_optional_fields(policy: str) -> None:
    text = json.dumps(schema_of_record(policy))

    lists = re.findall(r'"x-left-out": (\[.*?\])', text)
    named = {name for fields in lists for name in json.loads(fields)}
    assert named == set(evidence_of(policy).adapter.fields.names)
