"""A project engine as a scheduler that serves one case."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field

from checks.harness.system import Action
from checks.remembered import RememberedRequest
from engine.core.faults import Failure
from engine.core.serving import Engine
from spec.core.requests import Request

StepT = TypeVar("StepT", covariant=True)
EngineT = TypeVar("EngineT", bound=Engine[Any, Any, Any, Any])


def has_token_ids(requests: Iterable[Request]) -> bool:
    """True if a request says its tokens themselves, in its prompt or its output, or has spans.

    Else all tokens are of named streams or of the model, and blocks of tokens are equal if and only
    if the same streams and prompts say so.
    """
    return any(
        request.output is not None
        or bool(request.prompt.spans)
        or any(not isinstance(part[0], str) for part in request.prompt.parts if part)
        for request in requests
    )


class StepObserver(Protocol[StepT]):
    """Converts the steps of an engine into the specification's states and steps."""

    def begin(self) -> Any:
        """Begin a step; returns the state after all arrivals and aborts before it."""

    def end(
        self,
        plan: Any,
        outcome: Any,
        index: int,
        time: float,
        ends: Any = None,
        aborted: tuple[str, ...] = (),
    ) -> StepT:
        """End the step that began last, after its plan was applied; returns the step."""


def _stop(failure: Failure, _before: Any) -> None:
    raise RuntimeError(f"the device failed: {failure}")


@define
class EngineScheduler(Generic[EngineT, StepT]):
    """An engine with its observer, for requests known in advance; implements `Scheduler`.

    `recover`: called when the device failed, with the failure and the state in which the step
    began; then the step is repeated.
    """

    engine: EngineT
    observer: StepObserver[StepT]
    requests: Iterable[Request]
    recover: Callable[[Failure, Any], None] = field(default=_stop, kw_only=True)
    _by_id: dict[str, Request] = field(init=False)
    _aborted: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._by_id = {each.id: RememberedRequest.of(each) for each in self.requests}

    def arrive(self, request_id: str) -> None:
        """Add a request between two steps."""
        self.engine.add(self._by_id[request_id])

    def abort(self, request_id: str) -> None:
        """Abort a request between two steps; no effect if it has left."""
        if self.engine.abort(request_id):
            self._aborted.append(request_id)

    def step(self, index: int, action: Action) -> StepT:
        """Take one scheduler step.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed and `recover` is the default.
        """
        before = self.observer.begin()
        while (result := self._taken(action)).outcome is None:
            self.recover(result.failure, before)
            before = self.observer.begin()
        aborted = tuple(self._aborted)
        self._aborted.clear()
        outcome, time, ends = result.outcome, action.time, action.ends
        return self.observer.end(result.plan, outcome, index, time, ends, aborted)

    def _taken(self, action: Action) -> Any:
        """The engine's result; here the environment only ends requests."""
        return self.engine.step(action.ends)
