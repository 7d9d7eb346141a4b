"""The scheduler that a serving stack runs: hand in requests, plan a step, apply the plan.

A step is `schedule`, then the device, then `update`. Until `update` nothing has changed: if the
device fails, `schedule` again. Requests may be added in between, an abort makes the plan stale.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import define

from engine.core.requests import RequestState
from engine.core.state import NAMES_KEPT, SchedulerState
from engine.core.tensors import NO_TOKENS, Tensor
from spec.core.errors import WorkloadError
from spec.core.requests import Request

Ends: TypeAlias = Collection[str] | None  # requests that sample the end of sequence


class Plan(Protocol):
    """What a step is going to do. A plan changes nothing."""

    @property
    def samples(self) -> int:
        """Tokens that the step samples."""


@define(eq=False)
class Outcome:
    """What a step did: `tokens` [sampled] are those that the requests `sampled` got, in order.

    A request that got several tokens is among them as often. `finished`: requests that left with
    the step.
    """

    sampled: tuple[str, ...] = ()
    tokens: Tensor = NO_TOKENS
    finished: tuple[str, ...] = ()

    @property
    def outputs(self) -> dict[str, list[int]]:
        """The tokens that each request sampled, by name."""
        outputs: dict[str, list[int]] = {}
        for name, token in zip(self.sampled, self.tokens.tolist(), strict=True):
            outputs.setdefault(name, []).append(token)
        return outputs


class StalePlanError(Exception):
    """A plan was to be applied that is not the one that was made last."""


StateT = TypeVar("StateT", bound=SchedulerState[Any])
PlanT = TypeVar("PlanT", bound=Plan)
OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class Scheduler(ABC, Generic[StateT, PlanT, OutcomeT]):
    """Continuous batching; a policy says what a step does and how it is applied."""

    def __init__(self, state: StateT) -> None:
        """`state`: of a scheduler without requests."""
        self.state = state
        self._planned: PlanT | None = None

    # What a policy decides.

    @abstractmethod
    def _newcomer(self, request: Request) -> RequestState:
        """A request that arrives.

        Raises:
            WorkloadError: it could never be served.
        """

    @abstractmethod
    def _plan(self) -> PlanT:
        """What the next step does."""

    @abstractmethod
    def _apply(self, plan: PlanT, tokens: Tensor, results: Any) -> OutcomeT:
        """Do what was planned; `results`: what of it the scheduler does not decide."""

    @abstractmethod
    def _take_out(self, request: Any) -> None:
        """Remove a request from wherever it is, and release what it holds."""

    @abstractmethod
    def _restart(self) -> None:
        """Let the admitted wait in front, with nothing cached."""

    # What a serving stack calls.

    @property
    def has_requests(self) -> bool:
        """True if a request waits or was admitted and has not left."""
        return bool(len(self.state.queue) or self.state.admitted)

    def add(self, request: Request) -> Any:
        """A client hands in a request: it goes to the end of the queue, where it is returned.

        Raises:
            WorkloadError: it could never be served, or its name is that of a request that is here
                or was among the last to leave (`engine.core.state.LeftNames`).
        """
        newcomer, state = self._newcomer(request), self.state
        name = request.id
        if name in state.finished or name in state.aborted or state.find(name) is not None:
            allowed = f"a name that none here has, nor any of the last {NAMES_KEPT:,} to leave"
            raise WorkloadError("id", name, allowed)
        state.queue.put_back(newcomer)
        return newcomer

    def abort(self, request_id: str) -> bool:
        """A client goes away; False if its request has left already or never came."""
        self._planned = None
        leaving = self.state.find(request_id)
        if leaving is None:
            return False
        self._take_out(leaving)
        self.state.aborted.add(request_id)
        return True

    def restart(self) -> None:
        """All that the device had cached is lost: admitted requests wait in front again."""
        self._planned = None
        self._restart()

    def schedule(self) -> PlanT:
        """What the next step does."""
        self._planned = self._plan()
        return self._planned

    def update(self, plan: PlanT, tokens: Tensor = NO_TOKENS, ends: Ends = None) -> OutcomeT:
        """The device has done the step: apply the plan with the tokens that it sampled.

        `tokens` [sampled]: in the order in which the plan has the requests; they become the
        scheduler's own. `ends`: the requests that sample the end of sequence; by default each ends
        where it says that it does.

        Raises:
            StalePlanError: another plan has been made since, or this one was applied.
            ValueError: not as many tokens as were to be sampled.
        """
        self._take(plan, tokens)
        return self._apply(plan, tokens, ends)

    def _take(self, plan: PlanT, tokens: Tensor) -> None:
        """Take the plan that was made last, to apply it with these tokens.

        Raises:
            StalePlanError: another plan has been made since, or this one was applied.
            ValueError: not as many tokens as were to be sampled.
        """
        if plan is not self._planned:
            raise StalePlanError("a plan is applied once, and before any request is aborted")
        if len(tokens) != plan.samples:
            raise ValueError(f"{len(tokens)} tokens; {plan.samples} are to be sampled")
        self._planned = None
