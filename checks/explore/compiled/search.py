"""Breadth-first search of a compiled machine: all states, and the rules judged in numbers.

All other rules are judged on the edges of randomly drawn states, where the reference repeats every
step: this also shows that the two machines agree there.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Generic, Unpack

import numpy as np
from attrs import define, evolve, field, frozen

from checks.explore.bounds import Bounds, Following
from checks.explore.compiled import liveness
from checks.explore.compiled.agreement import difference
from checks.explore.compiled.edges import PARTITIONS, Edges, Room
from checks.explore.compiled.journal import Breach, Journal, Position
from checks.explore.compiled.model import DOES_NOT_FIT, STUCK, CompiledModel, Words
from checks.explore.compiled.sketch import Sketch, chances_of_a_miss
from checks.explore.compiled.table import Table
from checks.explore.memory import peak_resident_bytes
from checks.explore.model import (
    Always,
    Counterexample,
    Eventually,
    Model,
    OnStep,
    Sightings,
    StateT,
    Transition,
    Violation,
    Witness,
)
from checks.explore.properties import Properties
from checks.explore.result import Progress
from checks.explore.search import endless
from spec.core.arithmetic import cdiv

_BATCH_STATES, _ROUND_BATCHES = 1024, 16
_ACTIONS = 1 << 10
_SAMPLE = 400  # states whose edges the reference repeats
_STEP = "step"  # the first word of the label of an action that must happen
_MOST_FOR_CYCLES = 10_000_000  # states; cycles of larger graphs are not searched
_KEPT_EVERY_SECONDS = 1.0
_KEEPING_SHARE = 0.05  # largest share of the time spent on writing the journal
Safety = Sequence[Always[StateT] | OnStep[StateT]]
# Calls work(core, number) for each number below the count; `core` is the number of the core.
Share = Callable[[Callable[[int, int], None], int], None]


@define(kw_only=True)
class Searched(Generic[StateT]):
    """The result of a search of the compiled graph; counts as in `checks.explore.result.Result`.

    `stopped_by`: None if every state was expanded, else a field of `Bounds`, "stop", or
    "difference". `actions`: edges by the first word of their label. `judged`: by rule, the number
    of edges on which it was judged; `everywhere`: the rules judged on all edges. `broken`: by rule,
    its first violation; for rules judged in numbers the run is a shortest one. `witnesses`: by
    rule, sightings on the edges that the reference repeated. `difference`: where the reference
    took another step. `chances_of_a_miss`: see that function; None without fingerprints.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    by_depth: list[int] = field(factory=list)
    peak_queue: int = 0
    seconds: float = 0.0
    bytes_per_state: float = 0.0
    stopped_by: str | None = None
    difference: str | None = None
    judged: Counter[str] = field(factory=Counter)
    everywhere: Sequence[str] = ()
    actions: Counter[str] = field(factory=Counter)
    broken: dict[str, Violation[StateT]] = field(factory=dict)
    witnesses: dict[str, Sightings] = field(factory=dict)
    chances_of_a_miss: tuple[float, float] | None = None

    @property
    def states_per_second(self) -> float:
        """Distinct states found per second of wall-clock time."""
        return self.states / self.seconds if self.seconds else 0.0

    def sight(self, rule: str, depth: int) -> None:
        """Count a sighting of a rule's witness on an edge to a state of this depth."""
        seen = self.witnesses[rule]
        first = depth if seen.first_depth is None else min(seen.first_depth, depth)
        self.witnesses[rule] = Sightings(seen.edges + 1, first)

    def differs(self, difference: str) -> None:
        """Record a difference between the machines: the result is then no evidence."""
        self.difference, self.stopped_by = difference, "difference"


class MachinesDifferError(Exception):
    """The reference takes another step: the compiled machine's graph is no evidence."""


class DoesNotFitError(Exception):
    """A state does not fit into its words; it may fit into more words."""


