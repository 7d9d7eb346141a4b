"""What trials say of the right program, and of mutants, kept from one call to the next.

To try them all takes minutes, and says the same until a source changes that they use.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from checks.export.checkpoint import sources_digest
from checks.export.files import new_file
from checks.export.kept import kept_folder
from checks.mutants.killing import Outcome
from checks.mutants.rooms import ROOMS
from checks.mutants.sites import Mutant
from checks.mutants.trials import Explored, Trial, Tried, tried_now

_TRIALS = ("cases", "conforming", "keeping", "reach", "rooms", "serving", "trials")
_USED = (
    *ROOMS,
    *(f"checks/{one}" for one in ("explore", "harness", "policies", "proofs")),
    *(f"checks/mutants/{one}.py" for one in _TRIALS),
    "checks/recorded/served.json",
)
_ALL = (*ROOMS, "checks", "checks/recorded/served.json")


@define
class Kept:
    """Trials of the right program, as they were tried with these sources: of each policy a file."""

    _known: dict[str, dict[str, Any]] = field(factory=dict, init=False)

    def tried(self, trials: Sequence[Trial]) -> list[Tried]:
        """Each of the trials, tried on all cores if it was not before."""
        missing = [one for one in trials if repr(one) not in self._of(one.policy)]
        new = set[str]()
        try:
            for one in tried_now(missing):
                self._of(one.trial.policy)[repr(one.trial)] = _as_json(one)
                new.add(one.trial.policy)
        finally:
            for policy in new:
                with new_file(_path(policy)) as file:
                    json.dump(self._of(policy), file)
        return [_from_json(one, self._of(one.policy)[repr(one)]) for one in trials]

    def _of(self, policy: str) -> dict[str, Any]:
        """The policy's trials."""
        if policy not in self._known:
            self._known[policy] = {}
            with suppress(FileNotFoundError):
                self._known[policy] = json.loads(_path(policy).read_text(encoding="utf-8"))
        return self._known[policy]


@cache
def _path(policy: str) -> Path:
    """Of these sources, and of a Python that counts lines as this one does."""
    folder = kept_folder("mutants", f"{sources_digest(*_USED)}-{sys.implementation.cache_tag}")
    return folder / f"{policy}.json"


class KeptOutcomes:
    """What became of mutants in stages with these sources: lines of a file, written as they come.

    Whatever ends the work, a kill included, costs one line at the most.
    """

    def __init__(self, *others: str) -> None:
        """Reads what is kept. `others`: parts of the checkout that count as sources, too."""
        self._path = kept_folder("mutants", sources_digest(*_ALL, *others)) / "outcomes.jsonl"
        self._known: dict[tuple[int, str], list[Any]] = {}
        with suppress(FileNotFoundError):
            for line in self._path.read_text(encoding="utf-8").splitlines():
                with suppress(json.JSONDecodeError):  # the last one, if its end is missing
                    stage, id_, *said = json.loads(line)
                    self._known[stage, id_] = said

    def of(self, stage: int, mutant: Mutant) -> Outcome | None:
        """What is known of the mutant in this stage."""
        said = self._known.get((stage, mutant.id))
        return None if said is None else Outcome(mutant, *said)

    def note(self, stage: int, outcome: Outcome) -> None:
        """Keep an outcome: a line at the end of the file."""
        said = [outcome.by, outcome.means, outcome.trial, outcome.reached]
        self._known[stage, outcome.mutant.id] = said
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([stage, outcome.mutant.id, *said])}")


# --- as JSON --------------------------------------------------------------------------------------


def _as_json(one: Tried) -> dict[str, Any]:
    found = asdict(one, filter=lambda key, _: key.name != "trial", value_serializer=_listed)
    return found | {"lines": {path: _ranges(sorted(some)) for path, some in one.lines.items()}}


def _listed(_instance: object, _key: object, value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value


def _from_json(trial: Trial, known: Mapping[str, Any]) -> Tried:
    verdict = known["verdict"]
    if isinstance(verdict, dict):
        states = verdict["states"]
        others = {key: frozenset(some) for key, some in verdict.items() if key != "states"}
        verdict = Explored(states=states, **others)
    lines = {path: frozenset(_numbers(ranges)) for path, ranges in known["lines"].items()}
    return Tried(trial, verdict, known["seconds"], known["calls"], lines)


def _ranges(numbers: Sequence[int]) -> list[int]:
    """First and last of each run of numbers, one after the other."""
    found: list[int] = []
    for one in numbers:
        if found and found[-1] == one - 1:
            found[-1] = one
        else:
            found += [one, one]
    return found


def _numbers(ranges: Sequence[int]) -> Iterator[int]:
    for first, last in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(first, last + 1)
