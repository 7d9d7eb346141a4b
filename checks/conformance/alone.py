"""A release judged by itself: the rules and the device on its own steps, no reference step.

The reference only says when clients arrive and leave. So a release whose scheduling no variant of
the reference describes can be judged, too, and one step that breaks a rule does not end the
episode: each thing that is wrong is told of the first step in which it shows.
"""

from collections.abc import Iterator

from attrs import define, evolve, field, frozen

from checks.conformance.counterpart import Device, Step, Teller
from checks.conformance.counterparts import counterpart_of
from checks.conformance.episode import Lab, step_of
from checks.conformance.finding import Finding
from checks.conformance.judging import Judge
from checks.conformance.script import Script, most_steps, script_of
from checks.fuzz.cases import Case
from checks.fuzz.finding import Kind
from checks.harness.driver.protocol import Action, DriverFailure, Hello, Json
from spec.core.records import IDLE

FOR_EVER = "somebody waits for ever"  # cause of an episode without an end

Cause = tuple[str, str]


@frozen
class Judged:
    """What became of a case.

    `findings`: the first of each kind and cause. `untold`: rules that could not be judged, with
    what they ask for.
    """

    steps: int
    on_device: int
    findings: dict[Cause, Finding]
    untold: dict[str, str]


def judge_alone(lab: Lab, case: Case, *, aborts_while_running: bool = False) -> Judged:
    """The driver serves the case until nobody is left.

    Raises:
        WorkloadError: a request that could never be served.
        DriverError: the driver does not speak the protocol.
    """
    while_running = aborts_while_running and "abort_running" in lab.hello.abilities
    run = _Run(lab, case, script_of(case, aborts_while_running=while_running))
    run.play()
    return Judged(run.steps, run.on_device, run.findings, run.judge.untold)


def fitted(hello: Hello, case: Case) -> Case:
    """The case with the values of those keys of which the release has one only."""
    return evolve(case, config=evolve(case.config, **hello.pinned))


@define
class _Run:
    lab: Lab
    case: Case
    script: Script
    steps: int = 0
    on_device: int = 0
    findings: dict[Cause, Finding] = field(factory=dict)
    judge: Judge = field(init=False)
    _teller: Teller = field(init=False)
    _device: Device | None = field(init=False)  # None once it has refused a step

    def __attrs_post_init__(self) -> None:
        counterpart, ctx = counterpart_of(self.case.config), self.script.machine.ctx
        self.judge = Judge(counterpart, ctx, self.lab.hello.left_out)
        self._teller = counterpart.teller(ctx)
        self._device = counterpart.device(ctx)

    def play(self) -> None:
        """Step by step until everybody has come and gone."""
        actions = self._actions()
        last_arrival = max(
            (index for index, action in enumerate(actions) if action.arrive), default=0
        )
        for played in self.lab.play(self.case, actions):
            for record in played.records:
                step = self._observed(record, actions[self.steps])
                self.steps += 1
                if step.kind == IDLE and step.after.is_idle and self.steps > last_arrival + 1:
                    return
            if played.failure is not None:
                self._failed(played.failure)
                return
        says = f"somebody still waits after {self.steps} steps"
        self._found(Kind.ENDLESS, FOR_EVER, says)

    def _actions(self) -> tuple[Action, ...]:
        """The script's, then steps in which nothing happens: it may be slower."""
        actions = self.script.actions
        return (*actions, *[Action()] * (most_steps(self.case) - len(actions)))

    def _observed(self, record: Json, action: Action) -> Step:
        steps = self.script.steps
        expected = steps[min(self.steps, len(steps) - 1)]
        step = step_of(self._teller, record, action, evolve(expected, index=self.steps))
        for one in self.judge.observe(step, aborted_while_running=bool(action.abort_running)):
            told = ((one.rule.id, one.found),)
            self._found(Kind.BROKEN_RULE, one.rule.id, one.rule.sentence, told)
        for name, says in self._wrong_totals(step, record):
            self._found(Kind.BROKEN_RULE, name, says)
        self._on_device(record, step)
        return step

    def _wrong_totals(self, step: Step, record: Json) -> Iterator[tuple[str, str]]:
        """Blocks that the scheduler counts otherwise than its own requests and pool add up to."""
        for one in counterpart_of(self.case.config).totals(step, record):
            name = one.field.removeprefix("before.")
            says = f"it counts {one.found}, its requests and its pool add up to {one.expected}"
            yield f"count: {name}", says

    def _on_device(self, record: Json, step: Step) -> None:
        if self._device is None:
            return
        wrong = self._device.wrong(record, step)
        self.on_device = self._device.steps
        if wrong is not None:
            self._found(Kind.BROKEN_RULE, *wrong)
            self._device = None

    def _failed(self, failure: DriverFailure) -> None:
        self._found(Kind.CRASH, failure.cause, str(failure))

    def _found(
        self, kind: Kind, cause: str, says: str, rules: tuple[tuple[str, str], ...] = ()
    ) -> None:
        finding = Finding(kind, self.steps, cause, says, rules=rules)
        self.findings.setdefault(finding.signature, finding)
