"""Explore instances, on all cores, and report findings."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

from attrs import define, evolve, field, frozen

from checks.cores import beside, cores_here, on_all_cores
from checks.ending import stopping
from checks.explore.bounds import Bounds, Following
from checks.explore.checkpoint import Checkpoint
from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.instance import Instance, title_of
from checks.explore.model import Counterexample
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.result import Outcome, Progress, Result
from checks.explore.returning import repeating, unrolled, unrolled_run
from checks.explore.search import Order, explore
from checks.export.checkpoint import CheckpointError, load, save, sources_digest
from checks.export.trace.records import Json, converter
from checks.registry import RULES, claims_of
from engine.core.clock import step_time
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.records import SomeState, SomeStep
from spec.core.rule import AnyRule

AnyInstance: TypeAlias = Instance[Any]
Gear: TypeAlias = Literal["reference", "compiled"]
_FEW_STATES = 5_000  # which the reference explores in a second, every rule on every edge

_OWN_SENTENCES = {
    DEADLOCK: "While a request is pending there is a next step.",
    MACHINE_ERROR: "No transition is taken where its guard does not hold.",
}


def sentence(rule: str, rules: Mapping[str, AnyRule] = RULES) -> str:
    """The sentence of a rule, or of one of the explorer's own two rules."""
    return _OWN_SENTENCES[rule] if rule in _OWN_SENTENCES else rules[rule].sentence


def policy_rules(instance: AnyInstance) -> Mapping[str, AnyRule]:
    """The rules of the policy of an instance."""
    return claims_of(instance.config.policy).registry.rules


@frozen
class Finding:
    """A violation of a rule: the message, the actions that lead there, and a run for a trace file.

    The run: `instance`, in which each request arrives once; `script`, its actions; `steps`, the
    scheduler's steps; `end`, its last state. `loop`: of a liveness violation, the step from which
    the run repeats; where clients return, the run shows one more round.
    """

    rule: str
    found: str
    actions: tuple[str, ...]
    instance: AnyInstance
    script: tuple[str, ...]
    steps: tuple[SomeStep, ...]
    end: SomeState
    loop: int | None = None


@frozen
class Exploration:
    """The result of exploring one instance.

    `result`: the counts, exact if the search is complete; without violations and checkpoint.
    `findings`: the violations, with their steps numbered as in a trace. `rules`: the rules judged
    on every edge; `sampled`: the rules judged on a sample, with the number of edges. `using`: the
    machine that found the states. `chances_of_a_miss`: two estimates of the probability that a
    state was missed, if states were identified by fingerprints.
    """

    instance: AnyInstance
    result: Result[Any]
    findings: tuple[Finding, ...]
    rules: tuple[str, ...]
    sampled: Mapping[str, int] = field(factory=dict)
    using: Gear = "reference"
    chances_of_a_miss: tuple[float, float] | None = None

    @property
    def witnesses(self) -> dict[str, int]:
        """By rule, the number of edges on which its witness was seen."""
        return {rule: seen.edges for rule, seen in self.result.witnesses.items()}

    @property
    def unseen(self) -> tuple[str, ...]:
        """Rules that hold vacuously: their witness was never seen."""
        broken = {finding.rule for finding in self.findings}
        seen = self.witnesses
        return tuple(rule for rule in self.rules if rule not in broken and not seen.get(rule))

    @property
    def violations(self) -> dict[str, Any]:
        """By rule, the message and the actions of its violation, for JSON."""
        return {
            finding.rule: {"found": finding.found, "actions": list(finding.actions)}
            for finding in self.findings
        }

    def as_mapping(self) -> dict[str, Any]:
        """The exploration for a JSON report; counterexamples are separate files."""
        result = self.result
        return {
            "instance": title_of(self.instance),
            "about": self.instance.about,
            "config": self.instance.config.as_mapping(),
            "using": self.using,
            "outcome": result.outcome.value,
            "stopped_by": result.stopped_by,
            "states": result.states,
            "transitions": result.transitions,
            "depth": result.depth,
            "seconds": round(result.seconds, 3),
            "states_per_second": round(result.states_per_second) or None,
            "bytes_per_state": round(result.bytes_per_state),
            "actions": result.actions,
            "violations": self.violations,
            "rules": list(self.rules),
            "witnesses": self.witnesses,
            "not_seen": list(self.unseen),
            "sampled": dict(self.sampled),
            "chances_of_a_miss": self.chances_of_a_miss and [*self.chances_of_a_miss],
        }


