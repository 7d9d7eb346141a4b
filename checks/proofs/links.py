"""Links between proofs and references: the moves of proofs are compared with edges.

A proof about runs speaks of moves, such as the effect of a turn on the budget or of an admission on
the batch. Before a claim is called proven of every run of the machine, the reference is compared
with these moves: on every edge of the policy's default instances, in random runs with up to 40
rows, real block sizes and real lengths, and in smaller runs of rare situations. Every rule is
judged in all runs; under configurations that the proofs exclude, only the rules are judged. One
difference makes the evidence stale.
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
from checks.harness.runs.serving import served
from checks.proofs.scope import Scope
from checks.registry import POLICIES, claims_of
from reference.core.guards import GuardError
from spec.core.records import SomeContext, SomeState, StepRecord
from spec.core.rule import sentence_of

RUNS = 24  # random large runs of each link
RARE_RUNS = 16  # random runs of rare situations, if the link has any
MOST_ROWS = 40


@frozen
class Edge:
    """A transition of a reference: the states around it, and the record if it is a step.

    `step` is None if requests arrive or leave between two steps.
    """

    ctx: SomeContext
    before: Any
    after: Any
    step: Any = None

    @property
    def arrived(self) -> frozenset[str]:
        """Requests that are present only after the edge."""
        return _ids(self.after) - _ids(self.before)

    @property
    def left(self) -> frozenset[str]:
        """Requests that are present only before the edge."""
        return _ids(self.before) - _ids(self.after)


def _ids(state: SomeState) -> frozenset[str]:
    return frozenset(row.id for row in state.present)


Comparison = Callable[[Edge], Iterator[str]]  # yields the differences from the moves in words


@frozen
class Move:
    """One kind of move, its sentence, and its comparison with an edge."""

    name: str
    sentence: str
    compare: Comparison


@define(eq=False)
class Link:
    """The moves that the proofs about one policy speak of.

    `covers`: true for configurations that the proofs are about. `stops`: default instances in which
    the reference is known to stop at a guard. `beside`: those of requests that the proofs are not
    about. `large_cases` draws random large runs, `rare_cases` runs of rare situations.
    """

    policy: str
    scope: Scope
    large_cases: Callable[[Random], Case]
    covers: Callable[[Any], bool] = lambda _config: True
    stops: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
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
        """The differences between the reference and the moves, in words."""
        for instance in machine_of(self.policy).instances:
            if self.covers(instance.config) and instance.name not in self.beside:
                yield from self.instance_differences(instance)
        for number in range(RUNS):
            yield from self.differences_in_run(number)
        yield from self.differences_in_rare_runs()

    def instance_differences(self, instance: Instance[Any]) -> Iterator[str]:
        """The differences on the edges of an instance."""
        try:
            for edge in reachable_edges(instance):
                for move, found in self.move_differences(edge):
                    yield f"instance {instance.name}: {move.name}: {found}"
        except Exception as error:  # a guard's, or any other error of the reference
            if not (isinstance(error, GuardError) and instance.name in self.stops):
                yield f"instance {instance.name}: the reference stops: {error}"

    def differences_in_run(self, number: int) -> Iterator[str]:
        """The differences and broken rules in a random large run."""
        yield from self._differences_in_drawn(self.large_cases, "random run", number)

    def differences_in_rare_runs(self) -> Iterator[str]:
        """The differences and broken rules in the runs of rare situations."""
        if self.rare_cases is not None:
            for number in range(RARE_RUNS):
                yield from self._differences_in_drawn(self.rare_cases, "rare run", number)

    def _differences_in_drawn(
        self, draw: Callable[[Random], Case], kind: str, number: int
    ) -> Iterator[str]:
        """The differences and broken rules in a drawn run; `kind` is the name of the draw."""
        name = f"{kind} {number}"
        try:
            case = draw(Random(f"{self.policy} {number}"))
            yield from (f"{name}, {found}" for found in self._differences_in_case(case))
        except Exception as error:  # a guard's, or any other error of the reference
            yield f"{name}: the reference stops: {error}"

    def _differences_in_case(self, case: Case) -> Iterator[str]:
        expected, is_covered = broken_as_expected(case), self.covers(case.config)
        judge = Judge(claims_of(case.config.policy).context_of(case.config, case.requests))
        before = machine_of(self.policy).of(case.config, case.requests).initial()
        for step in served(case):
            for edge in _edges_of_step(judge.ctx, before, step):
                for move, found in self.move_differences(edge) if is_covered else ():
                    yield f"step {step.index}: {move.name}: {found}"
            for broken in judge.observe(step):
                if broken.rule.id not in expected:
                    yield f"step {step.index}: {broken.rule.id} is broken: {broken.found}"
            before = step.after

    def move_differences(self, edge: Edge) -> Iterator[tuple[Move, str]]:
        """The differences from the moves on an edge."""
        for move in self.moves.values():
            for found in move.compare(edge):
                yield move, found


def reachable_edges(instance: Instance[Any]) -> Iterator[Edge]:
    """Every reachable edge of an instance once, with states up to symmetry."""
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
    """The edge between the last step and this one, if the state changed, and the step."""
    if before != step.before:
        yield Edge(ctx, before, step.before)
    yield Edge(ctx, step.before, step.after, step)


def broken_as_expected(case: Case) -> set[str]:
    """The rules that are known not to hold under the case's configuration."""
    expected = evidence_of(case.config.policy).expected_violations
    fitting = (violation for violation in expected if violation.where(case.config))
    return {rule for violation in fitting for rule in violation.rules}


def linked_moves() -> Iterator[tuple[str, str, str]]:
    """Each compared move: its policy, its name, and its sentence."""
    for policy in POLICIES:
        package = f"{__package__}.{policy.replace('-', '_')}"
        if find_spec(package) is not None and find_spec(f"{package}.moves") is not None:
            link: Link = import_module(f"{package}.moves").LINK
            for move in link.moves.values():
                yield policy, move.name, move.sentence
