"""A release judged by itself: the rules and the device on its own steps, no reference step.

The reference only says when clients arrive and leave. So a release whose scheduling no variant of
the reference describes can be judged, too, and one step that breaks a rule does not end the
episode: each thing that is wrong is told of the first step in which it shows.
"""

from collections import Counter
from collections.abc import Iterator

from attrs import define, evolve, field, frozen

from checks.conformance.comparing import totals_told
from checks.conformance.episode import Lab, step_of
from checks.conformance.finding import Finding
from checks.conformance.hardware import Hardware
from checks.conformance.judging import Judge
from checks.conformance.moves import seen_events
from checks.conformance.protocol import Action, DriverFailure, Json
from checks.conformance.script import Script, most_steps, script_of
from checks.conformance.spyre import SPYRE
from checks.conformance.told import Teller
from checks.fuzz.cases import Case
from checks.fuzz.counts import count_step
from checks.fuzz.finding import Kind
from spec.records import IDLE, Step

Cause = tuple[str, str]


@frozen
class Judged:
    """What became of a case.

    `findings`: the first of each kind and cause. `untold`: rules that could not be judged, with
    what they ask for. `found` and `records`: the steps as told.
    """

    steps: int
    on_device: int
    counts: Counter[str]
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
    return Judged(run.steps, run.on_device, run.counts, run.findings, run.judge.untold)


@define
class _Run:
    lab: Lab
    case: Case
    script: Script
    steps: int = 0
    on_device: int = 0
    counts: Counter[str] = field(factory=Counter)
    findings: dict[Cause, Finding] = field(factory=dict)
    judge: Judge = field(init=False)
    _teller: Teller = field(init=False)
    _hardware: Hardware | None = field(init=False)  # None once it has refused a step

    def __attrs_post_init__(self) -> None:
        ctx = self.script.machine.ctx
        self.judge = Judge(SPYRE, ctx, self.lab.hello.left_out)
        self._teller = Teller(ctx)
        self._hardware = Hardware(ctx)

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
        self._found(Kind.ENDLESS, "steps", f"somebody still waits after {self.steps} steps")

    def _actions(self) -> tuple[Action, ...]:
        """The script's, then steps in which nothing happens: it may be slower."""
        actions = self.script.actions
        return (*actions, *[Action()] * (most_steps(self.case) - len(actions)))

    def _observed(self, record: Json, action: Action) -> Step:
        steps = self.script.steps
        expected = steps[min(self.steps, len(steps) - 1)]
        step: Step = step_of(self._teller, record, action, evolve(expected, index=self.steps))
        size = self.case.config.block_size
        count_step(self.counts, evolve(step, events=seen_events(step, size)), early=0)
        for one in self.judge.observe(step, aborted_while_running=bool(action.abort_running)):
            told = ((one.rule.id, one.found),)
            self._found(Kind.BROKEN_RULE, one.rule.id, one.rule.sentence, told)
        for name, says in self._wrong_totals(step, record):
            self._found(Kind.BROKEN_RULE, name, says)
        self._on_device(record, step)
        return step

    def _wrong_totals(self, step: Step, record: Json) -> Iterator[tuple[str, str]]:
        """Blocks that the scheduler counts otherwise than its own requests and pool add up to."""
        for one in totals_told(step, record):
            name = one.field.removeprefix("before.")
            says = f"it counts {one.found}, its requests and its pool add up to {one.expected}"
            yield f"count: {name}", says

    def _on_device(self, record: Json, step: Step) -> None:
        if self._hardware is None or "tensors" not in record:
            return
        self.on_device += 1
        wrong = self._hardware.wrong(record, step)
        if wrong is not None:
            self._found(Kind.BROKEN_RULE, *wrong)
            self._hardware = None

    def _failed(self, failure: DriverFailure) -> None:
        self._found(Kind.CRASH, failure.cause, str(failure))

    def _found(
        self, kind: Kind, cause: str, says: str, rules: tuple[tuple[str, str], ...] = ()
    ) -> None:
        finding = Finding(kind, self.steps, cause, says, rules=rules)
        self.findings.setdefault(finding.signature, finding)
