"""Run again what a trace says: the same environment, the reference as scheduler, every rule."""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from checks.exploring import sentence
from checks.models.spyre import Instance, SpyreModel
from checks.running import Judge, serve, step_time
from checks.traces import Past, Trace, step_as_json
from reference.guards import GuardError
from reference.spyre.machine import SpyreMachine
from spec.errors import TraceError
from spec.records import Step
from spec.rules import REGISTRY
from spec.state import State


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

    steps: list[Step] = field(factory=list)
    broken: list[BrokenRule] = field(factory=list)
    difference: Difference | None = None
    confirms: bool = False


def replay_of(trace: Trace) -> Replay:
    """The trace run again, by its actions if an explorer wrote it, else by its workload.

    Stops at the first step that differs from the file.

    Raises:
        TraceError: the file does not name the requests, or an action that is not possible.
        WorkloadError: a request that could never be served.
    """
    ctx = trace.context()
    machine = SpyreMachine.of(ctx.config, ctx.requests.values())
    judge, past, result = Judge(machine.ctx), Past(), Replay()
    try:
        for step in _steps(trace, machine, judge, result):
            if trace.violation is not None and step.index == len(trace.steps):
                break  # the file ends where the rule is broken, the workload may go on
            judge.observe(step)
            result.steps.append(step)
            result.difference = _difference(trace, step, past)
            if result.difference is not None:
                break
            past = past.then(step)
    except GuardError as error:
        result.broken.append(_broken(len(result.steps), "machine-error", str(error)))
    if result.difference is None and len(result.steps) < len(trace.steps):
        missing = {"step": (trace.steps[len(result.steps)], None)}
        result.difference = Difference(len(result.steps), missing)
    result.broken += [_broken(one.step, one.rule.id, one.found) for one in judge.broken]
    result.broken += _broken_for_ever(trace, result)
    told = trace.violation
    result.confirms = told is None or any(one.rule == told.rule for one in result.broken)
    return result


def _broken(step: int, rule: str, found: str) -> BrokenRule:
    return BrokenRule(step, rule, sentence(rule), found)


def _steps(trace: Trace, machine: SpyreMachine, judge: Judge, result: Replay) -> Iterator[Step]:
    """The steps as the actions of the header, or else the workload, make them happen."""
    actions = trace.header.get("actions")
    if actions is None:
        yield from serve(machine, list(machine.ctx.requests.values()))
        return
    everybody = frozenset(machine.ctx.requests)
    instance = Instance(
        name=str(trace.path),
        about="the requests of a trace",
        config=trace.config,
        requests=tuple(machine.ctx.requests.values()),
        aborts=everybody,
        early_ends=everybody,
    )
    yield from _along(actions, SpyreModel(instance, machine), trace, judge, result)


def _along(
    actions: list[str], model: SpyreModel, trace: Trace, judge: Judge, result: Replay
) -> Iterator[Step]:
    """The steps among the actions; states between steps are judged on the way."""
    state = next(iter(model.initial()))
    index, time = 0, 0.0
    gone = state.aborted
    for action in actions:
        edge = next((one for one in model.successors(state) if one.action == action), None)
        if edge is None:
            raise TraceError("actions", action, "what the environment can do here").at(
                trace.path, 1
            )
        before, state = state, edge.state
        if not isinstance(edge.record, Step):
            result.broken += _broken_between(before, state, judge, index)
            continue
        aborted = tuple(sorted(edge.record.before.aborted - gone))
        yield evolve(edge.record, index=index, time=time, aborted=aborted)
        gone = state.aborted
        index, time = index + 1, time + step_time(trace.config, edge.record.kind)


def _broken_between(before: State, state: State, judge: Judge, index: int) -> Iterator[BrokenRule]:
    """Rules that an arrival or an abort breaks, before step `index`."""
    for rule in judge.rules:
        found = rule.found_in_state(judge.ctx, state) or rule.found_between(
            judge.ctx, before, state
        )
        if found is not None:
            yield _broken(index, rule.id, found)


def _difference(trace: Trace, step: Step, past: Past) -> Difference | None:
    """The fields of the file's line that say something else; unknown ones are left alone."""
    if step.index >= len(trace.steps):
        return Difference(step.index, {"step": (None, step.index)})
    told = trace.steps[step.index]
    seen = step_as_json(step, past, full="state" in told)
    fields = {
        name: (told[name], seen[name]) for name in told if name in seen and seen[name] != told[name]
    }
    return Difference(step.index, fields) if fields else None


def _broken_for_ever(trace: Trace, result: Replay) -> Iterator[BrokenRule]:
    """The `eventually` rule of the file's violation, if the run does repeat without its goal."""
    told = trace.violation
    if told is None or told.loop is None or told.rule not in REGISTRY:
        return
    goal = REGISTRY[told.rule].goal
    around = result.steps[told.loop :]
    if goal is None or any(goal(step.after) for step in around):
        return
    if not around or around[0].before == around[-1].after:
        yield _broken(len(result.steps), told.rule, str(told.found))
