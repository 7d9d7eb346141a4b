"""Explore instances, side by side where there are cores, and say what came out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

from attrs import evolve, field, frozen

from checks.cores import cores_here, on_all_cores
from checks.ending import stopping
from checks.explore.bounds import Bounds, Following
from checks.explore.checkpoint import Checkpoint
from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.instance import Instance, title_of
from checks.explore.model import Counterexample
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.result import Outcome, Result
from checks.explore.returning import repeating, run_of, unrolled
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
_FEW_STATES = 20_000  # which the reference goes through, every rule on every edge, in some seconds

_OWN_SENTENCES = {
    DEADLOCK: "While a request is pending there is a next step.",
    MACHINE_ERROR: "No transition is taken where its guard does not hold.",
}


def sentence(rule: str, rules: Mapping[str, AnyRule] = RULES) -> str:
    """What one of the rules says; the explorer has two of its own."""
    return _OWN_SENTENCES[rule] if rule in _OWN_SENTENCES else rules[rule].sentence


def rules_of(instance: AnyInstance) -> Mapping[str, AnyRule]:
    """The rules of the policy of an instance."""
    return claims_of(instance.config.policy).registry.rules


@frozen
class Finding:
    """A broken rule: what was found, the actions that lead there, and a run as files have it.

    Of that run: `instance`, in which each request comes once; `script`, its actions; `steps`, those
    that the scheduler took; `end`, the state that it ends in. `loop` is the step from which it
    repeats itself, if it never gets where it must: it goes round once more then, where clients come
    back.
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
    """What exploring one instance showed, by the `rules` that were judged in it.

    `result`: exact counts if the search is complete, without violations and checkpoint; `findings`:
    those violations, with their steps as a trace numbers them. `sampled`: rules that were judged on
    some edges only, and on how many. `using`: the machine that found the states.
    `chances_of_a_miss`: two estimates of how probable it is that a state was missed, where states
    were known by fingerprints.
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
        """By rule, the edges on which its witness was seen."""
        return {rule: seen.edges for rule, seen in self.result.witnesses.items()}

    @property
    def unseen(self) -> tuple[str, ...]:
        """Rules that hold only because nothing happened that they are about."""
        broken = {one.rule for one in self.findings}
        seen = self.witnesses
        return tuple(one for one in self.rules if one not in broken and not seen.get(one))

    @property
    def violations(self) -> dict[str, Any]:
        """By rule, what was found and after which actions, for JSON."""
        return {
            one.rule: {"found": one.found, "actions": list(one.actions)} for one in self.findings
        }

    def as_mapping(self) -> dict[str, Any]:
        """All of it for a JSON report; counterexamples are files of their own."""
        found = self.result
        return {
            "instance": title_of(self.instance),
            "about": self.instance.about,
            "config": self.instance.config.as_mapping(),
            "using": self.using,
            "outcome": found.outcome.value,
            "stopped_by": found.stopped_by,
            "states": found.states,
            "transitions": found.transitions,
            "depth": found.depth,
            "seconds": round(found.seconds, 3),
            "states_per_second": round(found.states_per_second) or None,
            "bytes_per_state": round(found.bytes_per_state),
            "actions": found.actions,
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
    """Judge every rule that applies in every reachable state; the first breach of each is kept.

    With `checkpoint` the search goes on from that file if it is there, and is saved to it every
    second and whenever a bound or `stop` ends it.

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
    """Find every reachable state with the compiled machine of the policy, on all cores.

    The rules that it judges in numbers are judged on every edge; all others that are judged of
    states and steps on the edges of 400 states, drawn with `seed`, and on these witnesses are
    looked for, too. With `fingerprints` states are known by 64 bits. With `checkpoint` the search
    goes on from that file if it is there, and its states are kept in it.

    Raises:
        InputError: the policy has no compiled machine, or not for this instance, or without numba.
        WorkloadError: a request of the instance could never be served.
        MachinesDifferError: the reference takes a step otherwise.
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
    found = search_with_room(
        model,
        machine.compiled(instance),
        properties,
        bounds,
        known=Known(fingerprints=fingerprints, seed=seed),
        journal=None if checkpoint is None else Journal(checkpoint, _about(instance)),
        cores=cores_here(),
        **following,
    )
    if found.difference is not None:
        raise MachinesDifferError(found.difference)
    complete = Outcome.HOLDS if found.stopped_by is None else Outcome.INCOMPLETE
    result = Result(
        outcome=Outcome.VIOLATED if found.broken else complete,
        stopped_by=found.stopped_by,
        states=found.states,
        transitions=found.transitions,
        depth=found.depth,
        deadlocks=0,
        violations=tuple(found.broken.values()),
        witnesses=found.witnesses,
        actions=dict(sorted(found.actions.items())),
        peak_queue=found.peak_queue,
        seconds=found.seconds,
        bytes_per_state=found.bytes_per_state,
        checkpoint=None,
        by_depth=tuple(found.by_depth),
    )
    rules = [rule.id for rule in properties.rules]
    return Exploration(
        instance,
        evolve(result, violations=()),
        tuple(_findings(instance, result)),
        tuple(one for one in rules if one in found.everywhere),
        {one: found.judged[one] for one in rules if one not in found.everywhere},
        "compiled",
        found.chances_of_a_miss,
    )


def explore_either(
    instance: AnyInstance,
    bounds: Bounds | None = None,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    **following: Unpack[Following],
) -> Exploration:
    """Explore with the reference if the states are few, else, where it can, with the other machine.

    A `checkpoint` is gone on from with the machine that kept it.

    Raises:
        WorkloadError: a request of the instance could never be served.
        MachinesDifferError: the reference takes a step otherwise.
    """
    asked = bounds or Bounds()
    with_reference = partial(explore_instance, instance, checkpoint=checkpoint, **following)
    with_numbers = partial(
        explore_compiled, instance, seed=seed, checkpoint=checkpoint, **following
    )
    if not _can_be_compiled(instance):
        return with_reference(asked)
    if checkpoint is not None and _is_journal(checkpoint):
        return with_numbers(asked)
    few = evolve(asked, max_states=min(asked.max_states or _FEW_STATES, _FEW_STATES))
    found = with_reference(few)
    if found.result.stopped_by != "max_states" or few.max_states == asked.max_states:
        return found
    if asked.max_seconds is not None:
        left = max(asked.max_seconds - found.result.seconds, 0)
        asked = evolve(asked, max_seconds=left)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return with_numbers(asked)


def _is_journal(path: Path) -> bool:
    from checks.explore.compiled.journal import is_journal  # compiled functions are loaded by that

    return is_journal(path)


def _can_be_compiled(instance: AnyInstance) -> bool:
    """True if there is a compiled machine that can have the instance."""
    compiled = machine_of(instance.config.policy).compiled
    try:
        return compiled is not None and bool(compiled(instance))
    except InputError:
        return False


def _about(instance: AnyInstance) -> Json:
    """What must be the same for a search to go on: the instance, and all that makes its verdict."""
    sources = sources_digest("spec", "reference", "checks/explore", "checks/policies")
    written = converter().unstructure(instance) | {"config": instance.config.as_mapping()}
    return {"instance": written, "sources": sources}


def _findings(instance: AnyInstance, result: Result[Any]) -> Iterator[Finding]:
    """The violations with their steps numbered as a trace numbers them."""
    step = claims_of(instance.config.policy).step
    for violation in result.violations:
        found = violation.counterexample
        own, run, loop_from = instance, found, found.loop_from
        if instance.returning:
            own, run = _each_time_anew(instance, found)
            loop_from = None if loop_from is None else len(found.steps)
        is_step = [isinstance(edge.record, step) for edge in run.steps]
        records = [edge.record for edge in run.steps if isinstance(edge.record, step)]
        yield Finding(
            rule=violation.rule,
            found=violation.found,
            actions=tuple(edge.action for edge in found.steps),
            instance=own,
            script=tuple(edge.action for edge in run.steps),
            steps=numbered(instance.config, records),
            end=run.last,
            loop=None if loop_from is None else sum(is_step[:loop_from]),
        )


def _each_time_anew(
    instance: AnyInstance, found: Counterexample[Any]
) -> tuple[AnyInstance, Counterexample[Any]]:
    """The run with a request of its own for each arrival, and the instance with these requests."""
    actions = repeating(found)
    own = unrolled(instance, actions)
    model = machine_of(instance.config.policy).model(own)
    return own, Counterexample(found.initial, tuple(run_of(model, actions)))


def numbered(config: PolicyConfig, records: Iterable[Any]) -> tuple[SomeStep, ...]:
    """The steps with their numbers, times and the requests aborted before each."""
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
    """Explore instances on all cores; yield them in the order given."""
    yield from on_all_cores(
        partial(explore_instance, bounds=bounds, order=order, stop=stopping), instances
    )


def counterexample_name(exploration: Exploration, finding: Finding) -> str:
    """A file name of instance and rule."""
    words = "".join(one if one.isalnum() else " " for one in title_of(exploration.instance)).split()
    return f"{'-'.join([*words, finding.rule.lower()])}.jsonl"