@frozen
class Known:
    """How states are identified, and how many of them are drawn for the reference.

    `fingerprints`: states are identified by 64-bit fingerprints instead of by their words.
    `sample`: number of states whose edges the reference repeats, drawn with `seed`.
    """

    fingerprints: bool = False
    sample: int = _SAMPLE
    seed: int = 0

    def table(self, words: int) -> Table | Sketch:
        """An empty table for states of this number of words."""
        return (Sketch if self.fingerprints else Table)(words, self.seed, self.sample)


def search_with_room(
    model: Model[StateT],
    make_compiled: Callable[[int | None], CompiledModel[StateT]],
    properties: Properties[StateT],
    bounds: Bounds | None = None,
    *,
    known: Known | None = None,
    journal: Journal | None = None,
    cores: int = 1,
    **following: Unpack[Following],
) -> Searched[StateT]:
    """Search with as few words for a state as suffice.

    If a state does not fit, the search starts again with one more word. `make_compiled` makes the
    machine for a number of words; None means the smallest number. With a `journal` the search
    continues from its end and is saved to it.

    Raises:
        CheckpointError: the journal is damaged or about another search.
        OSError: the journal cannot be written.
    """
    words = None if journal is None else journal.words()
    while True:
        compiled = make_compiled(words)
        words = compiled.words + 1
        with suppress(DoesNotFitError):
            return search(
                *(model, compiled, properties, bounds),
                known=known,
                journal=journal,
                cores=cores,
                **following,
            )
        if journal is not None:
            journal = Journal(journal.path, journal.about)  # an empty journal
            journal.path.unlink(missing_ok=True)


def search(
    model: Model[StateT],
    compiled: CompiledModel[StateT],
    properties: Properties[StateT],
    bounds: Bounds | None = None,
    *,
    known: Known | None = None,
    journal: Journal | None = None,
    cores: int = 1,
    **following: Unpack[Following],
) -> Searched[StateT]:
    """Find every state of `compiled`, the machine that has the graph of `model`.

    Rules that the compiled machine judges in numbers are judged on every edge; the first breach of
    each is kept and reproduced on the reference. For a sample of states the reference repeats all
    edges; there all of `properties.safety` is judged and witnesses are searched for. All bounds
    apply but `max_walks`. Liveness is judged on the whole graph if that is complete and not too
    large. With fingerprints liveness is not judged, and there is no journal. The states and their
    order do not depend on the number of `cores`.

    Raises:
        DoesNotFitError: the states of the machine have too few words.
    """
    table, safety = (known or Known()).table(compiled.words), properties.safety
    running = _Search(
        compiled,
        table,
        bounds or Bounds(),
        following,
        _cores(compiled, cores),
        journal,
    )
    running.run()
    result = running.result
    (start,) = model.initial()
    for prop in safety:
        if isinstance(prop, Always) and (message := prop.holds(start)) is not None:
            result.broken[prop.rule] = Violation(prop.rule, message, Counterexample(start))
    for rule, (source, target) in running.breaches.items():
        run = _run_along(model, compiled, [*running.route(source), target])
        wrong = None if run is None else _broken_at_end(safety, run).get(rule)
        if run is None or wrong is None:
            result.differs(f"{rule} is broken in numbers, and not by its predicate")
        else:
            result.broken.setdefault(rule, Violation(rule, wrong, run))
    if isinstance(table, Sketch):
        result.chances_of_a_miss = chances_of_a_miss(result.states, result.transitions)
    elif result.stopped_by is None and result.states <= _MOST_FOR_CYCLES:
        _judge_cycles(model, running, table, properties.eventually)
    if result.difference is None:
        drawn = table.drawn()
        _judge(model, running, drawn, safety, properties.witnesses)
    return result


@define
class _Core(Generic[StateT]):
    """A core's own machine and buffers; `kinds`: its number of edges by action."""

    machine: CompiledModel[StateT]
    room: Room
    kinds: Words


