"""Random cases that a release served, as trials of the reference of a policy without an engine.

On record is a digest of the steps that the release took in each case. A reference that takes others
differs from it, which `lockstep conform` would say: the record stands for the release where that is
absent. `python -m tests.recorded.make_served DRIVER` writes it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any

from attrs import fields, frozen, has

from checks.evidence import SERVED, recorded
from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparing import Look, Strictness
from checks.harness.comparison import script_of
from checks.harness.script import Script
from checks.harness.system import Hello, InProcess, Step, System
from checks.mutants.serving import Judged
from checks.policies import AnyPolicy, policy_named


@frozen
class Conforming(Judged):
    """A random case, always the same: the reference takes the steps that a release took."""

    policy: str
    episode: int
    means = "conform"
    rooms = frozenset({"spec", "reference"})

    @property
    def name(self) -> str:
        """Which case, and of which release."""
        return f"random case {self.episode} of {_on_record(self.policy)['release']}"

    def verdict(self) -> str | None:
        """The digest on record; None: the release is known to do otherwise, or refuses the case.

        Raises:
            AssertionError: it is not that of the steps of the right program.
        """
        due: str | None = _on_record(self.policy)["steps"][self.episode]
        if due is not None:
            found = digest_of(self.served().steps)
            assert found == due, f"{self.name}: other steps without a mutant; write the record anew"
        return due

    def prepare(self) -> None:
        """Keep the case, and the steps that the right program takes in it."""
        _right(self)

    def killed_by(self, _verdict: str) -> str | None:
        """The release, if it took other steps."""
        right = _right(self)
        look, script = _look(policy_named(self.policy)), self._script(right.case)
        for index, _ in enumerate(script):
            if index == len(right.steps) or look(script.steps[index]) != right.steps[index]:
                return self._otherwise
        return None if len(script.steps) == len(right.steps) else self._otherwise

    @property
    def _otherwise(self) -> str:
        return f"{_on_record(self.policy)['release']} does otherwise"

    def served(self) -> "Served":
        """The case, and what the reference does in it."""
        case = _plan(self.policy).case(self.episode)
        script = self._script(case)
        for _ in script:
            pass
        return Served(case, compared(policy_named(self.policy), script.steps))

    def _script(self, case: Case) -> Script:
        plan = _plan(self.policy)
        return script_of(plan.system.open(), case, plan.terms_of(self.episode))


def recorded_cases(policy: str) -> Iterator[Conforming]:
    """Those of the policy that are on record."""
    known = recorded(SERVED).get(policy, {"steps": ()})
    return (Conforming(policy, episode) for episode in range(len(known["steps"])))


@cache
def _on_record(policy: str) -> Mapping[str, Any]:
    """What is on record of the policy's release: how it says hello, and its digests."""
    entry: Mapping[str, Any] = recorded(SERVED)[policy]
    return entry


@frozen
class Served:
    """A case, and all that is compared of each of the steps in which it is served."""

    case: Case
    steps: Sequence[Mapping[str, Any]]


@cache
def _right(one: Conforming) -> Served:
    return one.served()


def _plan(policy: str) -> Plan:
    return Plan(_Release(policy))


@frozen
class _Release:
    """From where a campaign has a system that can do what the release on record can do."""

    policy: str

    def open(self) -> System:
        """The reference, under the name of the release."""
        known, policy = _on_record(self.policy), policy_named(self.policy)
        hello = Hello(
            name=known["driver"],
            release=known["release"],
            policy=self.policy,
            config=known["config"],
            abilities=frozenset(known["abilities"]),
        )
        return InProcess(hello, policy.reference)


# --- digests --------------------------------------------------------------------------------------


def compared(policy: AnyPolicy, steps: Iterable[Step]) -> list[Mapping[str, Any]]:
    """All in these steps that a driver reports that leaves nothing out, by name."""
    look = _look(policy)
    return [look(step) for step in steps]


def _look(policy: AnyPolicy) -> Look:
    everything = policy.compared[Strictness.EXACT]
    left_out = policy.adapter.fields.not_compared(())
    return lambda step: {
        name: value for name, value in everything(step).items() if name not in left_out
    }


def digest_of(seen: Iterable[Mapping[str, Any]]) -> str:
    """A digest of what there is to compare of some steps."""
    text = json.dumps([_plain(one) for one in seen], sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """The value as JSON has it: equal ones alike, whatever their order in memory is."""
    if has(type(value)):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(type(value))}
    if isinstance(value, Mapping):
        return sorted([str(_plain(key)), _plain(one)] for key, one in value.items())
    if isinstance(value, Set):
        return sorted(map(_plain, value))
    if isinstance(value, (list, tuple)):
        return [*map(_plain, value)]
    if isinstance(value, bytes):
        return value.hex()
    return value.value if isinstance(value, Enum) else value
