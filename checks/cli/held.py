"""The releases that simulated decisions were compared with, in words."""

from collections.abc import Iterator, Sequence
from typing import Any

from checks.evidence import CONFORMED, recorded
from checks.harness.campaigns.drawn import Held, Outside, held_to, is_number
from checks.words import counted, joined
from spec.core.configuration import PolicyConfig

COMPARE = (
    "compare this run: lockstep conform RELEASE --workload FILE, with the same --config and --set"
)
RECORD = "lockstep conform RELEASE --episodes N --record"


def releases_held(config: PolicyConfig) -> list[Held]:
    """The releases on record for the policy of the configuration, see `held_to`."""
    return held_to(config, recorded(CONFORMED))


def held_lines(config: PolicyConfig) -> Iterator[str]:
    """The releases compared in such a configuration; else the nearest, and what it lacked."""
    releases = releases_held(config)
    if not releases:
        yield f"decisions compared with a release: not known, none of {config.policy} is on record"
    within = [held for held in releases if held.is_within]
    for held in within or releases[:1]:
        yield _campaign(held)
        yield from _place(held.outside)
    if not within:
        yield f"  {COMPARE}"


def _campaign(held: Held) -> str:
    known = f", but for {joined(held.known)}" if held.known else ""
    extent = f"{held.steps:,} steps of {counted(held.episodes, 'episode')}"
    return f"decisions compared with {held.release}: equal in {extent}{known}"


def _place(outside: Outside | None) -> Iterator[str]:
    """The place of the configuration in a campaign."""
    if outside is None:
        yield f"  not known whether in such a configuration; this records it: {RECORD}"
    elif outside:
        yield "  not in such a configuration:"
        for key, (value, drawn) in outside.items():
            yield f"    {key} = {_shown(value)}; drawn: {_drawn(drawn)}"
    else:
        yield "  each value of this configuration was drawn in them"


def held_phrase(config: PolicyConfig) -> str:
    """The same for a table: the releases, or the keys that lie outside."""
    releases = releases_held(config)
    within = [held.release for held in releases if held.is_within]
    if within or not releases or releases[0].outside is None:
        return ", ".join(within) or "not known"
    return f"no: {', '.join(releases[0].outside)}"


def _drawn(values: Sequence[Any]) -> str:
    """The drawn values of a key; two numbers are the least and the most."""
    if not values:
        return "no such key"
    is_range = len(values) == 2 and all(map(is_number, values))
    return (" to " if is_range else ", ").join(map(_shown, values))


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    if is_number(value):
        return f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)