def _cores(compiled: CompiledModel[StateT], count: int) -> list[_Core[StateT]]:
    """`count` cores, each with a machine of its own."""
    most = _BATCH_STATES * compiled.most_edges
    return [
        _Core(compiled.another(), Room(compiled.words, most), np.zeros(_ACTIONS, np.int64))
        for _ in range(count)
    ]


@define
class _Search(Generic[StateT]):
    """A search in progress.

    `breaches`: by rule, the source index and the target state of the first edge that breaks it.
    `expanded` and `levels`: see `Position`.

    States are expanded in rounds of several batches. In a round the cores first share the batches,
    to compute their `edges`, then the partitions of the table, to find and store the new target
    states. States are therefore numbered in the order of edges with any number of cores.
    """

    compiled: CompiledModel[StateT]
    table: Table | Sketch
    bounds: Bounds
    following: Following
    cores: list[_Core[StateT]]
    journal: Journal | None = None
    result: Searched[StateT] = field(factory=Searched)
    breaches: dict[str, tuple[int, Words]] = field(factory=dict)
    expanded: int = 0
    levels: list[int] = field(factory=lambda: [0, 1])
    began: float = 0.0
    edges: Edges = field(init=False)

    def __attrs_post_init__(self) -> None:
        most = _BATCH_STATES * self.compiled.most_edges
        self.edges = Edges.empty(self.compiled.words, most, _ROUND_BATCHES)
        with _sharing(1) as share:
            self._put(Edges.to(self.compiled.first().reshape(1, -1), np.zeros(1, np.int64)), share)
        self._take(0, 0, 1)  # loads the compiled functions

    def run(self) -> None:
        """Expand states until none is left or a bound is reached."""
        table, result = self.table, self.result
        earlier = self._resume()
        self.began = perf_counter() - earlier
        with _sharing(len(self.cores)) as share:
            self._expand_all(share, earlier)
        result.seconds = perf_counter() - self.began
        self._keep()
        levels = self.levels
        if levels[-1] < table.count:  # a bound ended it within a depth
            levels = [*levels, table.count]
        result.by_depth = [end - begin for begin, end in pairwise(levels)]
        result.states, result.bytes_per_state = table.count, table.bytes_per_state
        result.everywhere = self.compiled.rules
        result.judged.update(dict.fromkeys(self.compiled.rules, result.transitions))
        for action, edges in self._actions().items():
            result.actions[self._kind(action)] += edges

    def _expand_all(self, share: Share, earlier: float) -> None:
        """Expand states; `earlier`: seconds spent before this run."""
        table, result = self.table, self.result
        self._begin_next_depth()  # an earlier run may have been killed between two depths
        while self.expanded < table.count and result.stopped_by is None:
            result.peak_queue = max(result.peak_queue, table.count - self.expanded)
            result.stopped_by = self._reason_to_stop(perf_counter() - self.began - earlier)
            if result.stopped_by is None:
                self._show()
                self._expand(share)
            self._begin_next_depth()

    def _begin_next_depth(self) -> None:
        """Begin the next depth if all states of the present one are expanded."""
        if self.expanded == self.levels[-1] < self.table.count:
            self.levels.append(self.table.count)
            self.result.depth += 1

    def _actions(self) -> dict[int, int]:
        """By action, its number of edges; no zeros."""
        edges = np.sum([core.kinds for core in self.cores], axis=0)
        return {int(action): int(edges[action]) for action in np.flatnonzero(edges)}

    def _kind(self, action: int) -> str:
        """The first word of the label of an action."""
        kind, *_ = self.compiled.label(action).replace(",", "").split()
        return kind

    def state_depth(self, index: int) -> int:
        """The depth of the state with this index."""
        return bisect_right(self.levels, index) - 1

    def route(self, index: int) -> list[Words]:
        """The states on the path to the state with this index, from the initial one on.

        A sketch does not keep them: a second search finds them, with the same indices.
        """
        if isinstance(self.table, Table):
            return self.table.route(index)
        table, bounds = Table(self.table.words), Bounds(max_states=index + 1)
        cores = _cores(self.compiled, len(self.cores))
        again = _Search(self.compiled, table, bounds, {}, cores)
        again.run()
        return again.route(index)

    def graph(self, table: Table) -> liveness.Graph:
        """The graph of all states for liveness, with the goals that each state still has to reach.

        Edges are not stored: they are computed again.
        """
        sizes = np.zeros(table.count + 1, np.int64)
        targets = np.zeros(self.result.transitions, np.int32)
        steps = np.zeros(self.result.transitions, np.bool_)
        must_happen = np.zeros(_ACTIONS, np.bool_)
        for action in self._actions():
            must_happen[action] = self._kind(action) == _STEP
        at = 0
        for first in range(0, table.count, _BATCH_STATES):
            last = min(first + _BATCH_STATES, table.count)
            count, room = self._take(0, first, last), self.cores[0].room
            sources = room.sources[:count] - first
            sizes[first + 1 : last + 1] = np.bincount(sources, minlength=last - first)
            targets[at : at + count] = table.indices(room.targets[:count])
            steps[at : at + count] = must_happen[room.actions[:count]]
            at += count
        goals = np.zeros(table.count, np.int64)
        self.compiled.open_goals(table.states[: table.count], goals)
        return liveness.Graph(np.cumsum(sizes), targets, steps, goals)

    def _expand(self, share: Share) -> None:
        """Compute all edges of the next round of states of the present depth."""
        first, edges = self.expanded, self.edges
        last = min(first + _BATCH_STATES * _ROUND_BATCHES, self.levels[-1])
        edges.used = cdiv(last - first, _BATCH_STATES)
        share(partial(self._take_batch, first, last), edges.used)
        counts = edges.counts[: edges.used]
        if counts.min() < 0:
            self._refuse()
            return
        for batch in range(edges.used):
            self._note_breaches(edges.of_batch(batch))
        self.result.transitions += int(counts.sum())
        self._put(edges, share)
        self.expanded = last
        self.table.forget(last)
        if self.journal is not None and perf_counter() - self.began >= self.journal.due_seconds:
            self._keep()

    def _take(self, core: int, first: int, last: int) -> int:
        """Write the edges of the states from `first` to before `last` into a core's buffers.

        Returns their number, or the error code of `CompiledModel.expand`.
        """
        room = self.cores[core].room
        states, row = self.table.window(first, last)
        rooms = room.targets, room.sources, room.actions, room.broken
        count = self.cores[core].machine.expand(states, row, row + last - first, *rooms)
        room.sources[: max(count, 1)] += first - row  # as indices of all states
        return count

    def _take_batch(self, first: int, last: int, core: int, batch: int) -> None:
        """Compute the edges of a batch of states and copy them into the round's edges."""
        begin = first + batch * _BATCH_STATES
        own, count = self.cores[core], self._take(core, begin, min(begin + _BATCH_STATES, last))
        room = own.room
        self.edges.counts[batch] = count
        if count >= 0:
            self.edges.arrange(room, count, batch)
            own.kinds += np.bincount(room.actions[:count], minlength=_ACTIONS)
        else:
            self.edges.sources[batch * self.edges.size] = room.sources[0]

    def _refuse(self) -> None:
        """Report the error of the first batch without edges.

        Raises:
            DoesNotFitError: a state needs more words.
        """
        counts = self.edges.counts
        batch = int(np.flatnonzero(counts < 0)[0])
        if counts[batch] == DOES_NOT_FIT:
            raise DoesNotFitError
        assert counts[batch] == STUCK
        source = int(self.edges.sources[batch * self.edges.size])
        states, row = self.table.window(source, source + 1)
        state = self.compiled.decoded(states[row])
        self.result.differs(f"a guard of the compiled machine does not hold in {state}")

    def _put(self, edges: Edges, share: Share) -> None:
        """Add the new target states of edges to the table."""
        self.table.prepare(edges)
        share(lambda _core, partition: self.table.find(edges, partition), PARTITIONS)
        self.table.number(edges)
        share(lambda _core, batch: self.table.keep(edges, batch), edges.used)

    def _note_breaches(self, own: slice) -> None:
        edges = self.edges
        if not edges.broken[own].any():
            return
        order = edges.order[own]
        broken = edges.broken[order]
        for bit, rule in enumerate(self.compiled.rules):
            hits = np.flatnonzero(broken >> bit & 1)
            if hits.size and rule not in self.breaches:
                edge = order[hits[0]]
                self.breaches[rule] = int(edges.sources[edge]), edges.targets[edge].copy()

    def _resume(self) -> float:
        """Resume where the journal ends; returns the seconds spent before."""
        table, journal = self.table, self.journal
        if journal is None or not isinstance(table, Table):
            return 0.0
        journal.due_seconds = _KEPT_EVERY_SECONDS
        position = journal.restore(table) if journal.path.exists() else None
        if position is None:
            return 0.0
        result = self.result
        self.expanded, self.levels = position.expanded, position.levels
        result.transitions, result.peak_queue = position.transitions, position.peak_queue
        result.depth = len(position.levels) - 2
        for action, edges in position.kinds.items():
            self.cores[0].kinds[int(action)] = edges
        for rule, breach in position.breaches.items():
            self.breaches[rule] = breach.source, np.array(breach.target, np.int64)
        journal.due_seconds = position.seconds + _KEPT_EVERY_SECONDS
        return position.seconds

    def _keep(self) -> None:
        """Append the new states to the journal, if there is one."""
        table, journal = self.table, self.journal
        if journal is None or not isinstance(table, Table) or self.result.difference is not None:
            return
        began = perf_counter()
        position = Position(
            expanded=self.expanded,
            levels=self.levels,
            transitions=self.result.transitions,
            peak_queue=self.result.peak_queue,
            seconds=began - self.began,
            kinds={str(action): edges for action, edges in self._actions().items()},
            breaches={
                rule: Breach(source=source, target=target.tolist())
                for rule, (source, target) in self.breaches.items()
            },
        )
        journal.append(table, position)
        took = perf_counter() - began
        pause = max(_KEPT_EVERY_SECONDS, took / _KEEPING_SHARE)
        journal.due_seconds = perf_counter() - self.began + pause

    def _reason_to_stop(self, seconds: float) -> str | None:
        bounds, most = self.bounds, self.bounds.max_memory_bytes
        if bounds.max_states is not None and self.table.count > bounds.max_states:
            return "max_states"
        if bounds.max_depth is not None and self.result.depth >= bounds.max_depth:
            return "max_depth"
        if bounds.max_seconds is not None and seconds >= bounds.max_seconds:
            return "max_seconds"
        if (stop := self.following.get("stop")) is not None and stop():
            return "stop"
        return "max_memory_bytes" if most is not None and peak_resident_bytes() > most else None

    def _show(self) -> None:
        if (progress := self.following.get("progress")) is not None:
            states, seconds = self.table.count, perf_counter() - self.began
            queue = states - self.expanded
            rate = states / seconds
            at = Progress(states, self.result.transitions, self.result.depth, queue, rate)
            progress(at)


