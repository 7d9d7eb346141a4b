"""Run again what a trace says: the same environment, any scheduler, every rule."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.exploring import sentence
from checks.explore.instance import Instance
from checks.explore.model import Transition
from checks.explore.policy import AnyModel, machine_of
from checks.explore.returning import folded
from checks.export.outside import placed
from checks.export.policy import presentation_of
from checks.export.trace.line import Past
from checks.export.trace.reading import Trace
from checks.harness.case import refuse_unservable
from checks.harness.clients import Workload
from checks.harness.corpus import case_of_trace
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
    """The first step that is not as the file says: by field, what it says and what is now."""

    step: int
    fields: Mapping[str, tuple[Any, Any]]


@frozen
class BrokenRule:
    """A rule that is broken, in or after this step."""

    step: int
    rule: str
    says: str
    found: str


@define
class Replay:
    """What came out: the steps, the rules they broke, the first step that differs."""

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
    """The trace run again, by its actions if an explorer wrote it, else by its workload.

    `system`: by default the reference. Stops at the first step that differs from the file.

    Raises:
        TraceError: the file does not name the requests, or an action that is not possible.
        WorkloadError: a request that could never be served.
    """
    ctx, changes = trace.context(), list[Change]()
    model = model_of_trace(trace) if "actions" in trace.header else None
    judge, result = Judge(ctx if model is None else model.ctx), Replay()
    broken: list[Broken] = []
    if model is None and trace.violation is None:  # a violation ends the run, one may wait for ever
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
    if system is None:  # of another system, states between steps do not show
        result.broken += _broken_between(changes, judge)
    if result.difference is None and len(result.steps) < len(trace.steps):
        missing = {"step": (trace.steps[len(result.steps)], None)}
        result.difference = Difference(len(result.steps), missing)
    result.broken += [_broken(one.step, one.rule.id, one.found) for one in broken]
    result.broken += _broken_for_ever(trace, result)
    violation = trace.violation
    result.confirms = violation is None or any(one.rule == violation.rule for one in result.broken)
    return result


def refuse_unknown_rules(trace: Trace) -> None:
    """Refuse a file that names a rule which its policy does not have.

    Raises:
        TraceError: the rule, with its line.
    """
    rules = claims_of(trace.policy).registry.rules
    for number, line in enumerate(trace.steps, start=2):
        for event in line["events"]:
            if event["rule"] not in rules:
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
    """Take the steps up to the first that differs from the file's; each is judged."""
    past = Past()
    for step in steps:
        ends_early = trace.violation is not None or trace.incomplete
        if ends_early and len(result.steps) == len(trace.steps):
            break  # the file ends where the rule is broken or the run was, the workload may go on
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
    """What an arrival or an abort did to the reference, before step `index`."""

    index: int
    before: SomeState
    after: SomeState


def served_steps(trace: Trace, system: System | None = None) -> Iterator[Step]:
    """The steps as the workload makes them happen; `system`: by default the reference."""
    system = system or system_of(trace.policy, REFERENCE)
    requests = tuple(trace.requests.values())
    workload = Workload(
        requests, presentation_of(trace.policy).duration_of(trace.config, _cost_of(trace))
    )
    for taken in system.play(case_of_trace(trace), workload):
        if isinstance(taken, Failure):
            raise _RaisedError(system, taken)
        workload.after(taken.step)
        yield taken.step


def _acted(
    trace: Trace, model: AnyModel, system: System | None, changes: list[Change]
) -> Iterator[Step]:
    """The steps as the actions of the header make them happen; what is between goes to `changes`.

    The reference finds the actions; another system is then made to do the same.
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
    """The reference's steps, each with what happened around it."""
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


def _cost_of(trace: Trace) -> CostModel:
    """What the header says that steps cost.

    Raises:
        TraceError: it is no table of costs.
    """
    costs = trace.header.get("cost", {})
    try:
        return CostModel.from_mapping(costs if isinstance(costs, dict) else {"": 0}, trace.config)
    except ConfigError as error:
        raise TraceError(error.field, error.found, error.allowed).at(trace.path, 1) from None


def model_of_trace(trace: Trace, returning: frozenset[str] = frozenset()) -> AnyModel:
    """The reference with the requests of the trace, in which anything may happen to any of them.

    `returning`: requests that arrive again after they left.

    Raises:
        WorkloadError: a request that could never be served, with the file.
    """
    with placed(trace.path, 1):
        return machine_of(trace.policy).model(_instance_of(trace, returning))


def _instance_of(trace: Trace, returning: frozenset[str]) -> Instance[Any]:
    every_id = frozenset(trace.requests)
    return Instance(
        name=str(trace.path),
        about="the requests of a trace",
        config=trace.config,
        requests=tuple(trace.requests.values()),
        aborts=every_id,
        early_ends=every_id,
        external=trace.header.get("external", {}),
        failing=every_id,
        returning=returning,
    )


def _edges(trace: Trace, model: AnyModel) -> Iterator[tuple[Any, Transition[Any]]]:
    """The actions of the header as the reference takes them, each with the state before.

    Raises:
        TraceError: an action that is not possible.
        GuardError: the machine stops after the last one, as the violation says.
    """
    state = next(iter(model.initial()))
    for action in trace.header["actions"]:
        edge = next((one for one in model.successors(state) if one.action == action), None)
        if edge is None:
            allowed = "what the environment can do here"
            raise TraceError("actions", action, allowed).at(trace.path, 1)
        yield state, edge
        state = edge.state
    if trace.violation is not None and trace.violation.rule == MACHINE_ERROR:
        list(model.successors(state))


def _broken_between(changes: Iterable[Change], judge: Judge) -> Iterator[BrokenRule]:
    """Rules that an arrival or an abort breaks."""
    for one in changes:
        for rule in judge.rules:
            found = rule.found_in_state(judge.ctx, one.after) or rule.found_between(
                judge.ctx, one.before, one.after
            )
            if found is not None:
                yield _broken(one.index, rule.id, found)


def difference_from_file(trace: Trace, place: int, step: SomeStep, past: Past) -> Difference | None:
    """The fields of the file's line that say something else; unknown ones are left alone."""
    if place >= len(trace.steps):
        return Difference(step.index, {"step": (None, step.index)})
    line = trace.steps[place]
    seen = presentation_of(trace.policy).codec.step_as_json(step, past, full="state" in line)
    fields = {
        name: (line[name], seen[name]) for name in line if name in seen and seen[name] != line[name]
    }
    return Difference(step.index, fields) if fields else None


def _broken_for_ever(trace: Trace, result: Replay) -> Iterator[BrokenRule]:
    """The `eventually` rule of the file's violation, if the run does repeat without its goal."""
    violation = trace.violation
    if violation is None or violation.loop is None or violation.rule not in RULES:
        return
    goal = RULES[violation.rule].goal
    around = result.steps[violation.loop :]
    if goal is None or not any(
        all(not goal(step.after, one) for step in around) for one in trace.requests
    ):
        return
    if not around or around[0].before == around[-1].after or _comes_round(trace, result):
        yield _broken(len(result.steps), violation.rule, str(violation.found))


def _comes_round(trace: Trace, result: Replay) -> bool:
    """True if the run ends where its last round began, though each client that came back is new."""
    assert trace.violation is not None
    loop, returning = trace.violation.loop, frozenset(trace.header.get("returning", ()))
    if not returning or not loop:
        return False
    canonical = model_of_trace(trace, returning).canonical
    began, ends = (folded(result.steps[index].after) for index in (loop - 1, -1))
    return bool(canonical(began) == canonical(ends))
