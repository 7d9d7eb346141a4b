"""The configurations in which a release was compared with the reference.

A campaign notes each value that its cases had of each key. Its record keeps, of numbers, the least
and the most, of switches and variants all. A configuration lies inside the campaign if each of its
values does; that its values were drawn together is not said.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

from attrs import asdict, fields, frozen

from checks.harness.comparing import plain_json
from checks.registry import claims_of
from spec.core.configuration import PolicyConfig

Outside: TypeAlias = Mapping[str, tuple[Any, Sequence[Any]]]  # by key, its value and those drawn

_NOT_DECISIVE = ("policy", "prefill_time", "decode_time")  # the clock charges these times


def decisive_keys(config: PolicyConfig) -> dict[str, Any]:
    """The keys that a step's decisions depend on; absent numbers as what they come to."""
    values = asdict(config) | config.derived()
    return {name: plain_json(value) for name, value in values.items() if name not in _NOT_DECISIVE}


def summarised(values: Iterable[Any]) -> list[Any]:
    """Drawn values of a key, for the record: all that are no numbers, the least and the most."""
    numbers = [value for value in values if is_number(value)]
    others = sorted({value for value in values if not is_number(value)}, key=str)
    return others + sorted({min(numbers), max(numbers)} if numbers else ())


@frozen
class Held:
    """A release that decisions were compared with, and the keys whose values it never had.

    `episodes`, `steps`: of the campaign on record. `known`: the differences that ended some of its
    episodes. `outside`: by key, the value of the configuration and those that were drawn; None if
    the record does not have them.
    """

    release: str
    episodes: int
    steps: int
    known: tuple[str, ...]
    outside: Outside | None

    @property
    def is_within(self) -> bool:
        """True if the campaign had every value of the configuration."""
        return self.outside is not None and not self.outside

    def as_mapping(self) -> dict[str, Any]:
        """The fields as JSON values."""
        outside: dict[str, Any] | None = None
        if self.outside is not None:
            outside = {
                key: {"value": value, "drawn": list(drawn)}
                for key, (value, drawn) in self.outside.items()
            }
        return {
            "release": self.release,
            "episodes": self.episodes,
            "steps": self.steps,
            "known": list(self.known),
            "outside": outside,
        }


def held_to(config: PolicyConfig, record: Mapping[str, Any]) -> list[Held]:
    """The releases of the policy on record, those with the fewest keys outside first.

    They are those of which its rules were judged.
    """
    rules = claims_of(config.policy).registry.rules
    releases = [
        Held(
            release=release,
            episodes=entry["episodes"],
            steps=entry["steps"],
            known=tuple(sorted(id_ for id_, times in entry["known"].items() if times)),
            outside=_outside(config, entry["drawn"]) if "drawn" in entry else None,
        )
        for release, entry in record.items()
        if rules.keys() >= set(entry["rules"])
    ]
    return sorted(releases, key=_distance)


def _distance(held: Held) -> tuple[float, int]:
    return inf if held.outside is None else len(held.outside), -held.steps


def _outside(config: PolicyConfig, drawn: Mapping[str, Sequence[Any]]) -> Outside:
    """The keys whose values were not drawn; one that is not on record was at its default."""
    names, outside = fields(type(config)), {}
    for key, value in decisive_keys(config).items():
        known = drawn.get(key, (plain_json(getattr(names, key).default),))
        if not _lies_within(value, known):
            outside[key] = value, known
    return outside


def _lies_within(value: Any, drawn: Sequence[Any]) -> bool:
    if not is_number(value):
        return value in drawn
    numbers = [other for other in drawn if is_number(other)]
    return bool(numbers) and min(numbers) <= value <= max(numbers)


def is_number(value: Any) -> bool:
    """True for a number that is no switch."""
    return isinstance(value, int | float) and not isinstance(value, bool)
