"""Runs computed again from what a search keeps of them."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from checks.explore.liveness import Lasso, unpacked
from checks.explore.model import Counterexample, Model, StateT, Transition
from checks.explore.store import Store

T = TypeVar("T")


class UnrepeatableError(Exception):
    """The model answered differently when it was asked a second time, so no path can be trusted."""

    def __init__(self) -> None:
        super().__init__(
            "the model is not repeatable: `initial` or `successors` gave other states, or another "
            "order, when asked again; make them pure, and sort what they take from a set"
        )


def run_to(model: Model[StateT], store: Store[StateT], index: int) -> Counterexample[StateT]:
    """The run by which a state was found; breadth-first, a shortest one.

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
    index_of: Callable[[StateT], int | None],
) -> Counterexample[StateT]:
    """The endless run from a state that a lasso describes; `index_of`: the states of its graph.

    Raises:
        UnrepeatableError: the model has no such run this time.
    """
    steps: list[Transition[StateT]] = []
    for edge in lasso.prefix + lasso.cycle:
        successors = model.successors(steps[-1].state if steps else initial)
        fitting = (it for it in successors if (index_of(it.state), it.fair) == unpacked(edge))
        steps.append(_nth(fitting, 0))
    return Counterexample(initial, tuple(steps), loop_from=len(lasso.prefix))


def _nth(items: Iterable[T], position: int) -> T:
    for item in islice(items, position, None):
        return item
    raise UnrepeatableError
