"""An engine of ours as a scheduler that serves one case."""

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


class StepObserver(Protocol[StepT]):
    """What sees the steps of an engine in the words of the rules."""

    def begin(self) -> Any:
        """A step begins, in the state that this gives: what arrived or went away has done so."""

    def end(
        self,
        plan: Any,
        outcome: Any,
        index: int,
        time: float,
        ends: Any = None,
        aborted: tuple[str, ...] = (),
    ) -> StepT:
        """The step that began last and has been applied."""


def _stop(failure: Failure, _before: Any) -> None:
    raise RuntimeError(f"the device failed: {failure}")


@define
class EngineScheduler(Generic[EngineT, StepT]):
    """Implements `Scheduler`: an engine, observed, for requests that are given beforehand.

    `recover`: what is done when the device has failed, before the step is tried again; it is given
    the state in which the step began.
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
        """The request is handed in between two steps."""
        self.engine.add(self._by_id[request_id])

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""
        if self.engine.abort(request_id):
            self._aborted.append(request_id)

    def step(self, index: int, action: Action) -> StepT:
        """One scheduler step.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed, which by default it does not.
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
        """What the engine yields, where the environment does no more than end requests."""
        return self.engine.step(action.ends)
