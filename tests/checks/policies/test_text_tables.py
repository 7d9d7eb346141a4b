"""The chapters' tables from text to rule to check say what exploring showed."""

import re

import pytest

from checks.evidence import chapter_path, recorded_verdicts
from checks.policies import POLICIES, AnyPolicy

PREFIXES = {"nano-vllm": "NANO", "vllm-v1": "V1"}


def rows(policy: AnyPolicy) -> list[tuple[list[str], str]]:
    """Rules and verdict of each row."""
    text = chapter_path(policy).read_text(encoding="utf-8")
    table = text.partition("## From text to rule to check")[2].partition("\n## ")[0]
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    rule = re.compile(rf"(?<!PRV-){PREFIXES[policy.name]}-[A-Z]+-\d+")
    return [(rule.findall(one[1]), one[2].rstrip(" |")) for one in cells]


def refuted(policy: AnyPolicy) -> set[str]:
    """The rules that some default instance refutes."""
    verdicts = recorded_verdicts(policy.registry.rules.values())
    return {one.rule.id for one in verdicts if one.refuted_in}


both = pytest.mark.parametrize(
    "policy", [POLICIES[name] for name in PREFIXES], ids=lambda policy: str(policy.name)
)


@both
def test_a_row_says_refuted_exactly_if_one_of_its_rules_is(policy: AnyPolicy) -> None:
    wrong = refuted(policy)
    told = [(rules, "refuted" in verdict) for rules, verdict in rows(policy) if rules]

    assert told == [(rules, not wrong.isdisjoint(rules)) for rules, _ in told]


@both
def test_every_rule_that_the_text_gives_is_in_a_row(policy: AnyPolicy) -> None:
    named = {rule for rules, _ in rows(policy) for rule in rules}
    ours = {rule.id for rule in policy.registry.rules.values() if rule.source.text == policy.name}

    assert ours - named == set()
