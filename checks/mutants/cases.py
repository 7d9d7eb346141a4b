"""Random cases as trials: engine and reference side by side, every rule judged."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

from attrs import frozen

from checks.harness.campaign import Plan, own_system
from checks.harness.comparison import Terms, compare, script_of
from checks.harness.policy import Own, evidence_of
from checks.harness.script import Script
from checks.harness.system import ENGINE, REFERENCE, Action, Step
from checks.mutants.rooms import ROOMS
from spec.core.configuration import PolicyConfig


@frozen
class Fuzzing:
    """A random case, always the same: engine and reference side by side, every rule judged.

    The reference is judged `alone` where the policy has no engine, or that cannot do what is
    pinned. `pin`: a configuration key and its value, which are not drawn.
    """

    policy: str
    episode: int
    pin: tuple[str, str | bool] | None = None
    means = "fuzz"
    rooms = frozenset(ROOMS)

    @property
    def name(self) -> str:
        """Which case."""
        pinned = "" if self.pin is None else " with {}={}".format(*self.pin)
        return f"random case {self.episode} of {self.policy}{pinned}"

    def verdict(self) -> str | None:
        """What is found in the right program, which is nothing.

        Raises:
            AssertionError: it is something.
        """
        found = self._found()
        assert found is None, f"{self.name}: {found} without a mutant"
        return "clean"

    def prepare(self) -> None:
        """Keep what the right program does in the case."""
        _served(self)

    def goes_as_before(self, room: str) -> bool:
        """True if the reference alone, or the engine alone, takes the steps that it took.

        What is compared and judged are these steps, with formulas that are of another room.
        """
        before = _served(self)
        try:
            match room:
                case "reference":
                    return _is_same(self.script(), before.actions, before.script)
                case "engine":
                    return all(
                        one == other
                        for one, other in zip_longest(self.taken(before.actions), before.taken)
                    )
        except Exception:  # it is judged what that comes to
            return False
        return False

    def killed_by(self, _verdict: str) -> str | None:
        """The rule or the kind of difference that is found first."""
        try:
            return self._found()
        except Exception as error:  # in what draws and serves the case, which uses formulas too
            return f"error ({type(error).__name__})"

    def _found(self) -> str | None:
        plan = self._plan
        case, terms = plan.case(self.episode), plan.terms_of(self.episode)
        finding = compare(own_system(plan.system), case, terms).finding
        if finding is None:
            return None
        return finding.rule if finding.broken else str(finding.kind)

    @property
    def _plan(self) -> Plan:
        own = Own(self.policy, REFERENCE if self.alone else ENGINE)
        return Plan(own, terms=Terms(), pinned={} if self.pin is None else dict([self.pin]))

    @property
    def alone(self) -> bool:
        """True if there is no engine to compare the reference with."""
        engine = evidence_of(self.policy).engine
        if engine is None or self.pin is None:
            return engine is None
        key, value = self.pin
        return value not in engine.config.get(key, (value,))

    @property
    def config(self) -> PolicyConfig:
        """The configuration of the case."""
        config: PolicyConfig = self._plan.case(self.episode).config
        return config

    def script(self) -> Script:
        """What the reference is to do in the case."""
        plan = self._plan
        case, terms = plan.case(self.episode), plan.terms_of(self.episode)
        return script_of(own_system(plan.system), case, terms)

    def taken(self, actions: Iterable[Action]) -> Iterator[Any]:
        """The steps that the system takes in the case, or the failure in which they end."""
        plan = self._plan
        return own_system(plan.system).play(plan.case(self.episode), actions)


@frozen
class _Served:
    """What the right program did in a case."""

    script: Script
    actions: Sequence[Action]
    taken: Sequence[Any]


@cache
def _served(case: Fuzzing) -> _Served:
    script = case.script()
    actions = [*script]
    return _Served(script, actions, [*case.taken(iter(actions))])


def _is_same(script: Script, actions: Sequence[Action], before: Script) -> bool:
    """True if the reference takes the steps of before, and stops where it stopped."""
    steps: list[Step] = before.steps
    for index, (one, other) in enumerate(zip_longest(script, actions)):
        if one != other or script.steps[index] != steps[index]:
            return False
    return (script.over, repr(script.error)) == (before.over, repr(before.error))
