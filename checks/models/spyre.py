"""The Spyre machine with its environment, as a state graph to explore.

The scheduler is deterministic; what is not is the environment: which request arrives when,
which client goes away, which request samples the end of sequence.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import combinations

from attrs import evolve, field, frozen

from checks.explore.model import Always, Eventually, OnStep, Transition, Witness
from reference.spyre.machine import SpyreMachine
from spec.config import Config
from spec.records import Context, Step
from spec.requests import Request
from spec.rules import Kind, Rule, applicable
from spec.state import Sequence, State


@frozen(kw_only=True)
class Instance:
    """A bounded question: these requests under this configuration, and what may happen to them.

    `aborts`: requests whose client may go away, in any phase. `early_ends`: requests that may
    sample the end of sequence with any token. Arrivals are free in order and time.
    """

    name: str
    about: str
    config: Config
    requests: tuple[Request, ...]
    aborts: frozenset[str] = frozenset()
    early_ends: frozenset[str] = frozenset()


class SpyreModel:
    """The reachable states of an instance; implements the explorer's model."""

    def __init__(self, instance: Instance, machine: SpyreMachine | None = None) -> None:
        """`machine` replaces the reference, for planted faults.

        Raises:
            WorkloadError: a request of the instance could never be served.
        """
        self.instance = instance
        self.machine = machine or SpyreMachine.of(instance.config, instance.requests)
        self._classes = _interchangeable(instance)

    @property
    def ctx(self) -> Context:
        """What the rules look up."""
        return self.machine.ctx

    def initial(self) -> Iterable[State]:
        """One state: nobody has arrived."""
        yield self.machine.initial()

    def successors(self, state: State) -> Iterator[Transition[State]]:
        """Every arrival, abort and step that may come next."""
        known = {one.id for one in state.present} | state.finished | state.aborted
        for request in self.instance.requests:
            if request.id not in known:
                yield Transition(f"arrive {request.id}", self.machine.arrive(state, request.id))
        for one in state.present:
            if one.id in self.instance.aborts:
                yield Transition(f"abort {one.id}", self.machine.abort(state, one.id))
        if not state.is_idle:
            yield from self._steps(state)

    def _steps(self, state: State) -> Iterator[Transition[State]]:
        """The step in which nobody ends early, and one for each set of requests that do."""
        step = self.machine.step(state, ends=lambda _row: False)
        yield _as_transition(step, ())
        may_end = [
            one
            for one in step.outputs
            if one in self.instance.early_ends and one not in step.finished
        ]
        for count in range(1, len(may_end) + 1):
            for ending in combinations(may_end, count):
                ended = self.machine.step(state, ends=_one_of(ending))
                yield _as_transition(ended, ending)

    def canonical(self, state: State) -> Hashable:
        """The state with interchangeable requests named in the order of their places."""
        if not self._classes:
            return state
        return _renamed(state, self._classes)

    def unfinished(self, state: State) -> bool:
        """True if a request is pending."""
        return not state.is_idle


def _one_of(ending: tuple[str, ...]) -> Callable[[Sequence], bool]:
    return lambda row: row.id in ending


def _as_transition(step: Step, ending: tuple[str, ...]) -> Transition[State]:
    """The edge of a step; `ending` are those who sampled the end of sequence early."""
    label = f"step, {' and '.join(ending)} ends" if ending else "step"
    return Transition(label, step.after, record=evolve(step, ended=ending), fair=True)


# --- properties, taken from the registry --------------------------------------------------------


@frozen
class Properties:
    """The rules of an instance in the explorer's terms."""

    always: tuple[Always[State], ...]
    on_step: tuple[OnStep[State], ...]
    eventually: tuple[Eventually[State], ...]
    witnesses: tuple[Witness[State], ...]
    rules: tuple[Rule, ...] = field(repr=False)

    @property
    def all(self) -> list[Always[State] | OnStep[State] | Eventually[State]]:
        """Everything that can be violated."""
        return [*self.always, *self.on_step, *self.eventually]


def properties_of(model: SpyreModel) -> Properties:
    """The registry's rules that apply to the instance; no rule is defined here."""
    rules, ctx = applicable(model.instance.config), model.ctx
    return Properties(
        always=tuple(_always(rule, ctx) for rule in rules if rule.kind is Kind.ALWAYS),
        on_step=tuple(_on_step(rule, ctx) for rule in rules if rule.of_step or rule.of_change),
        eventually=tuple(_eventually(rule) for rule in rules if rule.kind is Kind.EVENTUALLY),
        witnesses=tuple(_witness(rule, ctx) for rule in rules),
        rules=tuple(rules),
    )


def _always(rule: Rule, ctx: Context) -> Always[State]:
    return Always(rule.id, lambda state: rule.found_in_state(ctx, state))


def _on_step(rule: Rule, ctx: Context) -> OnStep[State]:
    def holds(before: State, edge: Transition[State]) -> str | None:
        if isinstance(edge.record, Step):
            return rule.found_of_step(ctx, edge.record) if rule.of_step else None
        return rule.found_between(ctx, before, edge.state)

    return OnStep(rule.id, holds)


def _eventually(rule: Rule) -> Eventually[State]:
    goal = rule.goal
    assert goal is not None
    return Eventually(rule.id, lambda state: not goal(state), goal)


def _witness(rule: Rule, ctx: Context) -> Witness[State]:
    def seen(_before: State, edge: Transition[State]) -> bool:
        return isinstance(edge.record, Step) and rule.witness(ctx, edge.record)

    return Witness(rule.id, seen)


# --- symmetry -----------------------------------------------------------------------------------


def _interchangeable(instance: Instance) -> tuple[tuple[str, ...], ...]:
    """Groups of requests that differ in nothing but their id.

    With prefix caching their tokens must be equal too; without, no rule looks at tokens.
    """
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for request in instance.requests:
        tokens = tuple(request.prompt.tokens()) if instance.config.prefix_caching else None
        groups[
            request.prompt_len,
            request.max_tokens,
            tokens,
            request.output,
            request.id in instance.aborts,
            request.id in instance.early_ends,
        ].append(request.id)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _renamed(state: State, classes: tuple[tuple[str, ...], ...]) -> State:
    """The representative: within a class, names follow the places, first the ones present."""
    order = [one.id for one in (*state.waiting, *state.admitted)]
    order += [*sorted(state.finished), *sorted(state.aborted)]
    names: dict[str, str] = {}
    for group in classes:
        names.update(zip((one for one in order if one in group), group, strict=False))
    if all(old == new for old, new in names.items()):
        return state

    def renamed(queue: tuple[Sequence, ...]) -> tuple[Sequence, ...]:
        return tuple(evolve(one, id=names.get(one.id, one.id)) for one in queue)

    slot = renamed(() if state.prefilling is None else (state.prefilling,))
    return evolve(
        state,
        waiting=renamed(state.waiting),
        prefilling=slot[0] if slot else None,
        decoding=renamed(state.decoding),
        paused=renamed(state.paused),
        finished=frozenset(names.get(one, one) for one in state.finished),
        aborted=frozenset(names.get(one, one) for one in state.aborted),
    )
