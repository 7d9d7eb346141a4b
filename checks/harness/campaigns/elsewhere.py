"""Replay a counterexample on a released scheduler.

The driver process gets the actions that the explorer found for the reference. The decisions in its
steps are compared with the reference's, and the rules judge its steps.
"""

from attrs import define, field

from checks.export.trace.reading import Trace
from checks.harness.campaigns.corpus import case_of_trace
from checks.harness.campaigns.replaying import model_of_trace, reference_steps
from checks.harness.comparing import Difference, Strictness, differences
from checks.harness.driver.faults import play
from checks.harness.finding import Episode
from checks.harness.own_steps import OwnSteps
from checks.harness.policy import evidence_of
from checks.harness.system import Action, Failure, System
from checks.registry import RULES
from spec.core.rule import Kind


@define
class Elsewhere:
    """The outcome of the replay.

    `steps`: the number of steps with the reference's decisions. `differs`: the differing fields of
    the next step. `failure`: the error that the release raised instead of that step. `broken`: the
    rules that its own steps break, each with its first violation. `not_evaluated`: rules about
    fields that the release does not report.
    """

    steps: int = 0
    differs: tuple[Difference, ...] = ()
    failure: Failure | None = None
    broken: dict[str, str] = field(factory=dict)
    not_evaluated: frozenset[str] = frozenset()

    def confirms(self, trace: Trace) -> bool:
        """True if the replay confirms the violation in the file.

        The release breaks the rule itself, or raises in the last step of the file. If the rule is
        about whole runs or about unreported fields, equal decisions in every step suffice.
        """
        if trace.violation is None or self.differs:
            return False
        rule = trace.violation.rule
        if self.failure is not None:
            return rule in self.broken or self.steps >= max(len(trace.steps) - 1, 1)
        by_steps = RULES[rule].kind is Kind.EVENTUALLY or rule in self.not_evaluated
        return rule in self.broken or by_steps


def replay_on_driver(trace: Trace, system: System) -> Elsewhere:
    """Play the actions of a counterexample on a driver's system.

    Raises:
        TraceError: an action is not possible.
        DriverError: the process violates the protocol.
    """
    evidence, model = evidence_of(trace.policy), model_of_trace(trace)
    script = list(reference_steps(trace, model, []))
    actions = [*(action for _, action in script), _after_the_last_step(trace)]
    own = OwnSteps(system, trace.config, model.ctx, Episode())
    look = evidence.compared[Strictness.DECISIONS]
    unreported = evidence.adapter.fields.not_compared(system.hello.unreported)
    result = Elsewhere()
    for taken in play(system, case_of_trace(trace), actions):
        if isinstance(taken, Failure):
            result.failure = taken
            break
        if result.steps == len(script):
            break
        expected, action = script[result.steps]
        for cause, says, broken in own.wrong(taken, action):
            result.broken.setdefault(cause, broken[0][1] if broken else says)
        result.differs = differences(look, expected, taken.step, unreported)
        if result.differs:
            break
        result.steps += 1
    result.not_evaluated = frozenset(own.episode.not_evaluated)
    return result


def _after_the_last_step(trace: Trace) -> Action:
    """The arrivals and aborts at the end of the file's actions that no step follows."""
    happens: dict[str, list[str]] = {"arrive": [], "abort": []}
    for action in reversed(trace.header["actions"]):
        what, _, request_id = action.partition(" ")
        if what not in happens:
            break
        happens[what].insert(0, request_id)
    return Action(tuple(happens["arrive"]), tuple(happens["abort"]))
