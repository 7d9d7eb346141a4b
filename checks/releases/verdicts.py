"""Verdicts of campaigns with released schedulers, on record: what held in how many of their steps.

`lockstep conform DRIVER --record` writes the entry of a release, `lockstep rules` quotes them. A
record has, by release, `episodes` and `steps` of the campaign, its `seed`, the `rules` that were
judged, and of those that were broken where that is known in how many steps.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.harness.campaign import Campaign, Plan, own_system

CONFORMED = Path(__file__).parents[1] / "recorded" / "conformed.json"

Record = Mapping[str, Any]


def recorded(path: Path) -> dict[str, Any]:
    """The entries by release; none if there is no record yet."""
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def entry(plan: Plan, seen: Campaign) -> dict[str, Any]:
    """What is worth keeping of a campaign in which nothing unknown was found: no times."""
    return {
        "seed": plan.seed,
        "episodes": seen.episodes,
        "steps": seen.judged,
        "rules": sorted(seen.rules - set(seen.not_evaluated)),
        "broken": dict(sorted(seen.expected.items())),
        "known": dict(sorted(seen.known.items())),
    }


def write_entry(plan: Plan, seen: Campaign, path: Path) -> None:
    """Put the release's entry in the place of its last one."""
    release = own_system(plan.system).hello.release
    content = recorded(path) | {release: entry(plan, seen)}
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def verdicts_on(rule: str, record: Record) -> dict[str, str]:
    """What campaigns say of a rule, by release."""
    verdicts = {}
    for release, one in record.items():
        if rule in one["broken"]:
            verdicts[release] = (
                f"broken in {one['broken'][rule]:,} of {one['steps']:,} steps, as known"
            )
        elif rule in one["rules"]:
            bounds = f"{one['episodes']:,} episodes, {one['steps']:,} steps"
            verdicts[release] = f"holds for {bounds}{_ended_by(one['known'])}"
    return verdicts


def _ended_by(known: Mapping[str, int]) -> str:
    """In how many episodes steps stand unjudged, behind a known difference."""
    met = {id_: times for id_, times in known.items() if times}
    if not met:
        return ""
    return f", of which {', '.join(sorted(met))} ended {sum(met.values()):,} before their end"
