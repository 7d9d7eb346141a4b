"""The nano-vLLM machine from its first state on: what the environment and the scheduler do."""

from collections.abc import Iterable

from attrs import frozen

from reference.nano_vllm import transitions
from reference.nano_vllm.block_manager import new_pool
from reference.nano_vllm.step import scheduler_step
from spec.core.requests import Request
from spec.nano_vllm.config import NanoVllmConfig, Oversized, refuse_unservable
from spec.nano_vllm.records import Context, Sequence, State, Step, context_of


@frozen
class NanoVllmMachine:
    """A scheduler for one configuration and a set of requests that may arrive.

    All methods are pure: they take a state and return what follows from it.
    """

    ctx: Context

    @staticmethod
    def of(config: NanoVllmConfig, requests: Iterable[Request]) -> "NanoVllmMachine":
        """The machine for these requests.

        Raises:
            WorkloadError: a request that could never be served, unless such ones are queued.
        """
        ctx = context_of(config, requests)
        if config.oversized is Oversized.REFUSED:
            for request in ctx.requests.values():
                refuse_unservable(request, config)
        return NanoVllmMachine(ctx)

    def initial(self) -> State:
        """No request has arrived, all blocks are free."""
        return State(pool=new_pool(self.ctx.config.pool_blocks))

    def arrive(self, state: State, request_id: str) -> State:
        """A request is handed in between two steps."""
        return transitions.arrive(self.ctx, state, request_id)

    def abort(self, state: State, request_id: str) -> State:
        """A client goes away between two steps."""
        return transitions.abort(self.ctx, state, request_id)

    def step(
        self,
        state: State,
        ends: transitions.Ends | None = None,
        index: int = 0,
        time: float = 0.0,
    ) -> Step:
        """One scheduler step; by default requests end where they say that they do."""
        return scheduler_step(self.ctx, state, ends or self.ends_as_said, index, time)

    def ends_as_said(self, row: Sequence) -> bool:
        """True if the request's own output is complete."""
        return row.generated >= self.ctx.requests[row.id].end
