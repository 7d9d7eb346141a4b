"""A page for each recorded release with its verdicts, and the list of known differences."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.book.drawing import Films
from checks.book.outward import release_links
from checks.book.source import (
    Page,
    bullets,
    code,
    policies,
    rule_page,
    section,
    sections,
    slug,
    table,
)
from checks.evidence import CONFORMED, EXPLORED, recorded
from checks.explore.exploring import sentence
from checks.harness.campaigns.recording import read_recording
from checks.harness.difference import KnownDifference
from checks.harness.finding import Kind
from checks.harness.policy import evidence_of
from checks.registry import RULES
from checks.releases.defects import RECORDED
from checks.releases.recipes import RECIPES, Recipe
from checks.words import counted, sentence_case


def release_page(name: str) -> str:
    """The page of a release, from the root of the book."""
    return f"releases/{slug(name)}.md"


def release_recordings() -> dict[Path, str]:
    """The recordings of the releases on record, with the release; none outside a checkout."""
    releases = {
        path: read_recording(path).hello.release for path in sorted(RECORDED.glob("*.jsonl"))
    }
    return {path: name for path, name in releases.items() if name in recorded(CONFORMED)}


def release_pages(films: Films) -> Iterator[Page]:
    """A page for each release on record, and one that lists all that can be installed."""
    conformed = recorded(CONFORMED)
    yield Page("releases/index.md", _list_page(conformed))
    for name, record in conformed.items():
        yield Page(release_page(name), _page(name, record, _runs_by_rule(name, films), films))


def _runs_by_rule(release: str, films: Films) -> dict[str, str]:
    """By rule, the trace of the release that breaks it first."""
    first: dict[str, tuple[int, str]] = {}
    for path, of in release_recordings().items():
        for rule, frame in films.broken.get(path.name, {}).items() if of == release else ():
            first[rule] = min(first.get(rule, (frame, path.name)), (frame, path.name))
    return {rule: trace for rule, (_, trace) in first.items()}


def _list_page(conformed: Mapping[str, Any]) -> str:
    of_record = [
        (
            f"[{name}]({slug(name)}.md)",
            f"{record['episodes']:,}",
            f"{record['steps']:,}",
            len(record["rules"]),
            len(record["broken"]),
        )
        for name, record in conformed.items()
    ]
    installed = [
        (f"`{recipe.name}`", release_links(recipe.about) or recipe.about, f"`{recipe.file}`")
        for recipe in RECIPES
    ]
    return sections(
        "# Releases",
        "Released schedulers are run as they are, in a process of their own, side by side with the"
        " reference: the same requests, every step compared, every rule judged.",
        table(("release", ">cases", ">steps", ">rules judged", ">broken"), of_record),
        "Ten releases of the plugin, and what each breaks, are compared in"
        " [a chapter of their own](../chapters/releases.md). How a scheduler is connected is said"
        " in [the chapter on drivers](../chapters/drivers.md).",
        section(
            "What can be installed",
            "Each by `lockstep driver install NAME`, into an environment of its own.",
            table(("name", "what it is", "driver"), installed),
        ),
        section("Known differences", *(_differences(policy) for policy in policies())),
    )


def _differences(policy: str) -> str:
    return bullets(
        difference_line(difference) for difference in evidence_of(policy).known_differences
    )


def difference_line(difference: KnownDifference) -> str:
    """A known difference: its id, driver and versions, what differs and why."""
    where = f"{difference.driver} {difference.versions}"
    reason = sentence_case(difference.reason)
    return f"**{difference.id}** ({where}): {difference.says}. {reason}"


def _page(name: str, record: Mapping[str, Any], runs: Mapping[str, str], films: Films) -> str:
    recipes = [recipe for recipe in RECIPES if recipe.about == name]
    broken = (
        sections(
            f"### {rule}",
            f"> {_says(rule)}",
            f"Broken in {counted(times, 'step')}.",
            *_run(rule, runs, films),
        )
        for rule, times in record["broken"].items()
    )
    met = [(id_, f"{times:,}") for id_, times in record["known"].items()]
    holds = [rule for rule in record["rules"] if rule not in record["broken"]]
    return sections(
        f"# {name}",
        release_links(name),
        f"{record['episodes']:,} random cases from seed {record['seed']}, {record['steps']:,}"
        f" steps, each judged by {counted(len(record['rules']), 'rule')} and compared with the"
        " reference in every field that the driver reports. No difference was found that is not"
        " listed here.",
        section("What it breaks", *broken) or "It breaks nothing, in these cases.",
        section(
            "Known differences, and in how many cases they were met",
            table(("difference", ">cases"), met),
        ),
        section("What holds", f"In every judged step: {', '.join(holds)}."),
        *(_again(recipe, record) for recipe in recipes),
    )


def _says(rule: str) -> str:
    if rule == Kind.ENDLESS.value:
        return "The run has no end within the bound on its steps."
    return sentence(rule) if rule in RULES else "The simulated device refuses this."


def _run(rule: str, runs: Mapping[str, str], films: Films) -> Iterator[str]:
    """A recorded run of the release that breaks the rule, else one of the reference."""
    if rule in runs:
        trace = runs[rule]
        yield films.element(trace, slug(rule), root="../", at=films.broken[trace][rule])
        yield f"Recorded in `tests/recorded/{trace}`, beside the reference."
    elif any(rule in record["violations"] for record in recorded(EXPLORED).values()):
        yield f"The reference does so too: [a shortest run](../{_broken_in_reference(rule)})."
    else:
        yield "The campaign below meets it; no case of it is recorded."


def _broken_in_reference(rule: str) -> str:
    return f"{rule_page(rule)}#how-it-is-broken"


def _again(recipe: Recipe, record: Mapping[str, Any]) -> str:
    extent = f"--seed {record['seed']} --episodes {record['episodes']}"
    lines = [f"lockstep driver install {recipe.name}", f"lockstep conform {recipe.name} {extent}"]
    said = "The same cases, drawn from the same seed:"
    return section("Again on your machine", said, code("sh", "\n".join(lines)))
