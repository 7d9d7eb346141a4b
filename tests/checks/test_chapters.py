"""The chapters list every rule and proof on record, and explain every refutation."""

import re
from typing import Any

import pytest
from attrs import fields

from checks.chapters import (
    CONFIGURATION,
    EVIDENCE,
    MOST_IN_A_CELL,
    PROOFS,
    RECORDS,
    as_recorded,
    chapter_path,
    key_rows,
    obligation_ids,
    record_parts,
    with_proofs,
    with_rules,
    with_starvation,
    with_table,
)
from checks.evidence import EXPLORED, PROVEN, recorded, recorded_verdicts
from checks.registry import POLICIES, claims_of
from engine.core.clock import CostModel

PREFIXES = {
    "spyre": "(?:SPY-[A-Z]+|BLK|LIF)",
    "nano-vllm": "NANO-[A-Z]+",
    "vllm-v1": "V1-[A-Z]+",
    "vllm-v0": "V0-[A-Z]+",
}
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=POLICIES)
tabled = pytest.mark.parametrize("policy", list(PREFIXES), ids=[*PREFIXES])
both = pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v1"])


def chapter_text(policy: str) -> str:
    return chapter_path(policy).read_text(encoding="utf-8")


def test_the_tables_of_every_chapter_are_as_recorded() -> None:
    chapters = dict(as_recorded())

    assert {path: path.read_text(encoding="utf-8") for path in chapters} == chapters


def test_every_generated_table_has_its_place() -> None:
    keys = [f"{table} of {policy}" for policy in POLICIES for table in ("keys", "values")]
    places = {
        **{chapter_path(policy): ["rules", "starvation"] for policy in POLICIES},
        EVIDENCE: ["scores"],
        PROOFS: ["lemmas"],
        RECORDS: [name for policy in POLICIES for name in record_parts(policy)],
        CONFIGURATION: [*keys, "keys of cost", "default costs"],
    }

    for path, names in places.items():
        text = path.read_text(encoding="utf-8")
        for name in names:
            assert text.count(f"<!-- {name} -->\n") == 1, f"{path.name}: {name}"
            assert text.count(f"<!-- end of {name} -->\n") == 1, f"{path.name}: {name}"


@pytest.mark.parametrize("config", [*(claims_of(policy).config for policy in POLICIES), CostModel])
def test_the_chapter_on_configuration_has_every_key_with_its_default(config: type) -> None:
    rows = [(keys, defaults) for keys, defaults, _ in key_rows(config)]

    named = [key for keys, _ in rows for key in re.findall(r"`(\w+)`", keys)]
    assert sorted(named) == sorted(key.name for key in fields(config))
    assert all(defaults.count(", ") == keys.count(", ") for keys, defaults in rows)


@each_policy
def test_the_chapter_explains_every_rule_and_then_lists_it(policy: str) -> None:
    prose, _, table = chapter_text(policy).partition("<!-- rules -->")

    for rule in claims_of(policy).registry.rules.values():
        says = rule.sentence if len(rule.sentence) <= MOST_IN_A_CELL else "see below"
        assert f"| {rule.id} | {says} |" in table
        assert rule.sentence in table
        assert rule.id in prose


def test_a_changed_verdict_changes_the_table() -> None:
    chapter, (rule, *_) = chapter_text("spyre"), claims_of("spyre").registry.rules.values()

    changed = with_rules("spyre", chapter, recorded_verdicts([rule]))

    assert changed.count("| SPY-") < chapter.count("| SPY-")


def test_an_open_world_is_served_or_shows_which_actions_repeat() -> None:
    chapter = chapter_text("spyre")
    explored = recorded(EXPLORED)
    explored["open, exact"]["violations"] = {
        "LIF-6": {"found": "request 2: step 8 repeats for ever without the goal"},
        "SPY-VOL-1": {"found": "volume 9"},  # is about no endless run
    }

    (changed,) = {*with_starvation("spyre", chapter, explored).splitlines()} - {
        *chapter.splitlines()
    }

    assert changed.startswith("| open, exact | clients come back; first come, first served | ")
    assert changed.endswith(" | LIF-6 refuted: request 2: step 8 repeats for ever |")
    assert (
        "| open, shipped, fcfs | the same, first come, first served | 1,033 | served |" in chapter
    )


def test_a_long_cell_stands_in_a_list_below_the_table() -> None:
    long = "word " * 41
    rows = [("A", "one", "short"), ("B", "one", long), ("B", "two", long)]

    made = with_table("<!-- t -->\n<!-- end of t -->\n", "t", ("id", "move", "says"), rows)
    of_two = with_table("<!-- t -->\n<!-- end of t -->\n", "t", ("id", "move", "says"), rows[:2])

    assert made.splitlines()[3:-1] == [
        "| A | one | short |",
        "| B | one | see below |",
        "| B | two | see below |",
        "",
        f"- **B, one, says:** {long}",
        f"- **B, two, says:** {long}",
    ]
    assert f"- **B, says:** {long}" in of_two  # its first cell is enough to name it


