"""Whether a compiled machine takes the reference's steps: edges that leave a state, compared."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from attrs import define

from checks.explore.compiled.model import CompiledModel
from checks.explore.compiled.table import Words
from checks.explore.model import Model

StateT = TypeVar("StateT")


@define
class Compared:
    """What has been compared, and the first difference in words, if there is one."""

    states: int = 0
    edges: int = 0
    difference: str | None = None


def compare(model: Model[StateT], compiled: CompiledModel[StateT]) -> Compared:
    """Compare the graphs of both machines: every state that can be reached, every edge.

    Equal first states and, from each state, equal edges make equal graphs. That states are told
    apart alike is compared, too: unpacking and packing a state again gives the same words.
    """
    compared = Compared()
    (start,) = model.initial()
    first = compiled.first()
    if compiled.decoded(first) != model.canonical(start):
        compared.difference = f"the first state is {compiled.decoded(first)}"
    pending = [first]
    seen = {first.tobytes()}
    for words in pending:  # grows while it is read
        if compared.difference is not None:
            break
        compared.states += 1
        compared.difference = difference(model, compiled, words)
        for _, target in edges_from(compiled, words):
            compared.edges += 1
            if target.tobytes() not in seen:
                seen.add(target.tobytes())
                pending.append(target)
    return compared


def difference(model: Model[StateT], compiled: CompiledModel[StateT], words: Words) -> str | None:
    """In what the edges that leave a packed state differ from the reference's, if in anything."""
    state = compiled.decoded(words)
    if model.canonical(state) != state or (compiled.encoded(state) != words).any():
        return f"packed otherwise than it was found: {state}"
    found = {
        _requests_and_kind(compiled.label(action)): compiled.decoded(target)
        for action, target in edges_from(compiled, words)
    }
    expected = {
        _requests_and_kind(edge.action): model.canonical(edge.state)
        for edge in model.successors(state)
    }
    for action in sorted(found.keys() | expected.keys(), key=sorted):
        if found.get(action) != expected.get(action):
            return (
                f"{' '.join(sorted(action))} in {state}: the reference leads to "
                f"{expected.get(action)}, the compiled machine to {found.get(action)}"
            )
    return None


def edges_from(compiled: CompiledModel[StateT], words: Words) -> Iterator[tuple[int, Words]]:
    """Each action that is possible in a packed state, and the state that it leads to.

    Raises:
        ValueError: a state does not fit into its words, or a guard of the machine does not hold.
    """
    found = np.zeros((compiled.most_edges, len(words)), np.int64)
    sources, actions = np.zeros((2, compiled.most_edges), np.int64)
    count = compiled.expand(words.reshape(1, -1), 0, 1, found, sources, actions)
    if count < 0:
        raise ValueError(f"expanding {compiled.decoded(words)} ended with {count}")
    for edge in range(count):
        yield int(actions[edge]), found[edge]


def _requests_and_kind(label: str) -> frozenset[str]:
    """The words of a label: in which order requests end in a step does not matter."""
    return frozenset(label.replace(",", "").split())
