"""Replay of a trace: the same environment on any scheduler, judged by every rule."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.exploring import sentence
from checks.explore.instance import FEWER_DRAFTS, LEAVES, Instance
from checks.explore.model import Transition
from checks.explore.policy import AnyModel, machine_of
from checks.explore.returning import folded
from checks.export.outside import placed
from checks.export.policy import presentation_of
from checks.export.trace.line import Past
from checks.export.trace.reading import Trace
from checks.harness.campaigns.corpus import case_of_trace
from checks.harness.case import refuse_unservable
from checks.harness.clients import Workload
from checks.harness.finding import Kind
from checks.harness.judging import Broken, Judge
from checks.harness.policy import system_of
from checks.harness.system import REFERENCE, Action, Failure, Raised, Step, System
from checks.registry import RULES, claims_of
from engine.core.clock import CostModel, step_time
from reference.core.guards import GuardError
from spec.core.errors import ConfigError, TraceError
from spec.core.records import SomeState, SomeStep


@frozen
class Difference:
    """The first step that differs from the file: by field, the file's value and the replay's."""

    step: int
    fields: Mapping[str, tuple[Any, Any]]


@frozen
class BrokenRule:
    """A rule that is broken in this step or by an arrival or abort before it."""

    step: int
    rule: str
    says: str
    found: str


@define
class Replay:
    """The result of a replay: its steps, broken rules and first difference from the file.

    `confirms`: the replay shows the file's violation, or the file has none.
    """

    steps: list[SomeStep] = field(factory=list)
    broken: list[BrokenRule] = field(factory=list)
    difference: Difference | None = None
    confirms: bool = False


class _RaisedError(Exception):
    """The system under test raised instead of taking a step."""

    def __init__(self, system: System, failure: Failure) -> None:
        super().__init__(f"{system.hello.name} raises {failure}")
        self.guard = failure.guard if isinstance(failure, Raised) else None


def replay_of(trace: Trace, system: System | None = None) -> Replay:
    """Replay a trace by its actions if it has any, else by its workload.

    `system`: by default the reference. The replay stops at the first step that differs.

    Raises:
        TraceError: the file has no requests, or an action is not possible.
        WorkloadError: a request can never be served.
    """
    ctx, changes = trace.context(), list[Change]()
    model = model_of_trace(trace) if "actions" in trace.header else None
    judge, result = Judge(ctx if model is None else model.ctx), Replay()
    broken: list[Broken] = []
    if model is None and trace.violation is None:  # with a violation a request may never be served
        refuse_unservable(trace.config, ctx.requests.values(), trace.path)
    try:
        steps = (
            served_steps(trace, system) if model is None else _acted(trace, model, system, changes)
        )
        _compare(trace, steps, judge, result, broken)
    except GuardError as error:
        result.broken.append(_broken(len(result.steps), "machine-error", str(error)))
    except _RaisedError as error:
        result.broken.append(_raised(len(result.steps), error))
    if system is None:  # other systems do not show the states between steps
        result.broken += broken_between(changes, judge)
    if result.difference is None and len(result.steps) < len(trace.steps):
        missing = {"step": (trace.steps[len(result.steps)], None)}
        result.difference = Difference(len(result.steps), missing)
    result.broken += [
        _broken(violation.step, violation.rule.id, violation.found) for violation in broken
    ]
    result.broken += _broken_for_ever(trace, result)
    violation = trace.violation
    result.confirms = violation is None or violation.rule in {row.rule for row in result.broken}
    return result


def refuse_unknown_rules(trace: Trace) -> None:
    """Refuse a file with a rule that its policy does not have.

    What the environment does, such as the end of a load, stands for no rule.

    Raises:
        TraceError: the rule, with its line.
    """
    rules = claims_of(trace.policy).registry.rules
    for number, line in enumerate(trace.steps, start=2):
        for event in line["events"]:
            if event["rule"] and event["rule"] not in rules:
                raise _unknown_rule("events.rule", event["rule"], trace, number)
    if trace.violation is not None:
        rule = trace.violation.rule
        kinds = {kind.replace(" ", "-") for kind in Kind}
        if rule not in {*rules, DEADLOCK, MACHINE_ERROR, *kinds} and not rule.startswith("device"):
            raise _unknown_rule("violation.rule", rule, trace, len(trace.steps) + 2)


def _unknown_rule(field: str, rule: str, trace: Trace, line: int) -> TraceError:
    allowed = f"a rule of {trace.policy}; see `lockstep rules --policy {trace.policy}`"
    return TraceError(field, rule, allowed).at(trace.path, line)


def _compare(
    trace: Trace, steps: Iterable[SomeStep], judge: Judge, result: Replay, broken: list[Broken]
) -> None:
    """Judge each step and compare it with the file's, up to the first difference."""
    past = Past()
    for step in steps:
        ends_early = trace.violation is not None or trace.incomplete
        if ends_early and len(result.steps) == len(trace.steps):
            break  # the file ends here, though the workload may go on
        broken += judge.observe(step)
        result.difference = difference_from_file(trace, len(result.steps), step, past)
        result.steps.append(step)
        if result.difference is not None:
            break
        past = presentation_of(trace.policy).codec.past_after(step, past)


