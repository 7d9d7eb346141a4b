"""Verdicts on record: what exploring the default instances showed, kept with the project.

The file is written by `lockstep explore --record` and pinned by a test, so a change that moves a
count or a verdict shows in its diff. `lockstep rules` and the chapters quote it.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

import spec
from checks.exploring import Exploration
from spec.rules import Rule


def record_of(explorations: Iterable[Exploration]) -> dict[str, Any]:
    """What is worth keeping of explorations: exact counts and verdicts, no times."""
    return {
        one.instance.name: {
            "about": one.instance.about,
            "states": one.states,
            "transitions": one.transitions,
            "depth": one.depth,
            "violations": {
                found.rule: {"found": found.found, "actions": list(found.actions)}
                for found in one.findings
            },
            "rules": list(one.rules),
            "witnesses": {rule: edges for rule, edges in one.witnesses.items() if edges},
        }
        for one in explorations
    }


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write the record so that a change to one instance is a change to its lines alone."""
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def recorded() -> dict[str, Any]:
    """The record kept with the project."""
    content: dict[str, Any] = json.loads(recorded_path().read_text(encoding="utf-8"))
    return content


def recorded_path() -> Path:
    """Where the record is kept: a file of this package."""
    return Path(__file__).with_name("recorded") / "explored.json"


@frozen
class Verdict:
    """What the record says about one rule.

    `holds_in` and `refuted_in`: instances; `states`: explored states of those where it holds;
    `witnessed`: edges on which its witness was seen, over all instances.
    """

    rule: Rule
    holds_in: tuple[str, ...]
    refuted_in: tuple[str, ...]
    states: int
    witnessed: int

    def __str__(self) -> str:
        held = f"holds in {len(self.holds_in)} instances, {self.states:,} states"
        if not self.holds_in and not self.refuted_in:
            return "not judged"
        if not self.refuted_in:
            return held
        refuted = f"refuted in: {'; '.join(self.refuted_in)}"
        return f"{refuted} ({held})" if self.holds_in else refuted


def verdicts(rules: Sequence[Rule], record: dict[str, Any]) -> list[Verdict]:
    """The verdict on each rule."""
    return [_verdict(rule, record) for rule in rules]


def _verdict(rule: Rule, record: dict[str, Any]) -> Verdict:
    judged = {name: one for name, one in record.items() if rule.id in one["rules"]}
    refuted = tuple(name for name, one in judged.items() if rule.id in one["violations"])
    holds = tuple(name for name in judged if name not in refuted)
    return Verdict(
        rule=rule,
        holds_in=holds,
        refuted_in=refuted,
        states=sum(judged[name]["states"] for name in holds),
        witnessed=sum(one["witnesses"].get(rule.id, 0) for one in judged.values()),
    )


def unwitnessed(rules: Sequence[Rule], record: dict[str, Any]) -> list[str]:
    """Ids of rules that no instance judges, or whose witness was seen in none: vacuous so far."""
    return [one.rule.id for one in verdicts(rules, record) if not one.witnessed]


_BEGIN, _END = "<!-- rules -->\n", "<!-- end of rules -->\n"


def chapter_path() -> Path:
    """The chapter that shows the verdicts."""
    return Path(spec.__file__).parent / "chapters" / "spyre.md"


def with_table(chapter: str, listed: Sequence[Verdict]) -> str:
    """The chapter with its table of rules made anew."""
    before, _, rest = chapter.partition(_BEGIN)
    after = rest.partition(_END)[2]
    rows = [
        f"| {one.rule.id} | {one.rule.sentence} | {one.rule.source} | {one} | {one.witnessed:,} |"
        for one in listed
    ]
    head = ["| rule | says | source | explored | witnessed |", "| --- | --- | --- | --- | --- |"]
    return before + _BEGIN + "\n".join([*head, *rows]) + "\n" + _END + after


def write_chapter(listed: Sequence[Verdict]) -> None:
    """Bring the chapter's table up to date."""
    path = chapter_path()
    path.write_text(with_table(path.read_text(encoding="utf-8"), listed), encoding="utf-8")
