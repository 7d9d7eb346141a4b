"""The generated tables of the chapters: rules, proofs, starvation, fields, keys and scores."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from inspect import cleandoc
from pathlib import Path
from typing import Any

from attrs import asdict, fields

import spec
from checks.evidence import (
    CONFORMED,
    EXPLORED,
    MUTATED,
    PROVEN,
    REACHED,
    Verdict,
    evidence_on_releases,
    recorded,
    recorded_verdicts,
)
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.export.files import new_file
from checks.export.policy import presentation_of
from checks.harness.runs.measuring import Measured
from checks.registry import POLICIES, claims_of, part_of
from checks.releases.defects import defect_pages
from engine.core.clock import CostModel
from spec.core.rule import Kind

_RULES = ("rule", "says", "source", "explored", "witnessed", "proofs")
_PROOFS = ("obligation", "says", "for", "rules", "of", "verdict")
_STARVATION = ("instance", "what it is", "states", "verdict")
_MEANS = ("explore", "run", "fuzz", "prove", "conform", "tests")
_REACHED = ("policy", "episodes", "named", "drawn", "guided", "kept")
_FIELDS = ("field", "type", "meaning", "unreported by")
_KEYS = ("key", "default", "meaning")
_SCORES = (
    "room",
    "policy",
    "mutants",
    *_MEANS,
    "alive",
    "equivalent",
    "rule",
    "score",
    "stale",
)
_RELEASES = ("release", "exhaustive", "guided", "watched")
MOST_IN_A_CELL = 200  # characters; a longer cell stands in a list below its table
_BELOW = "see below"
CHAPTERS = Path(spec.__file__).parent / "chapters"
EVIDENCE, PROOFS = CHAPTERS / "evidence.md", CHAPTERS / "proofs.md"
DRIVERS = CHAPTERS / "drivers.md"
RECORDS = CHAPTERS / "records.md"
CONFIGURATION = CHAPTERS / "configuration.md"
TIME = CHAPTERS / "time.md"
_SCHEMAS = Path(__file__).parent / "drivers" / "schemas"
# The lemmas of the chapter on proofs and the obligations that they cite, by prefix of the id.
_LEMMAS = ("PRV-ANY", "PRV-ANS", "PRV-TIG", "PRV-EXA-3", "PRV-PEAK-1", "PRV-DEC-5")


def chapter_path(policy: str) -> Path:
    """The chapter that shows the verdicts on the rules of a policy."""
    name = policy.replace("-", "_")
    return CHAPTERS / f"{name}.md"


def with_rules(policy: str, chapter: str, listed: Iterable[Verdict]) -> str:
    """The chapter with its table of rules; without a table of proofs, also with their claims.

    What exploring showed of most rules is said once, below the table.
    """
    verdicts = [*listed]
    ((usual, _),) = Counter(
        verdict.explored.partition("; ")[0] for verdict in verdicts
    ).most_common(1)
    rows, obligations = list[Sequence[object]](), dict[str, dict[str, None]]()
    for verdict in verdicts:
        rule, witnessed = verdict.rule, f"{verdict.witnessed:,}"
        explored = verdict.explored.replace(usual, "holds").replace(f"{policy}, ", "")
        row = (rule.id, rule.sentence, rule.source, explored, witnessed, verdict.proofs)
        rows.append(row)
        for claim, ids in verdict.claims.items():
            obligations.setdefault(claim, {}).update(dict.fromkeys(ids))
    claims = [f"- **{', '.join(ids)}:** {claim}" for claim, ids in obligations.items()]
    has_proofs = "<!-- proofs -->" in chapter
    items = [f"- **holds:** {usual.removeprefix('holds ')}", *([] if has_proofs else claims)]
    return with_table(chapter, "rules", _RULES, rows, items)


def obligation_ids(policy: str) -> tuple[str, ...]:
    """The prefixes of the ids of obligations about the policy's rules."""
    rules = claims_of(policy).registry.rules
    return tuple({f"PRV-{rule.partition('-')[0]}-": None for rule in rules})


def with_proofs(policy: str, chapter: str, proven: Mapping[str, Any]) -> str:
    """The policy's chapter with a new table of proofs, if it has such a table."""
    return with_table(chapter, "proofs", _PROOFS, _proofs(proven, obligation_ids(policy)))


def with_lemmas(chapter: str, proven: Mapping[str, Any]) -> str:
    """The chapter with a new table of lemmas."""
    rows = _proofs(proven, _LEMMAS)
    asked = ((*row, proven[row[0]].get("second", "-")) for row in rows)
    return with_table(chapter, "lemmas", (*_PROOFS, "second solver"), asked)


