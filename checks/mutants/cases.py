"""Random cases as trials: engine and reference are compared, and every rule is judged."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

from attrs import frozen

from checks.harness.campaigns.campaign import Plan, own_system
from checks.harness.comparison import Terms, compare, script_of
from checks.harness.paths import AnyScript
from checks.harness.policy import Own, evidence_of
from checks.harness.system import ENGINE, REFERENCE, Action, Step
from checks.mutants.rooms import ROOMS
from spec.core.configuration import PolicyConfig


@frozen
class Fuzzing:
    """A random case, always the same: engine and reference are compared, every rule is judged.

    The reference is judged `alone` if the policy has no engine or the engine does not support the
    pinned value. `pin`: a configuration key and its value, which are not drawn.
    """

    policy: str
    episode: int
    pin: tuple[str, str | bool] | None = None
    means = "fuzz"
    rooms = frozenset(ROOMS)

    @property
    def name(self) -> str:
        """The name of the case."""
        pinned = "" if self.pin is None else " with {}={}".format(*self.pin)
        return f"random case {self.episode} of {self.policy}{pinned}"

    def verdict(self) -> str | None:
        """Check that the right program passes.

        Raises:
            AssertionError: the right program breaks a rule, or engine and reference differ.
        """
        finding = self._finding()
        assert finding is None, f"{self.name}: {finding} without a mutant"
        return "clean"

    def prepare(self) -> None:
        """Store the steps of the right program in the case."""
        _served(self)

    def is_unchanged(self, room: str) -> bool:
        """True if the mutated reference or engine takes the same steps as the right one.

        These steps are compared and judged with formulas of another room, which are right.
        """
        before = _served(self)
        try:
            match room:
                case "reference":
                    return _is_same(self.script(), before.actions, before.script)
                case "engine":
                    steps = zip_longest(self.taken(before.actions), before.taken)
                    return all(step == right_step for step, right_step in steps)
        except Exception:  # judging decides what the error means
            return False
        return False

    def killer(self, _verdict: str) -> str | None:
        """The first broken rule or kind of difference; None if there is none."""
        try:
            return self._finding()
        except Exception as error:  # drawing and serving the case use formulas, too
            return f"error ({type(error).__name__})"

    def _finding(self) -> str | None:
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

    def script(self) -> AnyScript:
        """The script of the reference for the case."""
        plan = self._plan
        case, terms = plan.case(self.episode), plan.terms_of(self.episode)
        return script_of(own_system(plan.system), case, terms)

    def taken(self, actions: Iterable[Action]) -> Iterator[Any]:
        """The steps that the system takes in the case, up to a failure."""
        plan = self._plan
        return own_system(plan.system).play(plan.case(self.episode), actions)


@frozen
class _Served:
    """The steps of the right program in a case."""

    script: AnyScript
    actions: Sequence[Action]
    taken: Sequence[Any]


@cache
def _served(case: Fuzzing) -> _Served:
    script = case.script()
    actions = [*script]
    return _Served(script, actions, [*case.taken(iter(actions))])


def _is_same(script: AnyScript, actions: Sequence[Action], before: AnyScript) -> bool:
    """True if the reference takes the same actions and steps as before, and stops alike."""
    steps: list[Step] = before.steps
    for index, (action, right_action) in enumerate(zip_longest(script, actions)):
        if action != right_action or script.steps[index] != steps[index]:
            return False
    return (script.over, repr(script.error)) == (before.over, repr(before.error))
