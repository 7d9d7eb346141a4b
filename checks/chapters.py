"""The chapters' tables of rules, proofs and what starves, made from the verdicts on record."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from inspect import cleandoc
from pathlib import Path
from typing import Any

from attrs import fields

import spec
from checks.evidence import EXPLORED, MUTATED, PROVEN, Verdict, recorded, recorded_verdicts
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.export.files import new_file
from checks.registry import POLICIES, claims_of
from checks.releases.defects import defect_pages
from engine.core.clock import CostModel
from spec.core.rule import Kind

_RULES = ("rule", "says", "source", "explored", "witnessed", "proofs")
_PROOFS = ("obligation", "says", "for", "rules", "of", "verdict")
_STARVATION = ("instance", "what it is", "states", "verdict")
_KILLED_BY = ("explore", "run", "fuzz", "prove", "conform", "tests")
_FIELDS = ("field", "type", "meaning", "unreported by")
_KEYS = ("key", "default", "meaning")
_SCORES = (
    "room",
    "policy",
    "mutants",
    *_KILLED_BY,
    "alive",
    "equivalent",
    "rule",
    "score",
    "stale",
)
CHAPTERS = Path(spec.__file__).parent / "chapters"
EVIDENCE, PROOFS = CHAPTERS / "evidence.md", CHAPTERS / "proofs.md"
RECORDS = CHAPTERS / "records.md"
CONFIGURATION = CHAPTERS / "configuration.md"
_SCHEMAS = Path(__file__).parent / "drivers" / "schemas"
# The lemmas of the chapter on proofs, and what they cite.
_LEMMAS = ("PRV-ANY", "PRV-ANS", "PRV-TIG", "PRV-EXA-3", "PRV-PEAK-1", "PRV-DEC-5")


def chapter_path(policy: str) -> Path:
    """The chapter that shows the verdicts on the rules of a policy."""
    name = policy.replace("-", "_")
    return CHAPTERS / f"{name}.md"


def with_rules(chapter: str, listed: Iterable[Verdict]) -> str:
    """The chapter with its table of rules made anew."""
    rows = (
        (rule.id, rule.sentence, rule.source, one.explored, f"{one.witnessed:,}", one.proofs)
        for one in listed
        for rule in [one.rule]
    )
    return with_table(chapter, "rules", _RULES, rows)


def obligation_ids(policy: str) -> tuple[str, ...]:
    """What the ids of obligations that serve the policy's rules begin with."""
    rules = claims_of(policy).registry.rules
    return tuple({f"PRV-{rule.partition('-')[0]}-": None for rule in rules})


def with_proofs(policy: str, chapter: str, proven: Mapping[str, Any]) -> str:
    """The policy's chapter with its table of proofs, if it has one, made anew from the record."""
    return with_table(chapter, "proofs", _PROOFS, _proofs(proven, obligation_ids(policy)))


def with_lemmas(chapter: str, proven: Mapping[str, Any]) -> str:
    """The chapter with its table of lemmas made anew from the record."""
    rows = _proofs(proven, _LEMMAS)
    asked = ((*row, proven[row[0]].get("second", "-")) for row in rows)
    return with_table(chapter, "lemmas", (*_PROOFS, "second solver"), asked)


def _proofs(proven: Mapping[str, Any], beginnings: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """A row for each obligation on record whose id begins so."""
    for one, it in proven.items():
        if one.startswith(beginnings):
            what = "every run" if it["of"] == "machine" else "formula"
            bounds = f"`{it['where']}`: {it['bounds']}" if it["where"] else it["bounds"]
            yield one, it["says"], bounds, ", ".join(it["rules"]) or "-", what, it["verdict"]


def with_scores(chapter: str, mutated: Mapping[str, Any]) -> str:
    """The chapter with its table of mutation scores made anew, of what was tried to the end."""
    whole = (one for one in mutated.values() if not one["untried"])
    rows = (["-" if one[key] is None else one[key] for key in _SCORES] for one in whole)
    return with_table(chapter, "scores", _SCORES, rows)


def schema_of_record(policy: str) -> Any:
    """The JSON Schema of the records that drivers of the policy answer with."""
    return json.loads((_SCHEMAS / f"{policy}.json").read_text(encoding="utf-8"))


def with_fields(chapter: str) -> str:
    """The chapter with its tables of the fields of records made anew from their schemas."""
    for policy in POLICIES:
        schema = schema_of_record(policy)
        parts = {policy: schema, **{f"{policy}, {name}": one for name, one in _parts(schema)}}
        for what, part in parts.items():
            chapter = with_table(chapter, what, _FIELDS, _fields_of(part))
    return chapter


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """What the record is made of; a state is some of its own fields."""
    return ((name, one) for name, one in schema["$defs"].items() if name != "state")


def _fields_of(part: Any) -> Iterator[Sequence[str]]:
    for name, field in part["properties"].items():
        inside = field.get("properties", {})
        nested = "; ".join(f"`{key}`: {one['description']}" for key, one in inside.items())
        says = f"{field['description']} ({nested})" if nested else field["description"]
        missing = "" if name in part["required"] else "or missing"
        unreported = ", ".join(f"`{one}`" for one in field.get("x-left-out", ())) or missing
        yield f"`{name}`", _type_of(field), says, unreported


def _type_of(field: Any) -> str:
    """The type of a field in words."""
    match field:
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"anyOf": [one, {"type": "null"}]}:
            return f"{_type_of(one)} or null"
        case {"enum": values}:
            return ", ".join(f"`{one}`" for one in values)
        case {"type": "array", "items": dict(items)} if items and "prefixItems" not in field:
            return f"list of {_type_of(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object, {_type_of(values)} each"
    words = {"array": "list", "string": "text", "integer": "number"}
    return words.get(field["type"], str(field["type"]))


