"""What a reference machine is to the searches, campaigns and servers that run it."""

from typing import Protocol, TypeVar

from spec.core.records import SomeContext

ContextT = TypeVar("ContextT", bound=SomeContext, covariant=True)
StateT = TypeVar("StateT")


class Machine(Protocol[ContextT, StateT]):
    """A scheduler for one configuration and a set of requests that may arrive.

    All methods are pure: they take a state and return the one that follows. How a step is taken,
    and what the environment decides in it, differs by policy.
    """

    @property
    def ctx(self) -> ContextT:
        """What rules may look up."""

    def initial(self) -> StateT:
        """No request has arrived, all blocks are free."""

    def arrive(self, state: StateT, request_id: str) -> StateT:
        """A request is handed in between two steps."""

    def abort(self, state: StateT, request_id: str) -> StateT:
        """A client goes away between two steps."""