def test_the_claim_of_proofs_is_said_once_below_the_rules_unless_the_chapter_has_their_table() -> (
    None
):
    rules = [claims_of("spyre").registry.rules[id_] for id_ in ("BLK-1", "BLK-2")]
    chapter, verdicts = "<!-- rules -->\n<!-- end of rules -->\n", recorded_verdicts(rules)
    proofs = "<!-- proofs -->\n<!-- end of proofs -->\n"

    table, _, below = with_rules("spyre", chapter, verdicts).partition("\n\n")

    assert table.count("| holds; compiled: holds in") == 2
    usual = verdicts[0].explored.partition("; ")[0].removeprefix("holds ")
    assert below.startswith(f"- **holds:** {usual}\n")

    assert below.count("- **PRV-POOL-1:** proven of the formula, for any pool") == 1
    assert "- **PRV" not in with_rules("spyre", proofs + chapter, verdicts)


# --- proofs ---------------------------------------------------------------------------------------


def recorded_proofs(policy: str) -> dict[str, Any]:
    proven = recorded(PROVEN)
    return {id_: it for id_, it in proven.items() if id_.startswith(obligation_ids(policy))}


@both
def test_the_chapter_explains_every_refutation_and_then_lists_every_obligation(
    policy: str,
) -> None:
    prose, _, table = chapter_text(policy).partition("<!-- proofs -->")
    proven = recorded_proofs(policy)

    assert table.count("\n| PRV-") == len(proven) > 20
    refuted = [id_ for id_, it in proven.items() if it["verdict"] == "refuted"]
    assert [id_ for id_ in refuted if id_ not in prose] == []
    assert refuted


def test_a_line_of_the_table_has_the_claim_its_bounds_its_rules_and_its_verdict() -> None:
    it = {"says": "Says.", "bounds": "every length", "rules": [], "verdict": "proven"}
    obligation = {**it, "of": "formula", "where": ""}
    other = {**it, "of": "machine", "where": "key=value", "rules": ["A-1", "B-2"]}
    proven = {"PRV-V1-X-1": obligation, "PRV-NANO-X-1": other}
    chapter = "before\n<!-- proofs -->\nold\n<!-- end of proofs -->\nafter\n"
    assert with_proofs("vllm-v1", chapter, proven).splitlines() == [
        "before",
        "<!-- proofs -->",
        "| obligation | says | for | rules | of | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
        "| PRV-V1-X-1 | Says. | every length | - | formula | proven |",
        "<!-- end of proofs -->",
        "after",
    ]
    line = "| PRV-NANO-X-1 | Says. | `key=value`: every length | A-1, B-2 | every run | proven |\n"
    assert line in with_proofs("nano-vllm", chapter, proven)


# --- from text to rule ----------------------------------------------------------------------------


def rows(policy: str) -> list[tuple[list[str], str]]:
    """Rules and verdict of each row."""
    table = chapter_text(policy).partition("## From text to rule to check")[2].partition("\n## ")[0]
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    rule = re.compile(rf"(?<!PRV-)\b{PREFIXES[policy]}-\d+")
    return [(rule.findall(row[1]), row[2].rstrip(" |")) for row in cells]


def refuted(policy: str) -> set[str]:
    """The rules that some default instance refutes."""
    verdicts = recorded_verdicts(claims_of(policy).registry.rules.values())
    return {verdict.rule.id for verdict in verdicts if verdict.refuted_in}


@tabled
def test_a_row_says_refuted_exactly_if_one_of_its_rules_is(policy: str) -> None:
    wrong = refuted(policy)
    said = [(rules, "refuted" in verdict) for rules, verdict in rows(policy) if rules]

    assert said == [(rules, not wrong.isdisjoint(rules)) for rules, _ in said]


@tabled
def test_every_rule_that_the_text_gives_is_in_a_row(policy: str) -> None:
    named = {rule for rules, _ in rows(policy) for rule in rules}
    ours = {
        rule.id for rule in claims_of(policy).registry.rules.values() if rule.source.text == policy
    }

    assert ours - named == set()


# Sentences of each text that constrain behaviour, as the tables name them; headings, definitions
# and what only tells of a plot left out. A sentence that comes or goes changes its number here.
SENTENCES = {"spyre": 54, "nano-vllm": 33, "vllm-v1": 34, "vllm-v0": 57}


@tabled
def test_every_sentence_that_constrains_behaviour_has_a_row(policy: str) -> None:
    assert len(rows(policy)) == SENTENCES[policy]


def test_a_row_without_a_rule_says_that_nothing_is_constrained_or_what_is_not_modelled() -> None:
    without = [verdict for rules, verdict in rows("spyre") if not rules]

    assert len(without) == 6
    assert all("constrains: nothing" in line or "not modelled" in line for line in without)
