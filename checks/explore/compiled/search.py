"""Breadth-first search of a compiled machine: every state, and the rules that it judges in numbers.

All other rules are judged on the edges of some states drawn at random, where the reference takes
every step: that also shows that both machines still agree there.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter
from typing import Generic

import numpy as np
from attrs import define, field

from checks.explore.bounds import Bounds
from checks.explore.compiled.agreement import difference
from checks.explore.compiled.model import DOES_NOT_FIT, STUCK, CompiledModel
from checks.explore.compiled.table import Table, Words
from checks.explore.memory import peak_resident_bytes
from checks.explore.model import Always, Counterexample, Model, OnStep, StateT, Transition
from checks.explore.result import Progress

_BATCH_STATES = 1024
Safety = Sequence[Always[StateT] | OnStep[StateT]]


@define(kw_only=True)
class Searched(Generic[StateT]):
    """What a search of the compiled graph found; counts as in `checks.explore.result.Result`.

    `stopped_by`: None if every state was expanded, else a field of `Bounds`, "stop", or
    "difference". `judged`: on how many edges each rule was judged. `broken`: by rule, a shortest
    run that breaks it. `difference`: in what the reference, asked for the same, did otherwise.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    peak_queue: int = 0
    seconds: float = 0.0
    bytes_per_state: float = 0.0
    stopped_by: str | None = None
    difference: str | None = None
    judged: Counter[str] = field(factory=Counter)
    broken: dict[str, Counterexample[StateT]] = field(factory=dict)

    @property
    def states_per_second(self) -> float:
        """Distinct states found per second of wall-clock time."""
        return self.states / self.seconds if self.seconds else 0.0


class DoesNotFitError(Exception):
    """A state does not fit into its words; with more words it may."""


@define
class _Edges:
    """Room for all edges of a batch of states."""

    found: Words
    sources: Words
    actions: Words
    broken: Words
    homes: Words

    @staticmethod
    def of(compiled: CompiledModel[StateT]) -> "_Edges":
        """For states of this machine."""
        most = _BATCH_STATES * compiled.most_edges
        numbers = np.zeros((4, most + 1), np.int64)
        return _Edges(np.zeros((most, compiled.words), np.int64), *numbers)


