"""Whether a compiled machine takes the reference's steps: edges that leave a state, compared."""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from attrs import define

from checks.explore.compiled.model import CompiledModel, Words
from checks.explore.model import Model

StateT = TypeVar("StateT")


class Edge(NamedTuple):
    """An edge of the compiled graph: what happens, the packed state at its end, rules by bits.

    `action`: the words of its label; in which order requests end in a step does not matter.
    """

    action: frozenset[str]
    target: Words
    broken: int


class StuckError(Exception):
    """The compiled machine has no edges to show."""


@define
class Compared:
    """What has been compared, and the first difference in words, if there is one."""

    states: int = 0
    edges: int = 0
    difference: str | None = None


def compare(model: Model[StateT], compiled: CompiledModel[StateT]) -> Compared:
    """Compare the graphs of both machines: every state that can be reached, every edge.

    Equal first states and, from each state, equal edges make equal graphs. That the same states are
    distinguished is compared, too: unpacking and packing a state again gives the same words.
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
        for edge in edges_from(compiled, words):
            compared.edges += 1
            if edge.target.tobytes() not in seen:
                seen.add(edge.target.tobytes())
                pending.append(edge.target)
    return compared


def difference(model: Model[StateT], compiled: CompiledModel[StateT], words: Words) -> str | None:
    """In what the edges that leave a packed state differ from the reference's, if in anything."""
    state = compiled.decoded(words)
    if model.canonical(state) != state or (compiled.encoded(state) != words).any():
        return f"packed otherwise than it was found: {state}"
    try:
        edges = list(edges_from(compiled, words))
    except StuckError as error:
        return str(error)
    found = {edge.action: compiled.decoded(edge.target) for edge in edges}
    expected = {
        words_of(edge.action): model.canonical(edge.state) for edge in model.successors(state)
    }
    for action in sorted(found.keys() | expected.keys(), key=sorted):
        if found.get(action) != expected.get(action):
            return (
                f"{' '.join(sorted(action))} in {state}: the reference leads to "
                f"{expected.get(action)}, the compiled machine to {found.get(action)}"
            )
    return None


def edges_from(compiled: CompiledModel[StateT], words: Words) -> Iterator[Edge]:
    """Every edge that leaves a packed state.

    Raises:
        StuckError: a state does not fit into its words, or a guard of the machine does not hold.
    """
    found = np.zeros((compiled.most_edges, len(words)), np.int64)
    sources, actions, broken = np.zeros((3, compiled.most_edges), np.int64)
    count = compiled.expand(words.reshape(1, -1), 0, 1, found, sources, actions, broken)
    if count < 0:
        raise StuckError(f"the compiled machine ends with {count} in {compiled.decoded(words)}")
    for edge in range(count):
        yield Edge(words_of(compiled.label(int(actions[edge]))), found[edge], int(broken[edge]))


def words_of(label: str) -> frozenset[str]:
    """The words of a label, without their order."""
    return frozenset(label.replace(",", "").split())