@contextmanager
def _sharing(cores: int) -> Iterator[Share]:
    """Share work among `cores` threads, this one included: each takes the next number."""
    with ThreadPoolExecutor(max(cores - 1, 1)) as threads:

        def share(work: Callable[[int, int], None], count: int) -> None:
            left = iter(range(count))

            def take_part(core: int) -> None:
                for number in left:
                    work(core, number)

            others = [threads.submit(take_part, core) for core in range(1, cores)]
            take_part(0)
            for other in others:
                other.result()

        yield share


# --- on the reference -----------------------------------------------------------------------------


def _run_along(
    model: Model[StateT], compiled: CompiledModel[StateT], way: Sequence[Words]
) -> Counterexample[StateT] | None:
    """The reference's run through these packed states; None if it has none."""
    (state,) = model.initial()
    run = Counterexample(state)
    for words in way[1:]:
        fitting = (
            edge
            for edge in model.successors(run.last)
            if (compiled.encoded(edge.state) == words).all()
        )
        # A cycle needs a fair action.
        edge = max(fitting, key=lambda transition: transition.fair, default=None)
        if edge is None:
            return None
        run = run.then(edge)
    return run


def _judge_cycles(
    model: Model[StateT],
    running: _Search[StateT],
    table: Table,
    eventually: Sequence[Eventually[StateT]],
) -> None:
    """Judge the liveness rules; the first breach of each rule is kept.

    Rules of a model that merges equal requests are skipped: a request cannot be followed there.
    """
    result, bits = running.result, {goal: bit for bit, goal in enumerate(running.compiled.goals)}
    asked = [
        goal_rule
        for goal_rule in eventually
        if (goal_rule.rule, goal_rule.of) in bits and goal_rule.places is None
    ]
    if not asked:
        return
    graph = running.graph(table)
    core = liveness.cycle_states(graph)
    for goal_rule in asked:
        result.judged[goal_rule.rule] = result.transitions
        cycle = liveness.find_cycle(graph, bits[goal_rule.rule, goal_rule.of], core)
        if cycle is None or goal_rule.rule in result.broken:
            continue
        way = table.route(cycle.states[0])
        rounds = [table.states[index] for index in cycle.states[1:]]
        run = _run_along(model, running.compiled, [*way, *rounds])
        if run is None or any(goal_rule.goal(edge.state) for edge in run.steps[len(way) - 1 :]):
            result.differs(f"{goal_rule.rule} is broken in numbers, and not by its goal")
            return
        run = evolve(run, loop_from=len(way) - 1)
        result.broken[goal_rule.rule] = Violation(
            goal_rule.rule, f"{goal_rule.of}: {endless(run)}", run
        )
    result.everywhere = [*result.everywhere, *dict.fromkeys(goal_rule.rule for goal_rule in asked)]


