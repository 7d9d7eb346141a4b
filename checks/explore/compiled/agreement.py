"""Compare a compiled machine with the reference: the outgoing edges of each state."""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from attrs import define

from checks.explore.compiled.model import CompiledModel, Words
from checks.explore.model import Model

StateT = TypeVar("StateT")


class Edge(NamedTuple):
    """An edge of the compiled graph.

    `action`: the words of its label, unordered, since the order in which requests end in a step
    does not matter. `target`: the packed state at its end. `broken`: the rules it breaks, as bits.
    """

    action: frozenset[str]
    target: Words
    broken: int


class StuckError(Exception):
    """The compiled machine cannot compute the edges of a state."""


@define
class Compared:
    """The compared states and edges, and the first difference in words, if there is one."""

    states: int = 0
    edges: int = 0
    difference: str | None = None


def compare(model: Model[StateT], compiled: CompiledModel[StateT]) -> Compared:
    """Compare every reachable state and every edge of both machines.

    The graphs are equal if the initial states are equal and each state has equal edges. Both
    machines must also distinguish the same states: a state unpacked and packed again must give the
    same words.
    """
    compared = Compared()
    (start,) = model.initial()
    first = compiled.first()
    if compiled.decoded(first) != model.canonical(start):
        compared.difference = f"the first state is {compiled.decoded(first)}"
    pending = [first]
    seen = {first.tobytes()}
    for words in pending:  # grows while it is read
        compared.difference = compared.difference or difference(model, compiled, words)
        if compared.difference is not None:
            break
        compared.states += 1
        for edge in outgoing_edges(compiled, words):
            compared.edges += 1
            if edge.target.tobytes() not in seen:
                seen.add(edge.target.tobytes())
                pending.append(edge.target)
    return compared


def difference(model: Model[StateT], compiled: CompiledModel[StateT], words: Words) -> str | None:
    """How the outgoing edges of a packed state differ from the reference's; None if they agree."""
    state = compiled.decoded(words)
    if model.canonical(state) != state or (compiled.encoded(state) != words).any():
        return f"packed otherwise than it was found: {state}"
    try:
        edges = list(outgoing_edges(compiled, words))
    except StuckError as error:
        return str(error)
    compiled_edges = {edge.action: compiled.decoded(edge.target) for edge in edges}
    expected = {
        label_words(edge.action): model.canonical(edge.state) for edge in model.successors(state)
    }
    for action in sorted(compiled_edges.keys() | expected.keys(), key=sorted):
        if compiled_edges.get(action) != expected.get(action):
            return (
                f"{' '.join(sorted(action))} in {state}: the reference leads to "
                f"{expected.get(action)}, the compiled machine to {compiled_edges.get(action)}"
            )
    return None


def outgoing_edges(compiled: CompiledModel[StateT], words: Words) -> Iterator[Edge]:
    """The outgoing edges of a packed state.

    Raises:
        StuckError: a state does not fit into its words, or a guard of the machine does not hold.
    """
    targets = np.zeros((compiled.most_edges, len(words)), np.int64)
    sources, actions, broken = np.zeros((3, compiled.most_edges), np.int64)
    count = compiled.expand(words.reshape(1, -1), 0, 1, targets, sources, actions, broken)
    if count < 0:
        raise StuckError(f"the compiled machine ends with {count} in {compiled.decoded(words)}")
    for edge in range(count):
        yield Edge(
            label_words(compiled.label(int(actions[edge]))), targets[edge], int(broken[edge])
        )


def label_words(label: str) -> frozenset[str]:
    """The set of words in a label."""
    return frozenset(label.replace(",", "").split())
