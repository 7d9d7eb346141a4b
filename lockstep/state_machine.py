"""A Hypothesis state machine for schedulers, with every rule as an invariant.

    from lockstep.state_machine import machine_of
    from mine import MyDriver

    TestMine = machine_of(MyDriver).TestCase

Hypothesis chooses the arrivals, the aborts and the steps; for a failure it prints the shortest
program that it finds.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checks.harness.campaigns.campaign import own_system
from checks.harness.case import Case, without
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.finding import Episode, Kind
from checks.harness.own_steps import OwnSteps
from checks.harness.policy import evidence_of
from checks.harness.script import most_steps
from checks.harness.system import Action, Failure, System
from checks.releases.environments import command_of
from lockstep.strategies import cases
from lockstep.systems import AnySystem, campaign_source


class SchedulerMachine(RuleBasedStateMachine):
    """Drives `system`; the configuration keys in `keys` are not drawn.

    It checks that each step breaks no applicable rule, except expected violations, that the
    simulated device accepts each step, and that every request leaves in the end.
    """

    system: System
    keys: dict[str, Any]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Draw a configuration and requests, none of which has arrived."""
        hello = self.system.hello
        keys = {**hello.pinned, **self.keys, "policy": hello.policy}
        drawn = cases(**keys).filter(lambda case: hello.can_do(case.config))
        self.serve(data.draw(drawn, label="case"))

    def serve(self, case: Case) -> None:
        """Begin with a case without surroundings: no right drafts, external tokens, grammars.

        Neither has it images.
        """
        case = without(without(Case(case.config, case.requests), "grammars"), "encodings")
        ctx = evidence_of(case.config.policy).reference(case).machine.ctx
        self.case, self.coming = case, [request.id for request in case.requests]
        self.wrong: list[str] = []
        self.index, self.present = 0, set[str]()
        self._arriving: list[str] = []
        self._leaving: list[str] = []
        self._own = OwnSteps(self.system, case.config, ctx, Episode())
        self._actions = deque[Action]()
        self._steps = self.system.play(case, self._taken())

    def _taken(self) -> Iterator[Action]:
        while True:
            yield self._actions.popleft()

    @precondition(lambda self: self.coming)
    @rule()
    def arrive(self) -> None:
        """Let the next request arrive before the next step."""
        self._arriving.append(self.coming.pop(0))

    @precondition(lambda self: "abort" in self.system.hello.abilities and self.present)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Abort a present request before the next step."""
        request_id = data.draw(st.sampled_from(sorted(self.present)), label="request")
        self.present.discard(request_id)
        self._leaving.append(request_id)

    @rule()
    def step(self) -> None:
        """Take one step of the scheduler."""
        action = Action(tuple(self._arriving), tuple(self._leaving), time=float(self.index))
        self._arriving, self._leaving = [], []
        self._actions.append(action)
        taken = next(self._steps)
        if isinstance(taken, Failure):
            raise AssertionError(f"step {self.index}: {taken}")
        expected = evidence_of(self.case.config.policy).expected_reason
        self.wrong += [
            f"step {self.index}, {cause}: {says}" + "".join(f" {found}" for _, found in broken)
            for cause, says, broken in self._own.wrong(taken, action)
            if expected(cause, self.case.config) is None
        ]
        self.present = {row.id for row in taken.step.after.present}
        self.index += 1

    @invariant()
    def every_rule_holds(self) -> None:
        """Check the steps so far and the states after them."""
        assert not getattr(self, "wrong", ()), "\n".join(self.wrong)

    def teardown(self) -> None:
        """Take steps until all arrived requests have left."""
        if not hasattr(self, "case") or self.wrong:
            return
        bound = self.index + most_steps(self.case)
        while (self.present or self._arriving) and not self.wrong:
            if self.index > bound:
                expected = evidence_of(self.case.config.policy).expected_reason
                assert expected(Kind.ENDLESS, self.case.config), (
                    f"{', '.join(sorted(self.present))} still wait after {self.index} steps"
                )
                return
            self.step()
        self.every_rule_holds()


def one_by_one(system: AnySystem) -> System:
    """The system, in a form that takes each step before the next action is chosen."""
    if isinstance(system, str | Path):
        command = command_of(str(system))
        return DriverSystem(lambda: Driver(command), part=1)
    return own_system(campaign_source(system))


def machine_of(system: AnySystem, **keys: Any) -> type[SchedulerMachine]:
    """The state machine of a scheduler: a driver's class, a `System`, or a driver's file.

    Raises:
        DriverError: the driver does not exist.
    """
    members = {"system": one_by_one(system), "keys": keys}
    return type("SchedulerMachine", (SchedulerMachine,), members)
