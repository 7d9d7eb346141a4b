"""Runs for the pages: a witness of each rule, and each recorded counterexample.

The default instances are explored again on all cores; the runs are written as traces.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from checks.book.source import slug
from checks.cores import on_all_cores
from checks.evidence import EXPLORED, recorded
from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import (
    AnyInstance,
    Exploration,
    Finding,
    counterexample_name,
    explore_instance,
    numbered,
)
from checks.explore.instance import title_of
from checks.explore.model import Counterexample, OnStep, Transition
from checks.explore.policy import AnyModel, machine_of
from checks.explore.returning import unrolled, unrolled_run
from checks.explore.search import explore
from checks.export.trace.records import Json
from checks.export.trace.writing import TraceWriter
from checks.registry import RULES, claims_of
from checks.words import counted
from spec.core.records import SomeStep


@frozen
class Shown:
    """A run that pages show.

    `instance`: the title of the instance. `found`: the violation at the end; empty for a witness.
    `trace`: the name of its file. `story`: a line for each action.
    """

    rule: str
    instance: str
    found: str
    trace: str
    story: tuple[str, ...]


def shown_runs(instances: Iterable[AnyInstance], directory: Path) -> list[Shown]:
    """The counterexamples and witnesses of these instances; writes their traces.

    Each rule has one witness, from the smallest instance that shows it.
    """
    explored, listed = recorded(EXPLORED), list(instances)
    wanted = shown_witnesses(explored)
    work = partial(_instance_runs, directory=directory, wanted=wanted)
    busy = [
        instance
        for instance in listed
        if wanted[title_of(instance)] or explored.get(title_of(instance), {}).get("violations")
    ]
    return [shown for runs in on_all_cores(work, busy) for shown in runs]


def shown_witnesses(explored: Json) -> Mapping[str, frozenset[str]]:
    """By instance, the rules whose witness is shown from it: the smallest that has a witness.

    One that breaks no rule, if there is one: what the run shows is the rule alone.
    """
    smallest: dict[str, str] = {}

    def size(item: tuple[str, Json]) -> tuple[bool, int]:
        return bool(item[1]["violations"]), item[1]["states"]

    for title, exploration in sorted(explored.items(), key=size):
        for rule in exploration["witnesses"]:
            smallest.setdefault(rule, title)
    rules: defaultdict[str, set[str]] = defaultdict(set)
    for rule, title in smallest.items():
        rules[title].add(rule)
    return defaultdict(frozenset, {title: frozenset(own) for title, own in rules.items()})


def _instance_runs(
    instance: AnyInstance, directory: Path, wanted: Mapping[str, frozenset[str]]
) -> list[Shown]:
    title = title_of(instance)
    shown = list(_witnesses(instance, wanted[title], directory))
    if recorded(EXPLORED)[title]["violations"]:
        shown += _counterexamples(explore_instance(instance), directory)
    return shown


# --- counterexamples ------------------------------------------------------------------------------


def _counterexamples(exploration: Exploration, directory: Path) -> Iterator[Shown]:
    for finding in exploration.findings:
        name = counterexample_name(exploration, finding)
        write_counterexample(exploration, finding, directory / name)
        title, lines = title_of(exploration.instance), story(finding.script, finding.steps)
        yield Shown(finding.rule, title, finding.found, name, (*lines, *_again(finding)))


def _again(finding: Finding) -> list[str]:
    """A line that the run repeats for ever, if it does."""
    if finding.loop is None:
        return []
    first, last = finding.loop, len(finding.steps) - 1
    steps = f"step {first} repeats" if first == last else f"steps {first} to {last} repeat"
    return [f"From here on, {steps} for ever"]


# --- witnesses ------------------------------------------------------------------------------------


def _witnesses(instance: AnyInstance, rules: frozenset[str], directory: Path) -> Iterator[Shown]:
    """For each rule a shortest run to a step that witnesses it."""
    model, title = machine_of(instance.config.policy).model(instance), title_of(instance)
    for rule, run in _first_seen(model, sorted(rules)).items():
        name = f"{slug(rule)}-speaks.jsonl"
        actions = [edge.action for edge in run.steps]
        own = instance
        if instance.returning:  # a returning client is a new request each time
            own = unrolled(instance, actions)
            run = Counterexample(
                run.initial, tuple(unrolled_run(machine_of(own.config.policy).model(own), actions))
            )
        steps = _trace_steps(own, run)
        script = tuple(edge.action for edge in run.steps)
        _write(directory / name, own, script, steps)
        yield Shown(rule, title, "", name, story(script, steps))


def _first_seen(model: AnyModel, rules: Sequence[str]) -> dict[str, Counterexample[Any]]:
    """By rule, a shortest run to its witness: the counterexample to "no step witnesses it"."""
    pending = set(rules)

    def never(rule: str) -> OnStep[Any]:
        seen = RULES[rule].witness

        def holds(_before: object, edge: Transition[Any]) -> str | None:
            if not seen(model.ctx, edge.record):
                return None
            pending.discard(rule)
            return "seen"

        return OnStep(rule, holds, of=claims_of(model.instance.config.policy).step)

    result = explore(
        model, [never(rule) for rule in rules], keep_going=True, stop=lambda: not pending
    )
    runs = {violation.rule: violation.counterexample for violation in result.violations}
    return {rule: runs[rule] for rule in rules}


def _trace_steps(instance: AnyInstance, run: Counterexample[Any]) -> tuple[SomeStep, ...]:
    step = claims_of(instance.config.policy).step
    records = [edge.record for edge in run.steps if isinstance(edge.record, step)]
    return numbered(instance.config, records)


def _write(
    path: Path, instance: AnyInstance, script: Sequence[str], steps: Iterable[SomeStep]
) -> None:
    with TraceWriter(
        path,
        instance.config,
        instance.requests,
        full=True,
        actions=script,
        external=instance.external,
    ) as trace:
        for step in steps:
            trace.write(step)


# --- in words -------------------------------------------------------------------------------------


def story(script: Sequence[str], steps: Sequence[SomeStep]) -> tuple[str, ...]:
    """A line for each action of the environment and each step."""
    left = iter(steps)
    return tuple(_story_line(action, left) for action in script)


def _story_line(action: str, steps: Iterator[SomeStep]) -> str:
    kind, _, request_id = action.partition(" ")
    match kind.rstrip(","):
        case "arrive":
            return f"Request {request_id} arrives"
        case "abort":
            return f"The client of request {request_id} goes away"
        case "step":
            return step_in_words(next(steps))
    return action


def step_in_words(step: SomeStep) -> str:
    """The computed tokens and the decisions of a step, without its states."""
    computed = ", ".join(
        f"{counted(tokens, 'token')} of request {request_id}"
        for request_id, tokens in step.scheduled.items()
    )
    parts = [
        f"**Step {step.index}**, {step.kind}: {computed}"
        if computed
        else f"**Step {step.index}**, {step.kind}"
    ]
    for transition in ("preempt", "swap_out", "swap_in", "pause", "resume", "jump_tkv"):
        names = list(dict.fromkeys(event.id for event in step.happened(transition)))
        if names:
            verb = transition.replace("_", " ")
            parts.append(f"{verb} {', '.join(names)}" if any(names) else verb)
    if step.ended:
        parts.append(f"end of sequence: {', '.join(step.ended)}")
    if step.finished:
        parts.append(f"finished: {', '.join(step.finished)}")
    if step.refusal:
        parts.append(f"a request is kept waiting by {step.refusal}")
    return "; ".join(parts)
