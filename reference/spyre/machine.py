"""The Spyre machine: first state, arrivals and aborts, steps."""

from collections.abc import Iterable
from typing import Any, ClassVar

from attrs import frozen

from reference.core.block_pool import new_pool
from reference.core.machine import ReferenceMachine
from reference.spyre import transitions
from reference.spyre.step import scheduler_step
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import Context, Step, context_of
from spec.spyre.state import State


@frozen
class SpyreMachine(ReferenceMachine[Context, State]):
    """A scheduler for one configuration and a set of requests that may arrive."""

    transitions: ClassVar[Any] = transitions

    @staticmethod
    def of(config: SpyreConfig, requests: Iterable[Request]) -> "SpyreMachine":
        """The machine for these requests.

        Raises:
            WorkloadError: a request that could never be served.
        """
        ctx = context_of(config, requests)
        for request in ctx.requests.values():
            refuse_unservable(request, config)
        return SpyreMachine(ctx)

    def initial(self) -> State:
        """No request has arrived, all blocks are free."""
        return State(pool=new_pool(self.ctx.config.pool_blocks))

    def compiled(self, state: State, request_id: str) -> State:
        """The grammar of a request is ready, between two steps.

        Raises:
            GuardError: it was, or the request is not present.
        """
        return transitions.compiled(self.ctx, state, request_id)

    def encoded(self, state: State, request_id: str) -> State:
        """The encoder is done with the images of a request, between two steps.

        Raises:
            GuardError: it was, or has not been given them.
        """
        return transitions.encoded(self.ctx, state, request_id)

    def unencodable(self, state: State, request_id: str) -> State:
        """The images of a request turn out to be unencodable, between two steps.

        Raises:
            GuardError: they are encoded, or the encoder has not been given them.
        """
        return transitions.unencodable(self.ctx, state, request_id)

    def abort_running(self, state: State, request_id: str) -> State:
        """A client goes away while the model runs.

        Raises:
            GuardError: its request is not present.
        """
        return transitions.abort(self.ctx, state, request_id, running=True)

    def step(
        self,
        state: State,
        ends: transitions.Ends | None = None,
        index: int = 0,
        time: float = 0.0,
    ) -> Step:
        """One scheduler step; by default requests end where they say that they do."""
        return scheduler_step(self.ctx, state, ends or self.ends_as_said, index, time)
