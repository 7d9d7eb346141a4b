"""Links between proofs and references: the moves that proofs speak of, compared with edges.

A proof about runs speaks of moves: what a turn does to the budget, what an admission does to the
batch. That the reference makes these moves and no others is compared, not proven, whenever
something is called proven of every run of the machine: on every edge of the default instances of
the policy, in random runs with up to 40 rows, real block sizes and real lengths, and in smaller
runs of what those seldom meet. In all runs every rule is judged, too; in those under configurations
that the proofs leave out, nothing else is compared. One difference makes the evidence stale.
"""

from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

from attrs import define, field, frozen

from checks.explore.instance import Instance
from checks.explore.model import Transition
from checks.explore.policy import machine_of
from checks.explore.returning import Forgotten
from checks.harness.case import Case
from checks.harness.judging import Judge
from checks.harness.policy import evidence_of
from checks.harness.serving import served
from checks.proofs.scope import Scope
from checks.registry import POLICIES, claims_of
from reference.core.guards import GuardError
from spec.core.records import SomeContext, SomeState, StepRecord
from spec.core.rule import sentence_of

RUNS = 24  # random large runs of each link
RARE_RUNS = 16  # random runs of what the large ones seldom meet, where a link has such
MOST_ROWS = 40


@frozen
class Edge:
    """What a reference did: the states around it, and the record of a step, if it was one.

    Between two steps requests arrive or leave; `step` is None then.
    """

    ctx: SomeContext
    before: Any
    after: Any
    step: Any = None

    @property
    def arrived(self) -> frozenset[str]:
        """Requests that are present only after it."""
        return _ids(self.after) - _ids(self.before)

    @property
    def left(self) -> frozenset[str]:
        """Requests that are present only before it."""
        return _ids(self.before) - _ids(self.after)


def _ids(state: SomeState) -> frozenset[str]:
    return frozenset(row.id for row in state.present)


Comparison = Callable[[Edge], Iterator[str]]  # yields what differs from the moves


@frozen
class Move:
    """One kind of move, what it says in a sentence, and its comparison with an edge."""

    name: str
    sentence: str
    compare: Comparison


@define(eq=False)
class Link:
    """The moves that the proofs about one policy speak of.

    `covers`: configurations that the proofs are about. `stops`: default instances in which the
    reference is known to stop at a guard. `large_cases`: draws random large runs.
    `rare_cases`: draws runs of what those seldom meet.
    """

    policy: str
    scope: Scope
    large_cases: Callable[[Random], Case]
    covers: Callable[[Any], bool] = lambda _config: True
    stops: frozenset[str] = frozenset()
    rare_cases: Callable[[Random], Case] | None = None
    moves: dict[str, Move] = field(factory=dict, init=False)

    def move(self, name: str) -> Callable[[Comparison], Comparison]:
        """Register the decorated comparison; its docstring begins with the sentence."""

        def register(compare: Comparison) -> Comparison:
            self.moves[name] = Move(name, sentence_of(compare), compare)
            return compare

        return register

    def stale(self) -> str | None:
        """Why evidence about the machine is stale; None if the reference makes these moves."""
        return self.scope.stale() or next(self.differences(), None)

    def differences(self) -> Iterator[str]:
        """What the reference does otherwise, each difference in words."""
        for instance in machine_of(self.policy).instances:
            if self.covers(instance.config):
                yield from self.differences_in(instance)
        for number in range(RUNS):
            yield from self.differences_in_run(number)
        yield from self.differences_in_rare_runs()

    def differences_in(self, instance: Instance[Any]) -> Iterator[str]:
        """The edges of an instance that are other moves."""
        try:
            for edge in edges_of(instance):
                for move, found in self.found_on(edge):
                    yield f"instance {instance.name}: {move.name}: {found}"
        except Exception as error:  # of a guard, or of a reference that is wrong in any other way
            if not (isinstance(error, GuardError) and instance.name in self.stops):
                yield f"instance {instance.name}: the reference stops: {error}"

    def differences_in_run(self, number: int) -> Iterator[str]:
        """The steps of a random large run that are other moves, or break a rule."""
        yield from self._differences_in_drawn(self.large_cases, "random run", number)

    def differences_in_rare_runs(self) -> Iterator[str]:
        """The same of the runs of what large ones seldom meet."""
        if self.rare_cases is not None:
            for number in range(RARE_RUNS):
                yield from self._differences_in_drawn(self.rare_cases, "rare run", number)

    def _differences_in_drawn(
        self, draw: Callable[[Random], Case], kind: str, number: int
    ) -> Iterator[str]:
        """The steps of a drawn run that are other moves, or break a rule; `kind` names the draw."""
        name = f"{kind} {number}"
        try:
            case = draw(Random(f"{self.policy} {number}"))
            yield from (f"{name}, {found}" for found in self._differences_in_case(case))
        except Exception as error:  # of a guard, or of a reference that is wrong in any other way
            yield f"{name}: the reference stops: {error}"

    def _differences_in_case(self, case: Case) -> Iterator[str]:
        expected, is_covered = broken_as_expected(case), self.covers(case.config)
        judge = Judge(claims_of(case.config.policy).context_of(case.config, case.requests))
        before = machine_of(self.policy).of(case.config, case.requests).initial()
        for step in served(case):
            for edge in _edges_of_step(judge.ctx, before, step):
                for move, found in self.found_on(edge) if is_covered else ():
                    yield f"step {step.index}: {move.name}: {found}"
            for broken in judge.observe(step):
                if broken.rule.id not in expected:
                    yield f"step {step.index}: {broken.rule.id} is broken: {broken.found}"
            before = step.after

    def found_on(self, edge: Edge) -> Iterator[tuple[Move, str]]:
        """What differs from the moves on an edge."""
        for move in self.moves.values():
            for found in move.compare(edge):
                yield move, found


def edges_of(instance: Instance[Any]) -> Iterator[Edge]:
    """Every reachable edge of an instance once, states up to symmetry."""
    model: Any = machine_of(instance.config.policy).model(instance)
    pending = deque(model.initial())
    seen = {model.canonical(state) for state in pending}
    while pending:
        state = pending.popleft()
        for edge in model.successors(state):
            yield _edge(model.ctx, state, edge)
            key = model.canonical(edge.state)
            if key not in seen:
                seen.add(key)
                pending.append(edge.state)


def _edge(ctx: SomeContext, state: Any, edge: Transition[Any]) -> Edge:
    match edge.record:
        case StepRecord():
            return Edge(ctx, edge.record.before, edge.record.after, edge.record)
        case Forgotten(state=forgotten):
            return Edge(ctx, forgotten, edge.state)
    return Edge(ctx, state, edge.state)


def _edges_of_step(ctx: SomeContext, before: Any, step: StepRecord) -> Iterator[Edge]:
    """What happened since the step before, if anything, and the step."""
    if before != step.before:
        yield Edge(ctx, before, step.before)
    yield Edge(ctx, step.before, step.after, step)


def broken_as_expected(case: Case) -> set[str]:
    """The rules that are known not to hold under the case's configuration."""
    expected = evidence_of(case.config.policy).expected_violations
    return {rule for one in expected if one.where(case.config) for rule in one.rules}


def linked_moves() -> Iterator[tuple[str, str, str]]:
    """Each move that is compared: its policy, its name, and what it says."""
    for policy in POLICIES:
        package = f"{__package__}.{policy.replace('-', '_')}"
        if find_spec(package) is not None and find_spec(f"{package}.moves") is not None:
            link: Link = import_module(f"{package}.moves").LINK
            for move in link.moves.values():
                yield policy, move.name, move.sentence