def _proofs(proven: Mapping[str, Any], prefixes: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """A row for each recorded obligation whose id has one of the prefixes."""
    for id_, entry in proven.items():
        if id_.startswith(prefixes):
            about = "every run" if entry["of"] == "machine" else "formula"
            where, bounds = entry["where"], entry["bounds"]
            scope, rules = f"`{where}`: {bounds}" if where else bounds, ", ".join(entry["rules"])
            yield id_, entry["says"], scope, rules or "-", about, entry["verdict"]


def with_scores(chapter: str, mutated: Mapping[str, Any]) -> str:
    """The chapter with a new table of mutation scores; groups with untried mutants are left out."""
    whole = (entry for entry in mutated.values() if not entry["untried"])
    rows = (["-" if entry[key] is None else entry[key] for key in _SCORES] for entry in whole)
    return with_table(chapter, "scores", _SCORES, rows)


def with_releases(chapter: str, conformed: Mapping[str, Any]) -> str:
    """The chapter with a new table of the evidence on released schedulers."""
    rows = (
        (release, *evidence.values())
        for release, evidence in evidence_on_releases(conformed).items()
    )
    return with_table(chapter, "releases", _RELEASES, rows)


def with_reached(chapter: str, reached: Mapping[str, Any]) -> str:
    """The chapter with a new table of the situations that random cases reach."""
    rows = (
        (policy, *(f"{entry[key]:,}" for key in _REACHED[1:])) for policy, entry in reached.items()
    )
    return with_table(chapter, "reached", _REACHED, rows)


def schema_of_record(policy: str) -> Any:
    """The JSON Schema of the records in the answers of the policy's drivers."""
    return json.loads((_SCHEMAS / f"{policy}.json").read_text(encoding="utf-8"))


def with_fields(chapter: str) -> str:
    """The chapter with new tables of the fields of records, from their schemas."""
    for policy in POLICIES:
        for name, part in record_parts(policy).items():
            chapter = with_table(chapter, name, _FIELDS, field_rows(part))
    return chapter


def record_parts(policy: str) -> dict[str, Any]:
    """The schemas of a record and its parts, by name.

    The state is left out, whose fields are fields of the record.
    """
    schema = schema_of_record(policy)
    parts = {f"{policy}, {name}": part for name, part in schema["$defs"].items() if name != "state"}
    return {policy: schema, **parts}


def field_rows(part: Any) -> Iterator[Sequence[str]]:
    """Name, type, meaning and the drivers that do not report it, of each field of a schema."""
    for name, field in part["properties"].items():
        inside = field.get("properties", {})
        nested = "; ".join(f"`{key}`: {value['description']}" for key, value in inside.items())
        says = f"{field['description']} ({nested})" if nested else field["description"]
        missing = "" if name in part["required"] else "or missing"
        unreported = ", ".join(f"`{driver}`" for driver in field.get("x-left-out", ())) or missing
        yield f"`{name}`", _type_words(field), says, unreported


def _type_words(field: Any) -> str:
    """The type of a field in words."""
    match field:
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"anyOf": [inner, {"type": "null"}]}:
            return f"{_type_words(inner)} or null"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": dict(items)} if items and "prefixItems" not in field:
            return f"list of {_type_words(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object, {_type_words(values)} each"
    words = {"array": "list", "string": "text", "integer": "number"}
    return words.get(field["type"], str(field["type"]))


def with_keys(chapter: str) -> str:
    """The chapter with new tables of configuration keys, from the configurations' docstrings."""
    configs = {policy: claims_of(policy).config for policy in POLICIES} | {"cost": CostModel}
    for name, config in configs.items():
        chapter = with_table(chapter, f"keys of {name}", _KEYS, key_rows(config))
        chapter = with_lines(chapter, f"values of {name}", value_lines(config))
    costs = {policy: asdict(presentation_of(policy).cost) for policy in POLICIES}
    rows = (
        (f"`{key.name}`", *(f"{cost[key.name]:g}" for cost in costs.values()))
        for key in fields(CostModel)
    )
    return with_table(chapter, "default costs", ("key", *costs), rows)


def key_rows(config: type) -> Iterator[Sequence[str]]:
    """The keys in the bullets of the class's docstring, with default and meaning."""
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


