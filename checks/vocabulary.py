"""Every word that commands, their output and pages use, with its meanings."""

import re
from collections.abc import Iterator
from itertools import chain

from checks.chapters import chapter_path, field_rows, key_rows, record_parts, value_lines
from checks.evidence import PROVEN, recorded
from checks.glossary import glossary, listed_words
from checks.registry import POLICIES, RULES, claims_of
from engine.core.clock import CostModel
from engine.core.faults import Constraint

_Meanings = Iterator[tuple[list[str], str]]  # words, and what they mean


def vocabulary() -> dict[str, list[str]]:
    """The meanings of each word in lower case, those of the glossary first."""
    known: dict[str, dict[str, None]] = {}
    of_claims = chain(_rules(), _obligations())
    of_machines = chain(_keys(), _request_keys(), _values(), _fields(), _constraints())
    for words, meaning in chain(_entries(), listed_words(), of_machines, of_claims):
        for word in words:
            known.setdefault(word.lower(), {})[meaning] = None
    return {word: [*meanings] for word, meanings in known.items()}


def _entries() -> _Meanings:
    for title, text in glossary().items():
        yield [title, *title.split(", ")], f"{title}: {text}"


def _rules() -> _Meanings:
    for rule in RULES.values():
        yield [rule.id], f"{rule.id}: {rule.sentence} (all about it: lockstep rules {rule.id})"


def _obligations() -> _Meanings:
    for id_, record in recorded(PROVEN).items():
        yield [id_], f"{id_}: {record['says']} ({record['verdict']}: lockstep prove {id_})"


def _keys() -> _Meanings:
    """The keys of all configurations; keys that policies share with one meaning, once."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for name, config in _configs():
        for row in key_rows(config):
            owners.setdefault(tuple(row), []).append(name)
    for (names, default, says), policies in owners.items():
        where = f"key of {', '.join(policies)}, default {default}"
        yield re.findall(r"`(\w+)`", names), _without_quotes(f"{names} ({where}): {says}")


def _request_keys() -> _Meanings:
    """The keys of a request, as the chapter on workloads has them."""
    chapter = chapter_path("workloads").read_text(encoding="utf-8")
    table = chapter.partition("## Our own format")[2].partition("\n## ")[0]
    for names, says in re.findall(r"^\| (`.+?) \| (.+) \|$", table, re.MULTILINE):
        yield re.findall(r"`(\w+)`", names), _without_quotes(f"{names} (key of a request): {says}")


def _values() -> _Meanings:
    """The named values of keys."""
    for name, config in _configs():
        key = ""
        for line in value_lines(config):
            first, says = re.fullmatch(r" *- `(.+?)`:? (.*)", line).groups()  # type: ignore[union-attr]
            if line.startswith("- "):
                key = first
            else:
                yield [first], _without_quotes(f"{first} ({key} of {name}): {says}")


def _fields() -> _Meanings:
    """The fields of records; fields that records share with one meaning, once."""
    owners: dict[tuple[str, str], dict[str, None]] = {}
    for policy in POLICIES:
        for part in record_parts(policy).values():
            for name, _, says, _ in field_rows(part):
                owners.setdefault((name, says), {})[policy] = None
    for (name, says), policies in owners.items():
        where = f"field in records of {', '.join(policies)}"
        yield [name.strip("`")], _without_quotes(f"{name} ({where}): {says}")


def _constraints() -> _Meanings:
    for constraint in Constraint:
        name = str(constraint)
        yield [name], f"{name} (constraint of the simulated device): {constraint.sentence}"


def _configs() -> Iterator[tuple[str, type]]:
    yield from ((policy, claims_of(policy).config) for policy in POLICIES)
    yield "cost", CostModel


def _without_quotes(text: str) -> str:
    return text.replace("`", "")
