"""Random cases that a release served, as trials of the reference of a policy without an engine.

A record holds a digest of the release's steps in each case. `lockstep conform` would find a mutant
of the reference that takes other steps. The record replaces the release, which need not be
installed. `python -m tests.recorded.make_served DRIVER` writes the record.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

from attrs import frozen

from checks.evidence import SERVED, recorded
from checks.export.policy import presentation_of
from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparing import Strictness, differences
from checks.harness.comparison import script_of
from checks.harness.paths import AnyScript
from checks.harness.policy import evidence_of
from checks.harness.system import Hello, InProcess, Step, System
from checks.mutants.serving import Judged


@frozen
class Conforming(Judged):
    """A random case, always the same: the reference must take the steps of a release."""

    policy: str
    episode: int
    means = "conform"
    rooms = frozenset({"spec", "reference"})

    @property
    def name(self) -> str:
        """The case and the release."""
        return f"random case {self.episode} of {self._release}"

    @property
    def _release(self) -> str:
        release: str = _on_record(self.policy)["release"]
        return release

    def verdict(self) -> str | None:
        """The digest on record; None if the release has a known difference.

        Raises:
            AssertionError: the steps of the right program have another digest.
        """
        due = self._due
        if due is None:
            return None
        # the next step of the reference says that the engine ends
        taken = self.served().steps[: self.raises_after]
        digest = steps_digest(self.policy, taken)
        same = digest == (due["digest"] if isinstance(due, Mapping) else due)
        assert same, f"{self.name}: other steps without a mutant; write the record again"
        return digest

    @property
    def raises_after(self) -> int | None:
        """The number of steps after which the release raises, if it does."""
        return self._due["raises_after"] if isinstance(self._due, Mapping) else None

    @property
    def _due(self) -> Any:
        return _on_record(self.policy)["steps"][str(self.episode)]

    def prepare(self) -> None:
        """Store the case and the steps of the right program."""
        _served_right(self)

    def killer(self, _verdict: str) -> str | None:
        """The release, if its steps differ from the reference's; else None."""
        right, evidence = _served_right(self), evidence_of(self.policy)
        look, unreported = evidence.compared[Strictness.EXACT], not_compared(self.policy)
        script = self._script(right.case)
        taken = (script.steps[index] for index, _ in enumerate(script))
        conforms = all(
            due and step and not differences(look, due, step, unreported)
            for due, step in zip_longest(right.steps, taken)
        )
        return None if conforms else f"{self._release} does otherwise"

    def served(self) -> AnyScript:
        """The script of the case after the run, with the steps of the reference."""
        script = self._script(_plan(self.policy).case(self.episode))
        for _ in script:
            pass
        return script

    def _script(self, case: Case) -> AnyScript:
        plan = _plan(self.policy)
        return script_of(plan.system.open(), case, plan.terms_of(self.episode))


def recorded_cases(policy: str) -> Iterator[Conforming]:
    """The cases of the policy that are on record."""
    entry = recorded(SERVED).get(policy, {"steps": ()})
    return (Conforming(policy, int(episode)) for episode in entry["steps"])


def not_compared(policy: str) -> frozenset[str]:
    """Fields of a step that no driver of the policy reports."""
    return evidence_of(policy).adapter.fields.not_compared(())


def steps_digest(policy: str, steps: Iterable[Step]) -> str:
    """A digest of the steps' full trace lines, without the fields that no driver reports."""
    unreported = not_compared(policy)
    codec = presentation_of(policy).codec
    lines = (codec.step_as_json(step, full=True) for step in steps)
    seen = [{key: value for key, value in line.items() if key not in unreported} for line in lines]
    text = json.dumps(seen, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _served_right(case: Conforming) -> AnyScript:
    return case.served()


# --- the release on record ------------------------------------------------------------------------


@cache
def _on_record(policy: str) -> Mapping[str, Any]:
    """The entry of the policy's release: its hello and its digests."""
    entry: Mapping[str, Any] = recorded(SERVED)[policy]
    return entry


def _plan(policy: str) -> Plan:
    return Plan(_Release(policy))


@frozen
class _Release:
    """A campaign's source: the reference, with the abilities of the release on record."""

    policy: str

    def open(self) -> System:
        """The reference, under the name of the release."""
        entry = _on_record(self.policy)
        hello = Hello(
            name=entry["driver"],
            release=entry["release"],
            policy=self.policy,
            config=entry["config"],
            abilities=frozenset(entry["abilities"]),
        )
        return InProcess(hello, evidence_of(self.policy).reference)
