"""Helpers for small scenes of all machines: requests, arrivals, steps."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from checks.harness.judging import Judge
from spec.core.records import Context, SomeState, StepRecord
from spec.core.requests import Prompt, Request

SMALL: dict[str, Any] = {
    "block_size": 4,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "num_blocks": 40,
}
StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=StepRecord, covariant=True)


class Machine(Protocol[StateT, StepT]):
    """The methods of a reference machine that scenes use."""

    @property
    def ctx(self) -> Context[Any]: ...
    def initial(self) -> StateT: ...
    def arrive(self, state: StateT, request_id: str) -> StateT: ...
    @property
    def step(self) -> Callable[..., StepT]: ...


def of_parts(id_: str, *parts: tuple[str, int], max_tokens: int = 8) -> Request:
    return Request(id=id_, prompt=Prompt.of_parts(parts), max_tokens=max_tokens)


def arrived(machine: Machine[StateT, Any], *ids: str, after: StateT | None = None) -> StateT:
    """The state after the named requests, or all, have arrived in this order."""
    state = machine.initial() if after is None else after
    for id_ in ids or machine.ctx.requests:
        state = machine.arrive(state, id_)
    return state


def steps_from(machine: Machine[Any, StepT], state: Any, count: int, *given: Any) -> list[StepT]:
    steps: list[StepT] = []
    for index in range(count):
        steps.append(machine.step(state, *given, index=index))
        state = steps[-1].after
    return steps


def steps_to_the_end(machine: Machine[Any, StepT], state: Any) -> list[StepT]:
    steps: list[StepT] = []
    while not state.is_idle:
        steps.append(machine.step(state, index=len(steps)))
        state = steps[-1].after
        assert len(steps) < 20_000, "no end in sight"
    return steps


def keeping_the_rules(machine: Machine[Any, StepT], steps: list[StepT]) -> list[StepT]:
    """The steps, each of which keeps every rule."""
    judge = Judge(machine.ctx)
    assert [violation for step in steps for violation in judge.observe(step)] == []
    return steps


def places(state: SomeState, names: str) -> dict[str, list[str]]:
    """The requests in each of these places, empty places left out."""
    found = {name: _ids(getattr(state, name)) for name in names.split()}
    return {name: there for name, there in found.items() if there}


def _ids(place: Any) -> list[str]:
    match place:
        case None:
            return []
        case tuple():
            return [request.id for request in place]
        case frozenset():
            return sorted(place)
    return [place.id]
