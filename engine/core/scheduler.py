"""Base class of schedulers: add requests, plan a step, apply the plan.

A step is `schedule`, then the device's computation, then `update`. Only `update` changes the
state: if the device fails, call `schedule` again. Between the two, requests may be added; an abort
makes the plan stale.
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

Ends: TypeAlias = Collection[str] | None  # ids of requests that sample end-of-sequence


class Plan(Protocol):
    """The decisions of a step. Making a plan changes no state."""

    @property
    def samples(self) -> int:
        """Number of tokens that the step samples."""

    @property
    def refusal(self) -> str | None:
        """The rule that first kept a request from being scheduled, or None."""


@define(eq=False)
class Outcome:
    """The result of a step.

    `sampled`: ids of the requests that got a token; a request is repeated for each of its tokens.
    `tokens` [sampled]: these tokens. `finished`: ids of the requests that finished with the step.
    """

    sampled: tuple[str, ...] = ()
    tokens: Tensor = NO_TOKENS
    finished: tuple[str, ...] = ()

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Sampled tokens by request id."""
        outputs: dict[str, list[int]] = {}
        for name, token in zip(self.sampled, self.tokens.tolist(), strict=True):
            outputs.setdefault(name, []).append(token)
        return outputs


class StalePlanError(Exception):
    """The plan to apply is not the last one that was made."""


StateT = TypeVar("StateT", bound=SchedulerState[Any])
PlanT = TypeVar("PlanT", bound=Plan)
OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class Scheduler(ABC, Generic[StateT, PlanT, OutcomeT]):
    """Continuous batching; a policy implements the planning of a step and its application."""

    def __init__(self, state: StateT) -> None:
        """`state`: state of a scheduler without requests."""
        self.state = state
        self._planned: PlanT | None = None

    # Methods of the policy.

    @abstractmethod
    def _newcomer(self, request: Request) -> RequestState:
        """The state of a request that arrives.

        Raises:
            WorkloadError: no schedule can serve the request.
        """

    @abstractmethod
    def _plan(self) -> PlanT:
        """Plan the next step without a change of state."""

    @abstractmethod
    def _apply(self, plan: PlanT, tokens: Tensor, results: Any) -> OutcomeT:
        """Apply the plan; `results`: outcomes that the scheduler does not decide."""

    @abstractmethod
    def _remove(self, request: Any) -> None:
        """Remove a request from its queue or batch, and release its blocks."""

    @abstractmethod
    def _restart(self) -> None:
        """Preempt all admitted requests and empty the prefix cache."""

    # Interface for a serving stack.

    @property
    def has_requests(self) -> bool:
        """True if there is a request that has arrived and not left."""
        return bool(len(self.state.queue) or self.state.admitted)

    def add(self, request: Request) -> Any:
        """Add a request at the end of the waiting queue and return its state.

        Raises:
            WorkloadError: no schedule can serve the request, or its id belongs to a request that
                has not left or left recently (`engine.core.state.LeftNames`).
        """
        newcomer, state = self._newcomer(request), self.state
        name = request.id
        if name in state.finished or name in state.aborted or state.find(name) is not None:
            allowed = f"a name that none here has, nor any of the last {NAMES_KEPT:,} to leave"
            raise WorkloadError("id", name, allowed)
        state.queue.put_back(newcomer)
        return newcomer

    def abort(self, request_id: str) -> bool:
        """Abort a request; False if it has left already or never arrived."""
        self._planned = None
        leaving = self.state.find(request_id)
        if leaving is None:
            return False
        self._remove(leaving)
        self.state.aborted.add(request_id)
        return True

    def restart(self) -> None:
        """Preempt all admitted requests, because the device has lost its KV cache."""
        self._planned = None
        self._restart()

    def schedule(self) -> PlanT:
        """Plan the next step."""
        self._planned = self._plan()
        return self._planned

    def update(self, plan: PlanT, tokens: Tensor = NO_TOKENS, ends: Ends = None) -> OutcomeT:
        """Apply the plan, which the device has executed, with the sampled tokens.

        `tokens` [sampled]: in the order of the plan's requests; the caller gives the tensor away.
        `ends`: ids of the requests that sample end-of-sequence; by default each request ends as its
        workload says.

        Raises:
            StalePlanError: another plan was made since, or this plan was applied already.
            ValueError: the number of tokens is not `plan.samples`.
        """
        self._take(plan, tokens, plan.samples)
        return self._apply(plan, tokens, ends)

    def _take(self, plan: PlanT, tokens: Tensor, samples: int) -> None:
        """Check that this is the last plan and not applied yet, and mark it as applied.

        Raises:
            StalePlanError: another plan was made since, or this plan was applied already.
            ValueError: the number of tokens is not `samples`.
        """
        if plan is not self._planned:
            raise StalePlanError("a plan is applied once, and before any request is aborted")
        if len(tokens) != samples:
            raise ValueError(f"{len(tokens)} tokens; {samples} are to be sampled")
        self._planned = None