def value_lines(config: type) -> Iterator[str]:
    """A bullet for each key that has names as values, and below it one for each value."""
    for key in fields(config):
        if isinstance(key.type, type) and issubclass(key.type, Enum):
            text = " ".join(cleandoc(key.type.__doc__ or "").split())
            names = "|".join(re.escape(str(value.value)) for value in key.type)
            meaning, *values = re.split(rf" (?=`(?:{names})`:? )", text)
            yield f"- `{key.name}`: {meaning}"
            yield from (f"    - {value}" for value in values)


def with_starvation(policy: str, chapter: str, explored: Mapping[str, Any]) -> str:
    """The policy's chapter with a new table of starvation: instances in which requests return."""
    rows = (
        (
            instance.name,
            instance.about,
            f"{entry['states']:,}",
            _served(policy, entry["violations"]),
        )
        for instance in machine_of(policy).instances
        if instance.returning
        for entry in [explored[title_of(instance)]]
    )
    return with_table(chapter, "starvation", _STARVATION, rows)


def _served(policy: str, violations: Mapping[str, Any]) -> str:
    """The refuted liveness rules with their endless steps; "served" if there are none."""
    refuted = [
        f"{rule} refuted: {violation['found'].removesuffix(' without the goal')}"
        for rule, violation in violations.items()
        if claims_of(policy).registry.rules[rule].kind is Kind.EVENTUALLY
    ]
    return "; ".join(refuted) or "served"


def with_table(
    chapter: str,
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    items: Iterable[str] = (),
) -> str:
    """The chapter with other rows, and a list of items, between the two comments that name them.

    A cell that is too long for a table refers to the list, which begins with it.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    name_cells = 1 if len({cells[0] for cells in texts}) == len(texts) else 2
    table, below = [_line(columns), "| --- " * len(columns) + "|"], list[str]()
    for cells in texts:
        table.append(_line(_BELOW if len(cell) > MOST_IN_A_CELL else cell for cell in cells))
        below += [
            f"- **{', '.join((*cells[:name_cells], column))}:** {cell}"
            for column, cell in zip(columns, cells, strict=True)
            if len(cell) > MOST_IN_A_CELL
        ]
    below += items
    return with_lines(chapter, name, [*table, *([""] if below else []), *below])


def with_lines(chapter: str, name: str, lines: Iterable[str]) -> str:
    """The chapter with new lines between the two comments of this name, if it has them."""
    before, begin, rest = chapter.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    return before + begin + "\n".join(lines) + "\n" + end + after if begin else chapter


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def all_measured() -> Iterator[Measured]:
    """What the experiments of all policies measure, which takes seconds."""
    return (experiment() for policy in POLICIES for experiment in part_of(policy, "measured"))


def with_measured(chapter: str, results: Iterable[Measured]) -> str:
    """The chapter with new tables of what was measured, and which statements came out."""
    for measured in results:
        claims = enumerate(measured.claims.items(), start=1)
        items = [f"{n}. **{'Yes' if holds else 'No'}.** {says}" for n, (says, holds) in claims]
        rows, name = measured.rows, f"measured {measured.name}"
        chapter = with_table(chapter, name, measured.columns, rows, items)
    return chapter


def as_recorded() -> Iterator[tuple[Path, str]]:
    """The path of each chapter, and its text with tables made from the records."""
    explored, proven = recorded(EXPLORED), recorded(PROVEN)
    for policy in POLICIES:
        path = chapter_path(policy)
        verdicts = recorded_verdicts(claims_of(policy).registry.rules.values())
        chapter = with_rules(policy, path.read_text(encoding="utf-8"), verdicts)
        chapter = with_starvation(policy, chapter, explored)
        yield path, with_proofs(policy, chapter, proven)
    evidence = with_scores(EVIDENCE.read_text(encoding="utf-8"), recorded(MUTATED))
    yield EVIDENCE, with_releases(evidence, recorded(CONFORMED))
    yield DRIVERS, with_reached(DRIVERS.read_text(encoding="utf-8"), recorded(REACHED))
    yield PROOFS, with_lemmas(PROOFS.read_text(encoding="utf-8"), proven)
    yield RECORDS, with_fields(RECORDS.read_text(encoding="utf-8"))
    yield CONFIGURATION, with_keys(CONFIGURATION.read_text(encoding="utf-8"))


def write_chapters() -> None:
    """Write the tables of all chapters, and the pages about recorded defects."""
    for path, chapter in (*as_recorded(), *defect_pages()):
        with new_file(path) as file:
            file.write(chapter)


def write_measured() -> None:
    """Write what the experiments measure into the chapter on time and cost."""
    chapter = with_measured(TIME.read_text(encoding="utf-8"), all_measured())
    with new_file(TIME) as file:
        file.write(chapter)


if __name__ == "__main__":
    write_measured()