def explore_instance(
    instance: AnyInstance,
    bounds: Bounds | None = None,
    *,
    order: Order = "bfs",
    seed: int = 0,
    checkpoint: Path | None = None,
    **following: Unpack[Following],
) -> Exploration:
    """Judge every applicable rule in every reachable state; the first breach of each is kept.

    With `checkpoint` the search resumes from that file if it exists, and is saved to it every
    second and when a bound or `stop` ends it.

    Raises:
        WorkloadError: a request of the instance could never be served.
        CheckpointError: the file is damaged or of another instance.
        OSError: the file cannot be written.
    """
    model = machine_of(instance.config.policy).model(instance)
    properties = properties_of(model)
    resume, keep = None, None
    if checkpoint is not None:
        about = _about(instance)
        keep = partial(save, checkpoint, about)
        resume = load(checkpoint, about, Checkpoint) if checkpoint.exists() else None
    try:
        result = explore(
            model,
            properties.all,
            properties.witnesses,
            order=order,
            bounds=bounds,
            seed=seed,
            keep_going=True,
            resume=resume,
            keep=keep,
            **following,
        )
    except CheckpointError as error:
        raise error.at(checkpoint) from None
    if keep is not None and result.checkpoint is not None:
        keep(result.checkpoint)
    return Exploration(
        instance,
        evolve(result, violations=(), checkpoint=None),
        tuple(_findings(instance, result)),
        tuple(rule.id for rule in properties.rules),
    )


def explore_compiled(
    instance: AnyInstance,
    bounds: Bounds | None = None,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    fingerprints: bool = False,
    **following: Unpack[Following],
) -> Exploration:
    """Find every reachable state with the policy's compiled machine, on all cores.

    The rules that it judges in numbers are judged on every edge. All other rules of states and
    steps are judged, and witnesses are searched for, on the edges of 400 states drawn with `seed`.
    With `fingerprints` states are identified by 64 bits. With `checkpoint` the search resumes from
    that file if it exists, and its states are saved to it.

    Raises:
        InputError: the policy has no compiled machine, or none for this instance, or numba is
            missing.
        WorkloadError: a request of the instance could never be served.
        MachinesDifferError: the reference takes another step.
        CheckpointError: the file is damaged or of another instance.
        OSError: the file cannot be written.
    """
    from checks.explore.compiled.journal import Journal
    from checks.explore.compiled.search import Known, MachinesDifferError, search_with_room

    machine = machine_of(instance.config.policy)
    if machine.compiled is None:
        raise InputError("--using", "compiled", f"reference, for policy {instance.config.policy}")
    model = machine.model(instance)
    properties = properties_of(model)
    searched = search_with_room(
        model,
        machine.compiled(instance),
        properties,
        bounds,
        known=Known(fingerprints=fingerprints, seed=seed),
        journal=None if checkpoint is None else Journal(checkpoint, _about(instance)),
        cores=cores_here(),
        **following,
    )
    if searched.difference is not None:
        raise MachinesDifferError(searched.difference)
    complete = Outcome.HOLDS if searched.stopped_by is None else Outcome.INCOMPLETE
    result = Result(
        outcome=Outcome.VIOLATED if searched.broken else complete,
        stopped_by=searched.stopped_by,
        states=searched.states,
        transitions=searched.transitions,
        depth=searched.depth,
        deadlocks=0,
        violations=tuple(searched.broken.values()),
        witnesses=searched.witnesses,
        actions=dict(sorted(searched.actions.items())),
        peak_queue=searched.peak_queue,
        seconds=searched.seconds,
        bytes_per_state=searched.bytes_per_state,
        checkpoint=None,
        by_depth=tuple(searched.by_depth),
    )
    rules = [rule.id for rule in properties.rules]
    return Exploration(
        instance,
        evolve(result, violations=()),
        tuple(_findings(instance, result)),
        tuple(rule for rule in rules if rule in searched.everywhere),
        {rule: searched.judged[rule] for rule in rules if rule not in searched.everywhere},
        "compiled",
        searched.chances_of_a_miss,
    )


def explore_either(
    instance: AnyInstance,
    bounds: Bounds | None = None,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    large: bool = False,
    **following: Unpack[Following],
) -> Exploration:
    """Explore with the reference; with the compiled machine once it is ready, if it ever is.

    The reference begins at once. If there are many states, the machine is compiled beside it, at
    once if the instance is `large`, and starts from the first state once it is ready, unless the
    reference is done first. The machine that wrote a `checkpoint` resumes it.

    Raises:
        WorkloadError: a request of the instance could never be served.
        MachinesDifferError: the reference takes another step.
    """
    bounds = bounds or Bounds()
    asked_to_stop, show = following.get("stop"), following.get("progress")
    with_reference = partial(explore_instance, instance, checkpoint=checkpoint)
    with_numbers = partial(
        explore_compiled, instance, seed=seed, checkpoint=checkpoint, **following
    )
    if not _can_be_compiled(instance):
        return with_reference(bounds, **following)
    if checkpoint is not None and _is_journal(checkpoint):
        return with_numbers(bounds)
    compiling = _Compiling(instance, after=1 if large else _FEW_STATES)

    def progress(at: Progress) -> None:
        if show is not None:
            show(evolve(at, compiling=compiling.is_under_way))

    with closing(compiling):
        exploration = with_reference(
            bounds,
            progress=progress,
            stop=lambda: compiling.is_ready() or (asked_to_stop is not None and asked_to_stop()),
        )
    stopped = asked_to_stop is not None and asked_to_stop()
    if exploration.result.stopped_by != "stop" or stopped:
        return exploration
    if bounds.max_seconds is not None:
        left = max(bounds.max_seconds - exploration.result.seconds, 0)
        bounds = evolve(bounds, max_seconds=left)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return with_numbers(bounds)


