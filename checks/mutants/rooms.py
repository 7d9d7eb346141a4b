"""Which modules are mutated: the claims, machines and engines of each policy."""

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from checks.mutants.sites import Mutant, mutants_of
from checks.registry import POLICIES

ROOT = Path(__file__).parents[2]
INSTALLED_IN = "".join(f"{one}." for one in __name__.split(".")[:-3])  # of a checkout nothing
CORE = "core"  # in place of a policy: what several share

ROOMS = {
    "spec": "formulas",
    "reference": "transitions and steps",
    "engine": "decisions",
}

# What of these rooms is not mutated, by the beginning of a mutant's id, and why not.
LEFT_OUT = {
    "spec/*/rules/": "the rules are what judges",
    "spec/core/rule.py": "the rules are what judges",
    "spec/core/judging.py": "rules look with it",
    "spec/core/changes.py": "rules look with it",
    "spec/core/errors.py": "the words of errors",
    "spec/core/sharing.py": "maps that are copied cheaply: no formula",
    "spec/core/records.py": "what a step is recorded with: no formula",
    "spec/core/configuration.py:typed": "keys are checked before anything runs",
    "spec/core/configuration.py:_": "keys are checked before anything runs",
    "spec/core/configuration.py:checked_keys": "keys are checked before anything runs",
    "spec/core/requests.py:stream_tokens": "the tokens of requests, whatever they are",
    "spec/core/requests.py:cached_value": "the simulated model",
    "spec/core/requests.py:attended_sum": "the simulated model",
    "spec/core/requests.py:sampled_token": "the simulated model",
    "spec/core/requests.py:Prompt": "the tokens of requests, whatever they are",
    "spec/core/requests.py:_part": "the tokens of requests, whatever they are",
    "spec/core/requests.py:Request.": "the tokens of requests, whatever they are",
    "spec/core/requests.py:BlockKeys.forget": "what is kept to be quick",
    "spec/*/config.py:documented": "names for sets of keys",
    "spec/*/config.py:repaired": "names for sets of keys",
    "reference/core/guards.py": "a guard refuses nothing in a machine that is right",
    "reference/*/model_input.py": "the tensors of a step, held against those the device judges",
    "spec/*/records.py:Step.kind": "a word for a step in tables and figures",
    "spec/*/records.py:Sequence.decodes": "asked for that word, and for the simulated clock",
    "engine/*/device": "the device judges the engine",
    "engine/*/observing.py": "what the engine shows of itself, compared field by field",
    "engine/*/model_input.py": "the tensors of a step: the device judges them",
    "engine/*/serving.py": "it serves a workload with a scheduler and decides nothing",
    "engine/core/serving.py": "it serves a workload with a scheduler and decides nothing",
    "engine/core/observing.py": "what an engine shows of itself, compared field by field",
    "engine/core/clock.py": "what steps cost: a measure, no decision",
    "engine/core/metrics.py": "figures of runs: measures, no decision",
    "engine/core/tensors.py": "the tokens of requests, whatever they are",
    "engine/core/cache.py": "the device judges the engine",
    "engine/core/faults.py": "the device judges the engine",
}


@frozen
class Module:
    """A module that is mutated: of which room and policy, and where."""

    room: str
    policy: str
    path: Path

    @property
    def group(self) -> str:
        """Of which room and policy it is, as one name."""
        return f"{self.room}, {self.policy}"

    @property
    def name(self) -> str:
        """Its path from the root, as ids have it."""
        return self.path.relative_to(ROOT).as_posix()

    def mutants(self) -> Iterator[Mutant]:
        """Its mutants, without those that are left out."""
        for mutant in mutants_of(self.path.read_text(encoding="utf-8"), self.name):
            if not is_left_out(mutant.id):
                yield mutant


def modules() -> Iterator[Module]:
    """Every module of the rooms that belongs to a policy, or to what they share."""
    packages = {CORE: CORE, **{name: name.replace("-", "_") for name in POLICIES}}
    for room in ROOMS:
        for policy, package in packages.items():
            for path in sorted((ROOT / room / package).rglob("*.py")):
                yield Module(room, policy, path)


def policy_of_mutant(mutant: Mutant) -> str:
    """The policy whose package the mutant is in, or `CORE`."""
    return Path(mutant.path).parts[1].replace("_", "-")


def is_left_out(id_: str) -> bool:
    """True if the beginning of the id is in the table of what is left out."""
    room, _, rest = id_.partition("/")
    anywhere = f"{room}/*/{rest.partition('/')[2]}"
    return any(one.startswith(tuple(LEFT_OUT)) for one in (id_, anywhere))
