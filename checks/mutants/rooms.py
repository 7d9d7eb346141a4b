"""The mutated modules: claims, machines and engines of each policy."""

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from checks.mutants.sites import Mutant, find_mutants
from checks.registry import POLICIES

ROOT = Path(__file__).parents[2]
PACKAGE_PREFIX = "".join(f"{part}." for part in __name__.split(".")[:-3])  # empty in a checkout
CORE = "core"  # instead of a policy: modules that several policies share

ROOMS = {
    "spec": "formulas",
    "reference": "transitions and steps",
    "engine": "decisions",
}

# Excluded mutants: the beginning of their ids, and the reason.
EXCLUDED = {
    "spec/*/rules/": "the rules are what judges",
    "spec/core/rule.py": "the rules are what judges",
    "spec/core/judging.py": "used only by rules",
    "spec/core/errors.py": "the words of errors",
    "spec/core/records.py": "what a step is recorded with: no formula",
    "spec/core/configuration.py:typed": "keys are checked before anything runs",
    "spec/core/configuration.py:_": "keys are checked before anything runs",
    "spec/core/configuration.py:checked_keys": "keys are checked before anything runs",
    "spec/core/requests.py:stream_tokens": "token values: no decision depends on them",
    "spec/core/requests.py:cached_value": "the simulated model",
    "spec/core/requests.py:attended_sum": "the simulated model",
    "spec/core/requests.py:sampled_token": "the simulated model",
    "spec/core/requests.py:Prompt": "token values: no decision depends on them",
    "spec/core/requests.py:_part": "token values: no decision depends on them",
    "spec/core/requests.py:Request.": "token values: no decision depends on them",
    "spec/*/config.py:documented": "names for sets of keys",
    "spec/*/config.py:repaired": "names for sets of keys",
    "reference/core/frozen_map.py": "a map that never changes: no formula",
    "reference/core/guards.py": "a guard refuses nothing in a machine that is right",
    "reference/*/model_input.py": "the tensors of a step, compared with those on the device",
    "spec/*/records.py:Step.kind": "a word for a step in tables and figures",
    "spec/*/records.py:Sequence.decodes": "asked for that word, and for the simulated clock",
    "engine/*/device": "the device judges the engine",
    "engine/*/observing.py": "what the engine shows of itself, compared field by field",
    "engine/*/model_input.py": "the tensors of a step: the device judges them",
    "engine/*/serving.py": "it serves a workload with a scheduler and decides nothing",
    "engine/core/serving.py": "it serves a workload with a scheduler and decides nothing",
    "engine/core/sharing.py": "maps and orders that share their parts: no decision",
    "engine/core/observing.py": "what an engine shows of itself, compared field by field",
    "engine/core/clock.py": "what steps cost: a measure, no decision",
    "engine/core/metrics.py": "figures of runs: measures, no decision",
    "engine/core/tensors.py": "token values: no decision depends on them",
    "engine/core/cache.py": "the device judges the engine",
    "engine/core/faults.py": "the device judges the engine",
}


@frozen
class Module:
    """A mutated module: its path, its room (spec, reference or engine) and its policy."""

    room: str
    policy: str
    path: Path

    @property
    def group(self) -> str:
        """The names of room and policy as one text."""
        return f"{self.room}, {self.policy}"

    @property
    def name(self) -> str:
        """Its path from the root, as in the ids of mutants."""
        return self.path.relative_to(ROOT).as_posix()

    def mutants(self) -> Iterator[Mutant]:
        """Its mutants, without the excluded ones."""
        for mutant in find_mutants(self.path.read_text(encoding="utf-8"), self.name):
            if not is_excluded(mutant.id):
                yield mutant


def modules() -> Iterator[Module]:
    """Every module of the rooms that belongs to a policy or to `CORE`."""
    packages = {CORE: CORE, **{name: name.replace("-", "_") for name in POLICIES}}
    for room in ROOMS:
        for policy, package in packages.items():
            for path in sorted((ROOT / room / package).rglob("*.py")):
                yield Module(room, policy, path)


def policy_of_mutant(mutant: Mutant) -> str:
    """The policy whose package the mutant is in, or `CORE`."""
    return Path(mutant.path).parts[1].replace("_", "-")


def is_excluded(id_: str) -> bool:
    """True if the id begins with an entry of `EXCLUDED`."""
    room, _, rest = id_.partition("/")
    anywhere = f"{room}/*/{rest.partition('/')[2]}"
    return any(name.startswith(tuple(EXCLUDED)) for name in (id_, anywhere))
