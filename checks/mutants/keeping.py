"""Saved verdicts of trials on the right program, and saved outcomes of mutants.

To try them all takes minutes, and the outcome is the same until a source changes.
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
from checks.export.kept import kept_folder, sealed, unsealed
from checks.mutants.killing import Outcome
from checks.mutants.rooms import CORE, ROOMS, policy_of_mutant
from checks.mutants.sites import Mutant
from checks.mutants.trials import Explored, Trial, Tried, tried_now
from checks.registry import POLICIES

_TRIALS = (
    *("cases", "conforming", "killing", "operators", "planting"),
    *("reach", "rooms", "serving", "sites", "trials"),
)
_USED = (
    *ROOMS,
    *(f"checks/{part}" for part in ("registry.py", "explore", "harness", "policies", "proofs")),
    *(f"checks/mutants/{module}.py" for module in _TRIALS),
    "checks/recorded/served.json",
)


def fingerprint(policy: str, *others: str) -> str:
    """A digest of all sources that an outcome of the policy's mutants depends on; `CORE`: of all.

    These are the mutated code, rules, instances, generators, obligations and the trials. An outcome
    with another fingerprint is stale. `others`: further parts of the checkout.
    """
    packages = {name: name.replace("-", "_") for name in POLICIES}
    foreign = [package for name, package in packages.items() if name != policy]
    without = () if policy == CORE else tuple(sorted(foreign))
    return sources_digest(*_USED, *others, without=without)


@define
class Kept:
    """Saved trials of the right program with these sources: a file for each policy."""

    _known: dict[str, dict[str, Any]] = field(factory=dict, init=False)

    def tried(self, trials: Sequence[Trial]) -> list[Tried]:
        """The tried trials; those that are not saved are tried on all cores."""
        missing = [trial for trial in trials if repr(trial) not in self._verdicts(trial.policy)]
        new = set[str]()
        try:
            for tried in tried_now(missing):
                self._verdicts(tried.trial.policy)[repr(tried.trial)] = _as_json(tried)
                new.add(tried.trial.policy)
        finally:
            for policy in new:
                with new_file(_path(policy)) as file:
                    file.write(sealed(json.dumps(self._verdicts(policy)).encode()).decode())
        return [_from_json(trial, self._verdicts(trial.policy)[repr(trial)]) for trial in trials]

    def _verdicts(self, policy: str) -> dict[str, Any]:
        """The saved trials of the policy, by their texts."""
        if policy not in self._known:
            self._known[policy] = {}
            with suppress(FileNotFoundError):
                whole = unsealed(_path(policy).read_bytes())
                self._known[policy] = {} if whole is None else json.loads(whole)
        return self._known[policy]


@cache
def _path(policy: str) -> Path:
    """The file of these sources and of this Python, which numbers the lines of code objects."""
    folder = kept_folder("mutants", f"{fingerprint(policy)}-{sys.implementation.cache_tag}")
    return folder / f"{policy}.json"


class KeptOutcomes:
    """Outcomes of mutants in stages: a file for each policy's fingerprint, a line for each outcome.

    Each line is written at once, so that a crash loses one line at most.
    """

    def __init__(self, *others: str) -> None:
        """`others`: as for `fingerprint`."""
        self._others = others
        self._known: dict[Path, dict[tuple[int, str], list[Any]]] = {}

    def of(self, stage: int, mutant: Mutant) -> Outcome | None:
        """The saved outcome of the mutant in this stage."""
        said = self._in(self._path(mutant)).get((stage, mutant.id))
        return None if said is None else Outcome(mutant, *said)

    def note(self, stage: int, outcome: Outcome) -> None:
        """Save an outcome: a line at the end of the file."""
        path = self._path(outcome.mutant)
        said = [outcome.by, outcome.means, outcome.trial, outcome.tried]
        self._in(path)[stage, outcome.mutant.id] = said
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([stage, outcome.mutant.id, *said])}")

    def _path(self, mutant: Mutant) -> Path:
        folder = kept_folder("mutants", fingerprint(policy_of_mutant(mutant), *self._others))
        return folder / "outcomes.jsonl"

    def _in(self, path: Path) -> dict[tuple[int, str], list[Any]]:
        """The saved outcomes of the file."""
        if path not in self._known:
            known = self._known[path] = {}
            with suppress(FileNotFoundError):
                for line in path.read_bytes().splitlines():
                    with suppress(ValueError, TypeError):  # damaged, or the last without its end
                        stage, id_, *said = json.loads(line)
                        known[stage, id_] = said
        return self._known[path]


# --- as JSON --------------------------------------------------------------------------------------


def _as_json(tried: Tried) -> dict[str, Any]:
    entry = asdict(tried, filter=lambda key, _: key.name != "trial", value_serializer=_listed)
    return entry | {"lines": {path: _ranges(sorted(some)) for path, some in tried.lines.items()}}


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
    """The first and last number of each consecutive range, in one list."""
    ranges: list[int] = []
    for number in numbers:
        if ranges and ranges[-1] == number - 1:
            ranges[-1] = number
        else:
            ranges += [number, number]
    return ranges


def _numbers(ranges: Sequence[int]) -> Iterator[int]:
    for first, last in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(first, last + 1)
