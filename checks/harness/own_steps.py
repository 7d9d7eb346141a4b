"""Errors in a system's own steps: broken rules and refusals of the simulated device."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from attrs import define, evolve, field

from checks.harness.adapter import CONTRADICTS, Adapter, Device
from checks.harness.finding import Episode
from checks.harness.judging import Judge
from checks.harness.policy import AnyEvidence, evidence_of
from checks.harness.system import Action, Step, System, Taken
from checks.registry import claims_of
from checks.witnesses import witnessed_edges
from spec.core.configuration import PolicyConfig

WrongT = TypeVar("WrongT")
Wrong = tuple[str, str, tuple[tuple[str, str], ...]]
"""An error: its cause, a sentence, and the broken rules, each with the violation."""


_ABOUT_AS_RARE = 2.5  # times; fitted on the defects that are put back into releases


def nearest(wrong: Sequence[WrongT], cause: Callable[[WrongT], str]) -> WrongT:
    """The error of a step that is nearest to the cause.

    A rule that few edges of the explored instances witness is more specific than one that almost
    every step could break. Of the rules that are about as rare, the first is returned.
    """
    edges = [witnessed_edges(cause(violation)) for violation in wrong]
    most = min(edges) * _ABOUT_AS_RARE
    return next(violation for violation, count in zip(wrong, edges, strict=True) if count <= most)


RECORD = "record"  # the cause if a driver's record contradicts itself
EVENTS = "events"  # the cause if an event contradicts its step, or names an unregistered rule


@define
class OwnSteps:
    """Judges a system's own steps by the rules and repeats them on the simulated device.

    `episode` counts the steps that were judged and done, and gets the rules that cannot judge.
    `differs`: the steps may differ from the reference's, so that a rule may fail to judge them.
    """

    system: System
    config: PolicyConfig
    ctx: Any
    episode: Episode
    differs: bool = False
    is_driver: bool = field(init=False)
    _evidence: AnyEvidence = field(init=False)
    _adapter: Adapter | None = field(init=False)
    _judge: Judge = field(init=False)
    _infers: bool = field(init=False)  # its states are known, and the events that they show
    _device: Device | None = field(init=False)  # None once it has refused a step
    _behind: Any = field(default=None, init=False)  # a memory with which the device goes on

    def __attrs_post_init__(self) -> None:
        hello, evidence = self.system.hello, evidence_of(self.config.policy)
        self._evidence = evidence
        self.is_driver = "events" not in hello.abilities
        self._adapter = evidence.adapter if self.is_driver else None
        unreported = hello.unreported if self.is_driver else ()
        trusted = not (self.is_driver or self.differs)
        self._judge = Judge(
            self.ctx, None, self._adapter, unreported, hello.abilities, trusted=trusted
        )
        self.episode.not_evaluated = self._judge.not_evaluated
        device = evidence.device
        self._infers = self.is_driver and not evidence.adapter.fields.hides_states(unreported)
        can_do = self._infers and not evidence.adapter.device_needs & hello.unreported
        self._device = device(self.ctx) if can_do and device is not None else None

    def pass_over(self, taken: Taken) -> None:
        """Take note of a step that was judged in another episode."""
        self._judge.pass_over(taken.step)
        self._behind = taken.device
        if taken.device is None:  # the device refused this step, or one before it
            self._device = None

    def with_device(self, taken: Taken) -> Taken:
        """The newest step, with the memory of the device behind it."""
        return taken if self._device is None else evolve(taken, device=self._device.saved())

    def wrong(self, taken: Taken, action: Action, *, judged: bool = True) -> Iterator[Wrong]:
        """The errors in the next step."""
        try:
            step = self._with_events(taken.step)
        except CONTRADICTS as error:
            yield RECORD, _contradiction(error), ()
            return
        if judged:
            leave = bool(action.abort_running)
            self.episode.judged += 1
            for violation in self._judge.observe(step, aborted_while_running=leave):
                yield (
                    violation.rule.id,
                    violation.rule.sentence,
                    ((violation.rule.id, violation.found),),
                )
            yield from self._wrong_events(step)
        else:
            self._judge.pass_over(step)
        if self._device is not None:
            if self._behind is not None:
                self._device.restore(self._behind)
                self._behind = None
            try:
                wrong = self._device.wrong(step, taken.record)
            except CONTRADICTS as error:
                wrong = RECORD, _contradiction(error)
            self.episode.on_device = self._device.steps
            if wrong is not None:
                self._device = None
                yield *wrong, ()

    def _wrong_events(self, step: Step) -> Iterator[Wrong]:
        """The first event that the step's fields contradict or whose rule is not registered.

        Only for systems that report events.
        """
        adapter = self._evidence.adapter
        if self.is_driver or not adapter.infers_all_events:
            return
        rules = claims_of(self.config.policy).registry.rules
        unruled = (event for event in step.events if event.rule not in rules)
        event = next(chain(adapter.uninferred_events(step, self.config), unruled), None)
        if event is not None:
            what = "the step's fields contradict this event, or the registry lacks its rule"
            yield EVENTS, f"{what}: {event}", ()

    def _with_events(self, step: Step) -> Step:
        """The step; for a driver, with the events inferred from its states, if these are known."""
        if self._adapter is None or not self._infers:
            return step
        return evolve(step, events=self._adapter.inferred_events(step, self.config))


def _contradiction(error: Exception) -> str:
    return f"the record contradicts itself: {type(error).__name__}: {error}"
