"""The interface of a reference machine for searches, campaigns and servers."""

from typing import Any, ClassVar, Generic, Protocol, TypeVar

from attrs import frozen

from spec.core.records import SomeContext, SomeSequence

ContextT = TypeVar("ContextT", bound=SomeContext, covariant=True)
OwnContextT = TypeVar("OwnContextT", bound=SomeContext)
StateT = TypeVar("StateT")


class Machine(Protocol[ContextT, StateT]):
    """A scheduler for one configuration and a set of requests that may arrive.

    All methods are pure: they take a state and return the one that follows. How a step is taken,
    and what the environment decides in it, differs by policy.
    """

    @property
    def ctx(self) -> ContextT:
        """Configuration and requests, for the rules."""

    def initial(self) -> StateT:
        """No request has arrived, all blocks are free."""

    def arrive(self, state: StateT, request_id: str) -> StateT:
        """A request is handed in between two steps."""

    def abort(self, state: StateT, request_id: str) -> StateT:
        """A client goes away between two steps."""


@frozen
class ReferenceMachine(Generic[OwnContextT, StateT]):
    """Common base of the reference machines; see `Machine`.

    `transitions`: the module with the policy's transitions.
    """

    transitions: ClassVar[Any]

    ctx: OwnContextT

    def arrive(self, state: StateT, request_id: str) -> StateT:
        """A request is handed in between two steps.

        Raises:
            GuardError: it has arrived before.
        """
        after: StateT = self.transitions.arrive(self.ctx, state, request_id)
        return after

    def abort(self, state: StateT, request_id: str) -> StateT:
        """A client goes away between two steps.

        Raises:
            GuardError: its request is not present.
        """
        after: StateT = self.transitions.abort(self.ctx, state, request_id)
        return after

    def abort_running(self, state: StateT, request_id: str) -> StateT:
        """A client goes away while the model runs; as between two steps unless a policy differs.

        Raises:
            GuardError: its request is not present.
        """
        return self.abort(state, request_id)

    def ends_as_said(self, row: SomeSequence) -> bool:
        """True if the request's own output is complete."""
        return row.generated >= self.ctx.requests[row.id].end
