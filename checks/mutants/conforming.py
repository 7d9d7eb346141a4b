"""Random cases that a release served, as trials of the reference of a policy without an engine.

On record is a digest of the steps that the release took in each case. A mutant of the reference
that takes other steps is one that `lockstep conform` would find: the record stands for the release,
which need not be installed. `python -m tests.recorded.make_served DRIVER` writes it.
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
from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparing import Strictness, differences
from checks.harness.comparison import script_of
from checks.harness.policy import evidence_of
from checks.harness.script import Script
from checks.harness.system import Hello, InProcess, Step, System
from checks.mutants.serving import Judged


@frozen
class Conforming(Judged):
    """A random case, always the same: the reference takes the steps that a release took."""

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
        """The digest on record; None: the release has a known difference.

        Raises:
            AssertionError: the steps of the right program have another digest.
        """
        due = self._due
        if due is None:
            return None
        # what follows is a step in which the reference says that the engine ends
        taken = self.served().steps[: self.raises_after]
        found = digest_of(self.policy, taken)
        same = found == (due["digest"] if isinstance(due, Mapping) else due)
        assert same, f"{self.name}: other steps without a mutant; write the record anew"
        return found

    @property
    def raises_after(self) -> int | None:
        """The number of steps after which the release raises, if it does."""
        return self._due["raises_after"] if isinstance(self._due, Mapping) else None

    @property
    def _due(self) -> Any:
        return _on_record(self.policy)["steps"][str(self.episode)]

    def prepare(self) -> None:
        """Keep the case, and the steps that the right program takes in it."""
        _served_right(self)

    def killed_by(self, _verdict: str) -> str | None:
        """The release, if it took other steps."""
        right, evidence = _served_right(self), evidence_of(self.policy)
        look, unreported = evidence.compared[Strictness.EXACT], not_compared(self.policy)
        script = self._script(right.case)
        taken = (script.steps[index] for index, _ in enumerate(script))
        conforms = all(
            due and step and not differences(look, due, step, unreported)
            for due, step in zip_longest(right.steps, taken)
        )
        return None if conforms else f"{self._release} does otherwise"

    def served(self) -> Script:
        """The script of the case, at its end: it has the steps that the reference took."""
        script = self._script(_plan(self.policy).case(self.episode))
        for _ in script:
            pass
        return script

    def _script(self, case: Case) -> Script:
        plan = _plan(self.policy)
        return script_of(plan.system.open(), case, plan.terms_of(self.episode))


def recorded_cases(policy: str) -> Iterator[Conforming]:
    """The cases of the policy that are on record."""
    known = recorded(SERVED).get(policy, {"steps": ()})
    return (Conforming(policy, int(episode)) for episode in known["steps"])


def not_compared(policy: str) -> frozenset[str]:
    """Fields of a step that no driver of the policy reports."""
    return evidence_of(policy).adapter.fields.not_compared(())


def digest_of(policy: str, steps: Iterable[Step]) -> str:
    """A digest of the steps' full lines in a trace, without what no driver reports."""
    unreported = not_compared(policy)
    codec = presentation_of(policy).codec
    lines = (codec.step_as_json(step, full=True) for step in steps)
    seen = [{key: one for key, one in line.items() if key not in unreported} for line in lines]
    text = json.dumps(seen, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _served_right(case: Conforming) -> Script:
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
        known = _on_record(self.policy)
        hello = Hello(
            name=known["driver"],
            release=known["release"],
            policy=self.policy,
            config=known["config"],
            abilities=frozenset(known["abilities"]),
        )
        return InProcess(hello, evidence_of(self.policy).reference)
