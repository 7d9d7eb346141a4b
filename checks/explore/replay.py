"""Runs rebuilt from the store of a search."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from checks.explore.liveness import Lasso, unpacked
from checks.explore.model import Counterexample, Model, StateT, Transition
from checks.explore.store import Store

T = TypeVar("T")


class UnrepeatableError(Exception):
    """The model answered differently the second time, so that no path can be trusted."""

    def __init__(self) -> None:
        super().__init__(
            "the model is not repeatable: `initial` or `successors` gave other states, or another "
            "order, when asked again; make them pure, and sort what they take from a set"
        )


def rebuild_run(model: Model[StateT], store: Store[StateT], index: int) -> Counterexample[StateT]:
    """The run by which the search found a state; breadth-first, a shortest one.

    Raises:
        UnrepeatableError: the model leads elsewhere this time.
    """
    first, ordinals = store.route(index)
    run = Counterexample(_nth(model.initial(), first))
    steps: list[Transition[StateT]] = []
    for ordinal in ordinals:
        steps.append(_nth(model.successors(steps[-1].state if steps else run.initial), ordinal))
    run = run.then(*steps)
    if store.seen.get(model.canonical(run.last)) != index:
        raise UnrepeatableError
    return run


def run_along(
    model: Model[StateT],
    initial: StateT,
    lasso: Lasso,
    state_index: Callable[[StateT], int | None],
) -> Counterexample[StateT]:
    """The endless run that a lasso describes, from an initial state.

    `state_index` gives the index of a state in the lasso's graph.

    Raises:
        UnrepeatableError: the model has no such run this time.
    """
    steps: list[Transition[StateT]] = []
    for edge in lasso.prefix + lasso.cycle:
        successors = model.successors(steps[-1].state if steps else initial)
        fitting = (
            transition
            for transition in successors
            if (state_index(transition.state), transition.fair) == unpacked(edge)
        )
        steps.append(_nth(fitting, 0))
    return Counterexample(initial, tuple(steps), loop_from=len(lasso.prefix))


def _nth(items: Iterable[T], position: int) -> T:
    for item in islice(items, position, None):
        return item
    raise UnrepeatableError
