"""The list of mutants that no check can kill, because they change nothing that can be seen."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from spec.core.errors import InputError

LIST = Path(__file__).with_name("equivalents.toml")


def equivalents(path: Path = LIST) -> Mapping[str, str]:
    """Why mutants are equivalent, by id.

    Raises:
        InputError: an id stands there twice, or without a reason.
    """
    reasons: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", ()):
        for id_ in entry["mutants"]:
            if id_ in reasons or not entry.get("reason"):
                raise InputError("mutants", id_, "each id once, with a reason").at(path)
            reasons[id_] = entry["reason"]
    return reasons


def refuse_stale(reasons: Mapping[str, str], known: Collection[str], path: Path = LIST) -> None:
    """Raise if a listed mutant is none any more.

    Raises:
        InputError: there is one.
    """
    for id_ in reasons:
        if id_ not in known:
            raise InputError("mutants", id_, "ids of mutants; see --list").at(path)