def _broken(step: int, rule: str, found: str) -> BrokenRule:
    return BrokenRule(step, rule, sentence(rule), found)


def _raised(step: int, error: _RaisedError) -> BrokenRule:
    if error.guard is not None:
        return _broken(step, "machine-error", str(error.guard))
    return BrokenRule(step, "crash", "A scheduler raises nothing.", str(error))


@frozen
class Change:
    """The state before and after an arrival or abort, before step `index`."""

    index: int
    before: SomeState
    after: SomeState


def served_steps(trace: Trace, system: System | None = None) -> Iterator[Step]:
    """The steps that serve the trace's workload; `system`: by default the reference."""
    system = system or system_of(trace.policy, REFERENCE)
    requests = tuple(trace.requests.values())
    workload = Workload(
        requests, presentation_of(trace.policy).duration_of(trace.config, _cost_model(trace))
    )
    for taken in system.play(case_of_trace(trace), workload):
        if isinstance(taken, Failure):
            raise _RaisedError(system, taken)
        workload.after(taken.step)
        yield taken.step


def _acted(
    trace: Trace, model: AnyModel, system: System | None, changes: list[Change]
) -> Iterator[Step]:
    """The steps of the header's actions; arrivals and aborts are added to `changes`.

    The reference turns the header's actions into those of `System.play`.
    """
    if system is None:
        yield from (step for step, _ in reference_steps(trace, model, changes))
        return
    actions = (action for _, action in reference_steps(trace, model, changes))
    for taken in system.play(case_of_trace(trace), actions):
        if isinstance(taken, Failure):
            raise _RaisedError(system, taken)
        yield taken.step


def reference_steps(
    trace: Trace, model: AnyModel, changes: list[Change]
) -> Iterator[tuple[Step, Action]]:
    """The reference's steps, each with its action."""
    config, index, time = trace.config, 0, 0.0
    gone: frozenset[str] = frozenset()
    between: dict[str, list[str]] = {"arrive": [], "abort": []}
    for before, edge in _edges(trace, model):
        if isinstance(edge.record, claims_of(config.policy).step):
            record: Any = evolve(edge.record, index=index, time=time)
            aborted = tuple(sorted(record.before.aborted - gone))
            arrive, abort = (tuple(between[name]) for name in ("arrive", "abort"))
            yield (
                evolve(record, aborted=aborted),
                Action(arrive, abort, ends=record.ended, time=time),
            )
            between = {"arrive": [], "abort": []}
            index, time = index + 1, time + step_time(config, record.kind)
            gone = record.after.aborted
            continue
        changes.append(Change(index, before, edge.state))
        what, _, request_id = edge.action.partition(" ")
        if what in between:
            between[what].append(request_id)


