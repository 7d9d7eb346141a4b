"""A page for each recorded release with its verdicts, and the list of known differences."""

from collections.abc import Iterator, Mapping
from typing import Any

from checks.book.source import (
    Page,
    bullets,
    code,
    policies,
    section,
    sections,
    slug,
    table,
)
from checks.evidence import CONFORMED, recorded
from checks.explore.exploring import sentence
from checks.harness.difference import KnownDifference
from checks.harness.policy import evidence_of
from checks.registry import RULES
from checks.releases.recipes import RECIPES, Recipe
from checks.words import counted, sentence_case


def release_page(name: str) -> str:
    """The page of a release, from the root of the book."""
    return f"releases/{slug(name)}.md"


def release_pages() -> Iterator[Page]:
    """A page for each release on record, and one that lists all that can be installed."""
    conformed = recorded(CONFORMED)
    yield Page("releases/index.md", _list_page(conformed))
    for name, record in conformed.items():
        yield Page(release_page(name), _page(name, record))


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
    installed = [(f"`{recipe.name}`", recipe.about, f"`{recipe.file}`") for recipe in RECIPES]
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


def _page(name: str, record: Mapping[str, Any]) -> str:
    recipes = [recipe for recipe in RECIPES if recipe.about == name]
    broken = [
        f"{rule}, in {times:,} steps: {_says(rule)}" for rule, times in record["broken"].items()
    ]
    met = [(id_, f"{times:,}") for id_, times in record["known"].items()]
    holds = [rule for rule in record["rules"] if rule not in record["broken"]]
    return sections(
        f"# {name}",
        f"{record['episodes']:,} random cases from seed {record['seed']}, {record['steps']:,}"
        f" steps, each judged by {counted(len(record['rules']), 'rule')} and compared with the"
        " reference in every field that the driver reports. No difference was found that is not"
        " listed here.",
        section("What it breaks", bullets(broken) or "Nothing, in these cases."),
        section(
            "Known differences, and in how many cases they were met",
            table(("difference", ">cases"), met),
        ),
        section("What holds", f"In every judged step: {', '.join(holds)}."),
        *(_again(recipe) for recipe in recipes),
    )


def _says(rule: str) -> str:
    return sentence(rule) if rule in RULES else "refused by the simulated device."


def _again(recipe: Recipe) -> str:
    lines = [f"lockstep driver install {recipe.name}", f"lockstep conform {recipe.name}"]
    return section("Again on your machine", code("sh", "\n".join(lines)))
