"""The list of equivalent mutants: they change no observable behaviour, so no check can kill them.

Each entry has the reason why the mutants are equivalent, and for each the experiment that tried to
kill it: the trials that run its code and found no difference. `lockstep mutants --equivalents
--record` writes the experiments.
"""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from checks.export.files import new_file
from checks.mutants.killing import STATES, Outcome
from spec.core.errors import InputError

LIST = Path(__file__).with_name("equivalents.toml")
_WORDS = {
    "explore": "instances",
    "run": "runs",
    "fuzz": "random cases",
    "prove": "obligations",
    "conform": "cases of a release",
}


def equivalents(path: Path = LIST) -> Mapping[str, str]:
    """By mutant id, the reason why it is equivalent.

    Raises:
        InputError: an id is listed twice or without a reason, or an entry does not have one
            experiment for each mutant.
    """
    reasons: dict[str, str] = {}
    for entry in _entries(path):
        for id_ in entry["mutants"]:
            if id_ in reasons or not entry.get("reason"):
                raise InputError("mutants", id_, "each id once, with a reason").at(path)
            reasons[id_] = entry["reason"]
        if len(entry.get("tried", entry["mutants"])) != len(entry["mutants"]):
            raise InputError("tried", len(entry["tried"]), "one text for each mutant").at(path)
    return reasons


def experiments(path: Path = LIST) -> Mapping[str, str]:
    """By mutant id, the text of its experiment; empty if it was not tried."""
    return {
        id_: tried
        for entry in _entries(path)
        for id_, tried in zip(entry["mutants"], _tried(entry), strict=True)
    }


def write_experiments(experiments: Mapping[str, str], path: Path = LIST) -> None:
    """Write new experiments into the list; the other entries are unchanged."""
    head = path.read_text(encoding="utf-8").partition("[[")[0]
    text = head + "\n".join(_written(entry, experiments) for entry in _entries(path))
    with new_file(path) as file:
        file.write(text)


def _entries(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"]
    return entries


def _tried(entry: Mapping[str, Any]) -> Sequence[str]:
    tried: Sequence[str] = entry.get("tried", [""] * len(entry["mutants"]))
    return tried


def _written(entry: Mapping[str, Any], experiments: Mapping[str, str]) -> str:
    both = zip(entry["mutants"], _tried(entry), strict=True)
    tried = [experiments.get(id_, before) for id_, before in both]
    return "".join(
        [
            "[[equivalent]]\n",
            _list("mutants", entry["mutants"]),
            f"reason = {_quoted(entry['reason'])}\n",
            _list("tried", tried) if any(tried) else "",
        ]
    )


def _list(key: str, texts: Sequence[str]) -> str:
    return f"{key} = [\n" + "".join(f"  {_quoted(text)},\n" for text in texts) + "]\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def refuse_stale(reasons: Mapping[str, str], known: Collection[str], path: Path = LIST) -> None:
    """Refuse a list with a mutant that does not exist any more.

    Raises:
        InputError: the list has such a mutant.
    """
    for id_ in reasons:
        if id_ not in known:
            raise InputError("mutants", id_, "ids of mutants; see --list").at(path)


# --- what was tried -------------------------------------------------------------------------------


@frozen
class Experiment:
    """The outcome of a mutant in each stage; None if it was not tried in the stage.

    `fingerprint`: of the program in which the mutant was tried.
    """

    fingerprint: str
    stages: Sequence[Outcome | None]

    @property
    def is_begun(self) -> bool:
        """True if the mutant was tried in some stage."""
        return any(outcome is not None for outcome in self.stages)

    @property
    def killed(self) -> Outcome | None:
        """The first outcome in which the mutant was killed; None if it survived."""
        done = (outcome for outcome in self.stages if outcome is not None)
        return next((outcome for outcome in done if not outcome.is_alive), None)

    def __str__(self) -> str:
        """The text in the list; it begins with the fingerprint."""
        done = [outcome for outcome in self.stages if outcome is not None]
        counts: dict[str, int] = {}
        for outcome in done:
            for means, count in outcome.tried.items():
                counts[means] = counts.get(means, 0) + count
        states = f" of {counts[STATES]:,} states" if STATES in counts else ""
        parts = [
            f"{counts[means]:,} {word}{states if means == 'explore' else ''}"
            for means, word in _WORDS.items()
            if means in counts
        ]
        result = f"no difference in {', '.join(parts)}" if parts else "no trial runs it"
        left = len(self.stages) - len(done)
        stages = "1 stage is" if left == 1 else f"{left} stages are"
        return f"{self.fingerprint}: {result}" + (f"; {stages} left to try" if left else "")