def with_keys(chapter: str) -> str:
    """The chapter with its tables of configuration keys, from the configurations' docstrings."""
    configs = {policy: claims_of(policy).config for policy in POLICIES} | {"cost": CostModel}
    for name, config in configs.items():
        chapter = with_table(chapter, f"keys of {name}", _KEYS, keys_of(config))
        chapter = with_lines(chapter, f"values of {name}", _values_of(config))
    return chapter


def keys_of(config: type) -> Iterator[Sequence[str]]:
    """The keys that the bullets of the class's docstring name, with default and meaning."""
    defaults = {key.name: key.default for key in fields(config)}
    bullets = re.findall(
        r"^- (`.*?): (.*?)(?=\n- |\n\n)", cleandoc(config.__doc__ or ""), re.M | re.S
    )
    for names, meaning in bullets:
        values = ", ".join(_default(defaults[name]) for name in re.findall(r"`(\w+)`", names))
        yield names, values, " ".join(meaning.split()).removesuffix(".")


def _default(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return f"`{value}`".lower()
        case str():
            return f'`"{value}"`'
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _values_of(config: type) -> Iterator[str]:
    """A bullet for each key that has names as values: what each of them means."""
    for key in fields(config):
        if isinstance(key.type, type) and issubclass(key.type, Enum):
            yield f"- `{key.name}`: {' '.join(cleandoc(key.type.__doc__ or '').split())}"


def with_starvation(policy: str, chapter: str, explored: Mapping[str, Any]) -> str:
    """The policy's chapter with its table of open worlds, made anew from the record."""
    rows = (
        (instance.name, instance.about, f"{it['states']:,}", _served(policy, it["violations"]))
        for instance in machine_of(policy).instances
        if instance.returning
        for it in [explored[title_of(instance)]]
    )
    return with_table(chapter, "starvation", _STARVATION, rows)


def _served(policy: str, violations: Mapping[str, Any]) -> str:
    """Whether all that must come does come, else which rule is refuted by which actions."""
    refuted = [
        f"{rule} refuted: {it['found'].removesuffix(' without the goal')}"
        for rule, it in violations.items()
        if claims_of(policy).registry.rules[rule].kind is Kind.EVENTUALLY
    ]
    return "; ".join(refuted) or "served"


def with_table(
    chapter: str, what: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> str:
    """The chapter with other rows between the two comments that name the table."""
    table = (_line(columns), "| --- " * len(columns) + "|", *map(_line, rows))
    return with_lines(chapter, what, table)


def with_lines(chapter: str, what: str, lines: Iterable[str]) -> str:
    """The chapter with other lines between the two comments that name them, if it has these."""
    before, begin, rest = chapter.partition(f"<!-- {what} -->\n")
    _, end, after = rest.partition(f"<!-- end of {what} -->\n")
    return before + begin + "\n".join(lines) + "\n" + end + after if begin else chapter


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def as_recorded() -> Iterator[tuple[Path, str]]:
    """Each chapter, and what it says once its tables are made from the records."""
    explored, proven = recorded(EXPLORED), recorded(PROVEN)
    for policy in POLICIES:
        path = chapter_path(policy)
        verdicts = recorded_verdicts(claims_of(policy).registry.rules.values())
        chapter = with_rules(path.read_text(encoding="utf-8"), verdicts)
        chapter = with_starvation(policy, chapter, explored)
        yield path, with_proofs(policy, chapter, proven)
    yield EVIDENCE, with_scores(EVIDENCE.read_text(encoding="utf-8"), recorded(MUTATED))
    yield PROOFS, with_lemmas(PROOFS.read_text(encoding="utf-8"), proven)
    yield RECORDS, with_fields(RECORDS.read_text(encoding="utf-8"))
    yield CONFIGURATION, with_keys(CONFIGURATION.read_text(encoding="utf-8"))


def write_chapters() -> None:
    """Bring the tables of all chapters up to date with the records, and pages of recordings."""
    for path, chapter in (*as_recorded(), *defect_pages()):
        with new_file(path) as file:
            file.write(chapter)