def _cost_model(trace: Trace) -> CostModel:
    """The cost model in the header."""
    costs = trace.header.get("cost", {})
    try:
        return CostModel.from_mapping(costs if isinstance(costs, dict) else {"": 0}, trace.config)
    except ConfigError as error:
        raise TraceError(error.field, error.found, error.allowed).at(trace.path, 1) from None


def model_of_trace(trace: Trace, returning: frozenset[str] = frozenset()) -> AnyModel:
    """The reference with the trace's requests, each of which may be aborted or end early.

    `returning`: requests that arrive again after they left.

    Raises:
        WorkloadError: a request that could never be served, with the file.
    """
    with placed(trace.path, 1):
        return machine_of(trace.policy).model(_trace_instance(trace, returning))


def _trace_instance(trace: Trace, returning: frozenset[str]) -> Instance[Any]:
    every_id, actions = frozenset(trace.requests), str(trace.header["actions"])
    return Instance(
        name=str(trace.path),
        about="the requests of a trace",
        config=trace.config,
        requests=tuple(trace.requests.values()),
        aborts=every_id,
        early_ends=every_id,
        external=trace.header.get("external", {}),
        failing=every_id,
        fewer_drafts=every_id if FEWER_DRAFTS in actions else frozenset(),
        leavers=every_id if LEAVES in actions else frozenset(),
        returning=returning,
    )


def _edges(trace: Trace, model: AnyModel) -> Iterator[tuple[Any, Transition[Any]]]:
    """The reference's transitions for the header's actions, each with the state before."""
    state = next(iter(model.initial()))
    for action in trace.header["actions"]:
        edge = next((edge for edge in model.successors(state) if edge.action == action), None)
        if edge is None:
            allowed = "what the environment can do here"
            raise TraceError("actions", action, allowed).at(trace.path, 1)
        yield state, edge
        state = edge.state
    if trace.violation is not None and trace.violation.rule == MACHINE_ERROR:
        list(model.successors(state))


def broken_between(changes: Iterable[Change], judge: Judge) -> Iterator[BrokenRule]:
    """Rules that an arrival or an abort breaks."""
    for change in changes:
        for rule in judge.rules:
            violation = rule.found_in_state(judge.ctx, change.after) or rule.found_between(
                judge.ctx, change.before, change.after
            )
            if violation is not None:
                yield _broken(change.index, rule.id, violation)


def difference_from_file(trace: Trace, place: int, step: SomeStep, past: Past) -> Difference | None:
    """The fields in which the file's line differs from the step; unknown fields are ignored."""
    if place >= len(trace.steps):
        return Difference(step.index, {"step": (None, step.index)})
    line = trace.steps[place]
    seen = presentation_of(trace.policy).codec.step_as_json(step, past, full="state" in line)
    fields = {
        name: (line[name], seen[name]) for name in line if name in seen and seen[name] != line[name]
    }
    return Difference(step.index, fields) if fields else None


def _broken_for_ever(trace: Trace, result: Replay) -> Iterator[BrokenRule]:
    """The `eventually` rule of the file's violation, if the run repeats without its goal."""
    violation = trace.violation
    if violation is None or violation.loop is None or violation.rule not in RULES:
        return
    goal = RULES[violation.rule].goal
    around = result.steps[violation.loop :]
    if goal is None or not any(
        all(not goal(step.after, request_id) for step in around) for request_id in trace.requests
    ):
        return
    if not around or around[0].before == around[-1].after or _comes_round(trace, result):
        yield _broken(len(result.steps), violation.rule, str(violation.found))


def _comes_round(trace: Trace, result: Replay) -> bool:
    """True if the loop ends in the state where it began, up to the ids of returning clients."""
    assert trace.violation is not None
    loop, returning = trace.violation.loop, frozenset(trace.header.get("returning", ()))
    if not returning or not loop:
        return False
    canonical = model_of_trace(trace, returning).canonical
    began, ends = (folded(result.steps[index].after) for index in (loop - 1, -1))
    return bool(canonical(began) == canonical(ends))