def _broken_at_end(safety: Safety[StateT], run: Counterexample[StateT]) -> dict[str, str]:
    """By rule, how the last transition of a run breaks it."""
    before = run.steps[-2].state if len(run.steps) > 1 else run.initial
    return broken_rules(safety, before, run.steps[-1])


def broken_rules(
    safety: Safety[StateT], before: StateT, edge: Transition[StateT]
) -> dict[str, str]:
    """By rule, how a transition breaks it."""
    broken = {}
    for prop in safety:
        if isinstance(prop, Always):
            wrong = prop.holds(edge.state)
        else:
            wrong = prop.holds(before, edge) if isinstance(edge.record, prop.of) else None
        if wrong is not None:
            broken[prop.rule] = wrong
    return broken


def _judge(
    model: Model[StateT],
    running: _Search[StateT],
    drawn: Mapping[int, Words],
    safety: Safety[StateT],
    witnesses: Sequence[Witness[StateT]],
) -> None:
    """Repeat all edges of the drawn states on the reference; compare them and judge every rule."""
    result, compiled = running.result, running.compiled
    others = [prop for prop in safety if prop.rule not in compiled.rules]
    result.witnesses = {witness.rule: Sightings() for witness in witnesses}
    for index, words in drawn.items():
        if text := difference(model, compiled, words):
            result.differs(text)
            return
        state, depth = compiled.decoded(words), running.state_depth(index) + 1
        for edge in model.successors(state):
            result.judged.update(prop.rule for prop in others)
            for witness in witnesses:
                if isinstance(edge.record, witness.of) and witness.seen(state, edge):
                    result.sight(witness.rule, depth)
            for rule in broken_rules(others, state, edge).keys() - result.broken.keys():
                way = [*running.route(index), compiled.encoded(edge.state)]
                run = _run_along(model, compiled, way)
                if run is not None and (wrong := _broken_at_end(others, run).get(rule)):
                    result.broken[rule] = Violation(rule, wrong, run)