def search(
    model: Model[StateT],
    compiled: CompiledModel[StateT],
    safety: Safety[StateT] = (),
    bounds: Bounds | None = None,
    *,
    sample: int = 100,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Searched[StateT]:
    """Find every state of `compiled`, the machine that has the graph of `model`.

    Rules that it judges in numbers are judged on every edge, of each the first breach is kept and
    found again on the reference. Of `sample` states, drawn with `seed`, all edges are taken by the
    reference and judged by all of `safety`. Bounds are those of any search, but for walks.

    Raises:
        DoesNotFitError: the states of the machine have too few words.
    """
    bounds = bounds or Bounds()
    result: Searched[StateT] = Searched()
    table, first_breaches = Table(compiled.words), dict[str, tuple[int, Words]]()
    began = perf_counter()
    result.stopped_by = _exhaust(
        *(compiled, table, bounds, result, first_breaches),
        began=began,
        progress=progress,
        stop=stop,
    )
    result.seconds = perf_counter() - began
    result.states, result.bytes_per_state = table.count, table.bytes_per_state
    result.judged.update(dict.fromkeys(compiled.rules, result.transitions))
    for rule, (source, target) in first_breaches.items():
        run = _run_along(model, compiled, [*table.way_to(source), target])
        if run is None or not _is_broken(safety, rule, run):
            result.difference = f"{rule} is broken in numbers, and not by its predicate"
            result.stopped_by = "difference"
        else:
            result.broken[rule] = run
    _judge_some(model, compiled, table, safety, Random(seed), sample, result)
    return result


def _exhaust(
    compiled: CompiledModel[StateT],
    table: Table,
    bounds: Bounds,
    result: Searched[StateT],
    first_breaches: dict[str, tuple[int, Words]],
    *,
    began: float,
    progress: Callable[[Progress], None] | None,
    stop: Callable[[], bool] | None,
) -> str | None:
    """Expand states until none is left; returns what ended it earlier."""
    edges = _Edges.of(compiled)
    edges.found[0] = compiled.first()
    table.add(edges.found, edges.sources, 1, edges.homes)
    expanded, level = 0, 1  # of the states of a depth the last is before `level`
    while expanded < table.count:
        queue = table.count - expanded
        result.peak_queue = max(result.peak_queue, queue)
        seconds = perf_counter() - began
        if reason := _reason_to_stop(bounds, table, result.depth, seconds, stop):
            return reason
        if progress is not None:
            rate = table.count / seconds
            progress(Progress(table.count, result.transitions, result.depth, queue, rate))
        last = min(expanded + _BATCH_STATES, level)
        count = compiled.expand(
            *(table.states, expanded, last),
            *(edges.found, edges.sources, edges.actions, edges.broken),
        )
        if count == DOES_NOT_FIT:
            raise DoesNotFitError
        if count == STUCK:
            state = compiled.decoded(table.states[edges.sources[0]])
            result.difference = f"no step is possible from {state}"
            return "difference"
        _note_breaches(compiled.rules, edges, count, first_breaches)
        result.transitions += count
        table.add(edges.found, edges.sources, count, edges.homes)
        expanded = last
        if expanded == level and level < table.count:
            level, result.depth = table.count, result.depth + 1
    return None


def _reason_to_stop(
    bounds: Bounds, table: Table, depth: int, seconds: float, stop: Callable[[], bool] | None
) -> str | None:
    if bounds.max_states is not None and table.count > bounds.max_states:
        return "max_states"
    if bounds.max_depth is not None and depth >= bounds.max_depth:
        return "max_depth"
    if bounds.max_seconds is not None and seconds >= bounds.max_seconds:
        return "max_seconds"
    if stop is not None and stop():
        return "stop"
    most = bounds.max_memory_bytes
    return "max_memory_bytes" if most is not None and peak_resident_bytes() > most else None


def _note_breaches(
    rules: Sequence[str], edges: _Edges, count: int, first_breaches: dict[str, tuple[int, Words]]
) -> None:
    """Keep where a rule is broken for the first time: the state before, and the one behind."""
    broken = edges.broken[:count]
    if not broken.any():
        return
    for bit, rule in enumerate(rules):
        if rule not in first_breaches and (hits := np.flatnonzero(broken >> bit & 1)).size:
            edge = hits[0]
            first_breaches[rule] = int(edges.sources[edge]), edges.found[edge].copy()


# --- on the reference -----------------------------------------------------------------------------


def _run_along(
    model: Model[StateT], compiled: CompiledModel[StateT], way: Sequence[Words]
) -> Counterexample[StateT] | None:
    """The run of the reference through these packed states; None if it has no such run."""
    (state,) = model.initial()
    run = Counterexample(state)
    for words in way[1:]:
        found = (
            edge
            for edge in model.successors(run.last)
            if (compiled.encoded(edge.state) == words).all()
        )
        edge = next(found, None)
        if edge is None:
            return None
        run = run.then(edge)
    return run


def _is_broken(safety: Safety[StateT], rule: str, run: Counterexample[StateT]) -> bool:
    """True if the last transition of a run breaks the rule, by its predicate."""
    before = run.steps[-2].state if len(run.steps) > 1 else run.initial
    return rule in _broken(safety, before, run.steps[-1])


def _broken(safety: Safety[StateT], before: StateT, edge: Transition[StateT]) -> list[str]:
    """The rules that a transition breaks."""
    found = []
    for one in safety:
        if isinstance(one, Always):
            wrong = one.holds(edge.state)
        else:
            wrong = one.holds(before, edge) if isinstance(edge.record, one.of) else None
        if wrong is not None:
            found.append(one.rule)
    return found


def _judge_some(
    model: Model[StateT],
    compiled: CompiledModel[StateT],
    table: Table,
    safety: Safety[StateT],
    random: Random,
    sample: int,
    result: Searched[StateT],
) -> None:
    """Take all edges of some states on the reference: compare them, and judge every rule."""
    others = [one for one in safety if one.rule not in compiled.rules]
    for index in random.sample(range(table.count), min(sample, table.count)):
        words = table.states[index]
        if found := difference(model, compiled, words):
            result.difference, result.stopped_by = found, "difference"
            return
        state = compiled.decoded(words)
        for edge in model.successors(state):
            result.judged.update(one.rule for one in others)
            for rule in _broken(others, state, edge):
                run = _run_along(model, compiled, table.way_to(index))
                if rule not in result.broken and run is not None:
                    result.broken[rule] = run.then(edge)
