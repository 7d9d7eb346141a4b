"""The explorer: every reachable state of a machine, or random walks through it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from random import Random
from typing import Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
from attrs import evolve

from checks.explore.bounds import Bounds, Controls, Watch
from checks.explore.checkpoint import Checkpoint, Piece, Setup
from checks.explore.examine import Examiner, HaltError
from checks.explore.liveness import Edges, recurrence, refutation
from checks.explore.memory import bytes_per_state
from checks.explore.model import (
    Counterexample,
    Eventually,
    Model,
    Property,
    Sightings,
    StateT,
    Transition,
    Violation,
    Witness,
)
from checks.explore.replay import rebuild_run, run_along
from checks.explore.result import Outcome, Progress, Result
from checks.explore.store import Store
from checks.explore.threads import Threads, request_threads
from checks.export.checkpoint import require_equal

Order: TypeAlias = Literal["bfs", "dfs", "random"]
_STOP_EVERY = 1_000  # states between two calls of `stop` while steps are repeated


def explore(
    model: Model[StateT],
    properties: Sequence[Property[StateT]],
    witnesses: Sequence[Witness[StateT]] = (),
    *,
    order: Order = "bfs",
    bounds: Bounds | None = None,
    seed: int = 0,
    keep_going: bool = False,
    **controls: Unpack[Controls],
) -> Result[StateT]:
    """Check the properties in every reachable state and on every edge.

    Breadth-first ("bfs") the counterexample of each rule is a shortest one; depth-first ("dfs")
    expands the newest state first. "random" walks from the initial states along random edges, each
    walk `max_depth` steps at most, and checks all edges of every state that it visits; it needs
    `max_depth` and one of `max_walks` and `max_seconds`, never ends in `HOLDS`, and has no
    checkpoint.

    Two rules are always checked: "deadlock" (no successors while the state is unfinished) and
    "machine-error" (the model raised). A property that raises is violated. The search stops
    at the first violation; with `keep_going` it continues and keeps the first of each rule.
    `Eventually` is checked at the end, on the expanded states, unless the caller asked to stop.

    `controls`: see `Controls`. A search ended by a bound or by `stop` has a checkpoint. To `resume`
    it the model, properties, witnesses and order must be the same; the counts are then those of an
    uninterrupted search (if `max_depth` ended a depth-first search: except the depth and the peak
    of the queue).

    Raises:
        ValueError: unknown order, missing bounds for random walks, or no initial state.
        CheckpointError: the checkpoint is of a search with other settings, or the machine does not
            repeat its steps.
        UnrepeatableError: a counterexample cannot be repeated; the model is not deterministic.
    """
    bounds = bounds or Bounds()
    _require_order(order, bounds)
    setup = Setup(
        order, keep_going, tuple(p.rule for p in properties), tuple(w.rule for w in witnesses)
    )
    store = _fresh_store(properties)
    examiner = Examiner(
        model,
        properties,
        witnesses,
        store,
        keep_going=keep_going,
        rebuild_run=partial(rebuild_run, model, store),
    )
    stop, progress = controls.get("stop"), controls.get("progress")
    resume, keep = controls.get("resume"), controls.get("keep")
    if resume is not None:
        resume.require(setup)
        if not _repeat(examiner, resume, order, stop, progress):
            return _result(store, "stop", [], setup.witnesses, resume)
    watch = Watch(bounds, stop, progress)
    if keep is not None and order != "random":
        watch.keep = lambda: keep(_checkpoint(setup, store, watch.seconds))
    stopped_by = (
        _walks(examiner, watch, Random(seed))
        if order == "random"
        else _exhaust(examiner, watch, order)
    )
    violations = list(store.violations.values())
    if stopped_by not in ("stop", "violation"):
        violations += _refuted(examiner)[: None if keep_going else 1]
    resumable = order != "random" and stopped_by not in (None, "violation")
    unfinished = resumable and (keep_going or not violations)
    checkpoint = _checkpoint(setup, store, watch.seconds) if unfinished else None
    store.seconds += watch.seconds
    return _result(store, stopped_by, violations, setup.witnesses, checkpoint)


def _checkpoint(setup: Setup, store: Store[Any], seconds: float) -> Checkpoint:
    return Checkpoint(
        setup=setup,
        pieces=tuple(map(evolve, store.pieces)),
        states=len(store.seen),
        transitions=store.transitions,
        depth=store.depth,
        seconds=store.seconds + seconds,
        sightings={rule: Sightings(*seen) for rule, seen in store.sightings.items()},
        broken=dict(store.broken),
    )


def _repeat(
    examiner: Examiner[StateT],
    resume: Checkpoint,
    order: Order,
    stop: Callable[[], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> bool:
    """Repeat the steps of a checkpoint and judge the broken rules again; False if asked to stop.

    Raises:
        CheckpointError: the counts or the broken rules differ.
    """
    store, asked = examiner.store, False
    examiner.judged = frozenset(resume.broken.values())
    for piece in resume.pieces:
        numbers = count(1)

        def is_done(piece: Piece = piece, numbers: Iterator[int] = numbers) -> bool:
            nonlocal asked
            number = next(numbers)
            asked = number % _STOP_EVERY == 0 and stop is not None and stop()
            return asked or number > piece.taken or len(store.seen) > resume.states

        _exhaust(examiner, Watch(Bounds(max_depth=piece.max_depth), is_done, progress), order)
        if asked:
            return False
    repeated = _checkpoint(resume.setup, store, 0)
    for key in ("states", "transitions", "depth", "broken"):
        require_equal(f"checkpoint, {key}", getattr(resume, key), getattr(repeated, key))
    examiner.judged = None
    store.seconds = resume.seconds
    store.sightings = {
        rule: (seen.edges, seen.first_depth or 0) for rule, seen in resume.sightings.items()
    }
    return True


def _require_order(order: str, bounds: Bounds) -> None:
    if order not in get_args(Order):
        raise ValueError(f"order: found {order!r}; allowed: {', '.join(get_args(Order))}")
    if order == "random" and (
        not bounds.max_depth or (bounds.max_walks is None and bounds.max_seconds is None)
    ):
        raise ValueError("random walks need max_depth, and max_walks or max_seconds")


def _fresh_store(properties: Sequence[Property[StateT]]) -> Store[StateT]:
    eventually = [p for p in properties if isinstance(p, Eventually)]
    return Store(
        edges=Edges() if eventually else None,
        threads=request_threads(eventually),
        marks=[bytearray() for _ in eventually],
    )


def _exhaust(examiner: Examiner[StateT], watch: Watch, order: Order) -> str | None:
    """Expand states until none is left; returns why it ended earlier, or None."""
    store, deepest = examiner.store, watch.bounds.max_depth
    waiting, too_deep = store.frontier, []
    piece = Piece(deepest)
    store.pieces.append(piece)
    take = waiting.popleft if order == "bfs" else waiting.pop
    try:
        if not store.seen:
            waiting.extend(examiner.enter())
        while waiting:
            store.peak_queue = max(store.peak_queue, len(waiting))
            if reason := watch.reason_to_stop(store):
                return reason
            index, state = take()
            piece.taken += 1
            if deepest is not None and store.depths[index] >= deepest:
                too_deep.append((index, state))
            elif (transitions := examiner.transitions(index, state)) is not None:
                waiting.extend(examiner.expand(index, state, transitions))
    except HaltError:
        return "violation"
    finally:
        waiting.extendleft(reversed(too_deep))
    return "max_depth" if too_deep else None


def _walks(examiner: Examiner[StateT], watch: Watch, random: Random) -> str:
    """Walk until a bound is reached; returns its name."""
    expanded: set[int] = set()
    walks = repeat(0) if watch.bounds.max_walks is None else range(watch.bounds.max_walks)
    try:
        initial = examiner.enter()
        for _ in walks:
            if reason := _walk(examiner, watch, random, random.choice(initial), expanded):
                return reason
    except HaltError:
        return "violation"
    return "max_walks"


def _walk(
    examiner: Examiner[StateT],
    watch: Watch,
    random: Random,
    start: tuple[int, StateT],
    expanded: set[int],
) -> str | None:
    """One walk; the edges of a state are checked and counted at its first visit."""
    index, state = start
    steps: list[Transition[StateT]] = []
    examiner.rebuild_run = lambda _: Counterexample(start[1], tuple(steps))
    for _ in range(watch.bounds.max_depth or 0):
        if reason := watch.reason_to_stop(examiner.store):
            return reason
        transitions = examiner.transitions(index, state)
        if transitions is not None and index not in expanded:
            expanded.add(index)
            examiner.expand(index, state, transitions)
        if not transitions:
            return None
        steps.append(random.choice(transitions))
        state = steps[-1].state
        reached = examiner.state_index(state)
        if reached is None:
            return None
        index = reached
    return None


def _refuted(examiner: Examiner[StateT]) -> list[Violation[StateT]]:
    """The violations of `Eventually` properties in the graph of the expanded states."""
    store = examiner.store
    if store.edges is None:
        return []
    where = recurrence(store.edges)
    initial = [index for index, parent in enumerate(store.parents) if index == parent]
    refuted = _refuted_of_followed(examiner, initial)
    followed = () if store.threads is None else store.threads.requests
    for eventually, marks in zip(examiner.eventually, store.marks, strict=True):
        broken = store.violations.keys() | refuted.keys()
        if eventually.rule in broken or eventually.request in followed:
            continue
        if lasso := refutation(store.edges, marks, initial, where):
            start = rebuild_run(examiner.model, store, lasso.initial).initial
            run = run_along(examiner.model, start, lasso, examiner.state_index)
            refuted[eventually.rule] = _liveness_violation(run, eventually)
    return list(refuted.values())


def _refuted_of_followed(
    examiner: Examiner[StateT], initial: Sequence[int]
) -> dict[str, Violation[StateT]]:
    """By rule, a violation for a request that is followed through merged states."""
    store, threads = examiner.store, examiner.store.threads
    if store.edges is None or threads is None:
        return {}
    pairs = threads.pairs(store.edges)
    where = recurrence(pairs)
    starts = [threads.pair(index, place) for index in initial for place in threads.in_states[index]]
    asked: dict[str, dict[str, tuple[Eventually[StateT], bytearray]]] = {}
    for eventually, marks in zip(examiner.eventually, store.marks, strict=True):
        if eventually.request in threads.requests and eventually.rule not in store.violations:
            asked.setdefault(eventually.rule, {})[eventually.request] = eventually, marks
    refuted: dict[str, Violation[StateT]] = {}
    for rule, of_requests in asked.items():
        marks_of_pairs = threads.marks({id_: marks for id_, (_, marks) in of_requests.items()})
        if lasso := refutation(pairs, marks_of_pairs, starts, where):
            index, place = divmod(lasso.initial, len(threads.requests))
            start = rebuild_run(examiner.model, store, index).initial
            request = next(id_ for id_ in of_requests if threads.places(start)[id_] == place)
            pair_index = partial(_pair_index, examiner, threads, request)
            run = run_along(examiner.model, start, lasso, pair_index)
            refuted[rule] = _liveness_violation(run, of_requests[request][0])
    return refuted


def _pair_index(
    examiner: Examiner[StateT], threads: Threads[StateT], request: str, state: StateT
) -> int | None:
    """The index of a state with the place of a request in it."""
    index = examiner.state_index(state)
    return None if index is None else threads.pair(index, threads.places(state)[request])


def _liveness_violation(
    run: Counterexample[StateT], eventually: Eventually[StateT]
) -> Violation[StateT]:
    message = ": ".join(filter(None, (eventually.of, endless(run))))
    return Violation(eventually.rule, message, run)


def endless(run: Counterexample[StateT]) -> str:
    """Which steps of an endless run repeat, in one line."""
    first, last = (run.loop_from or 0) + 1, len(run.steps)
    if first > last:
        return "the run may end here without the goal: no fair action is possible"
    if first == last:
        return f"step {last} repeats for ever without the goal"
    return f"steps {first} to {last} repeat for ever without the goal"


def _result(
    store: Store[StateT],
    stopped_by: str | None,
    violations: Sequence[Violation[StateT]],
    witnesses: Sequence[str],
    checkpoint: Checkpoint | None,
) -> Result[StateT]:
    complete = Outcome.HOLDS if stopped_by is None else Outcome.INCOMPLETE
    return Result(
        outcome=Outcome.VIOLATED if violations else complete,
        stopped_by=stopped_by,
        states=len(store.seen),
        transitions=store.transitions,
        depth=store.depth,
        deadlocks=store.deadlocks,
        violations=tuple(violations),
        witnesses={rule: Sightings(*store.sightings.get(rule, (0, None))) for rule in witnesses},
        actions=_by_kind(store.labels),
        peak_queue=store.peak_queue,
        seconds=store.seconds,
        bytes_per_state=bytes_per_state(store),
        checkpoint=checkpoint,
        by_depth=tuple(np.bincount(np.asarray(store.depths)).tolist()),
    )


def _by_kind(labels: dict[str, int]) -> dict[str, int]:
    """Edge counts by the first word of the label, without the punctuation that ends it."""
    kinds: Counter[str] = Counter()
    for label, edges in labels.items():
        kinds[label.partition(" ")[0].rstrip(",:;")] += edges
    return dict(sorted(kinds.items()))