@define
class _Compiling:
    """A process that compiles the machine for an instance while the reference explores it.

    It begins `after` so many states.
    """

    instance: AnyInstance
    after: int
    _beside: ExitStack = field(factory=ExitStack, init=False)
    _expanded: int = field(default=0, init=False)
    _done: "Future[Exploration] | None" = field(default=None, init=False)

    def is_ready(self) -> bool:
        """True once the code is in the cache. To be called before each state is expanded."""
        self._expanded += 1
        if self._expanded == self.after:
            pool = self._beside.enter_context(beside())
            self._done = pool.submit(explore_compiled, self.instance, Bounds(max_states=1))
        return self._done is not None and self._done.done()

    @property
    def is_under_way(self) -> bool:
        """True from the beginning on until the code is ready."""
        return self._done is not None and not self._done.done()

    def close(self) -> None:
        """End the process, whether or not it is done."""
        self._beside.close()


def _is_journal(path: Path) -> bool:
    from checks.explore.compiled.journal import is_journal  # loads compiled functions

    return is_journal(path)


def _can_be_compiled(instance: AnyInstance) -> bool:
    """True if the policy has a compiled machine that supports the instance."""
    compiled = machine_of(instance.config.policy).compiled
    try:
        return compiled is not None and bool(compiled(instance))
    except InputError:
        return False


def _about(instance: AnyInstance) -> Json:
    """The instance and a digest of the sources: both must be equal for a search to resume."""
    sources = sources_digest("spec", "reference", "checks/explore", "checks/policies")
    written = converter().unstructure(instance) | {"config": instance.config.as_mapping()}
    return {"instance": written, "sources": sources}


def _findings(instance: AnyInstance, result: Result[Any]) -> Iterator[Finding]:
    """The violations, with their steps numbered as in a trace."""
    step = claims_of(instance.config.policy).step
    for violation in result.violations:
        counterexample = violation.counterexample
        own, run, loop_from = instance, counterexample, counterexample.loop_from
        if instance.returning:
            own, run = _with_distinct_requests(instance, counterexample)
            loop_from = None if loop_from is None else len(counterexample.steps)
        is_step = [isinstance(edge.record, step) for edge in run.steps]
        records = [edge.record for edge in run.steps if isinstance(edge.record, step)]
        yield Finding(
            rule=violation.rule,
            found=violation.found,
            actions=tuple(edge.action for edge in counterexample.steps),
            instance=own,
            script=tuple(edge.action for edge in run.steps),
            steps=numbered(instance.config, records),
            end=run.last,
            loop=None if loop_from is None else sum(is_step[:loop_from]),
        )


def _with_distinct_requests(
    instance: AnyInstance, counterexample: Counterexample[Any]
) -> tuple[AnyInstance, Counterexample[Any]]:
    """The run with a separate request for each arrival, and the instance with these requests."""
    actions = repeating(counterexample)
    own = unrolled(instance, actions)
    model = machine_of(instance.config.policy).model(own)
    return own, Counterexample(counterexample.initial, tuple(unrolled_run(model, actions)))


def numbered(config: PolicyConfig, records: Iterable[Any]) -> tuple[SomeStep, ...]:
    """The steps with their numbers, their times in seconds and the requests aborted before each."""
    out: list[Any] = []
    time = 0.0
    for index, step in enumerate(records):
        gone = out[-1].after.aborted if out else frozenset[str]()
        aborted = tuple(sorted(step.before.aborted - gone))
        out.append(evolve(step, index=index, time=time, aborted=aborted))
        time += step_time(config, step.kind)
    return tuple(out)


def explore_all(
    instances: Sequence[AnyInstance], bounds: Bounds | None = None, *, order: Order = "bfs"
) -> Iterator[Exploration]:
    """Explore instances on all cores; yields explorations in the order of the instances."""
    yield from on_all_cores(
        partial(explore_instance, bounds=bounds, order=order, stop=stopping), instances
    )


def counterexample_name(exploration: Exploration, finding: Finding) -> str:
    """The file name of a counterexample, from instance and rule."""
    words = re.findall(r"[^\W_]+", title_of(exploration.instance))
    return f"{'-'.join([*words, finding.rule.lower()])}.jsonl"
