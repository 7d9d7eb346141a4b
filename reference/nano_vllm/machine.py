"""The nano-vLLM machine: first state, arrivals and aborts, steps."""

from collections.abc import Iterable
from typing import Any, ClassVar

from attrs import frozen

from reference.core.machine import ReferenceMachine
from reference.nano_vllm import transitions
from reference.nano_vllm.block_manager import new_pool
from reference.nano_vllm.step import scheduler_step
from spec.core.requests import Request
from spec.nano_vllm.config import NanoVllmConfig, refuse_unservable
from spec.nano_vllm.records import Context, State, Step, context_of


@frozen
class NanoVllmMachine(ReferenceMachine[Context, State]):
    """A scheduler for one configuration and a set of requests that may arrive."""

    transitions: ClassVar[Any] = transitions

    @staticmethod
    def of(config: NanoVllmConfig, requests: Iterable[Request]) -> "NanoVllmMachine":
        """The machine for these requests.

        Raises:
            WorkloadError: a request that could never be served, unless such ones are queued.
        """
        ctx = context_of(config, requests)
        for request in ctx.requests.values():
            refuse_unservable(request, config)
        return NanoVllmMachine(ctx)

    def initial(self) -> State:
        """No request has arrived, all blocks are free."""
        return State(pool=new_pool(self.ctx.config.pool_blocks))

    def step(
        self,
        state: State,
        ends: transitions.Ends | None = None,
        index: int = 0,
        time: float = 0.0,
    ) -> Step:
        """One scheduler step; by default requests end where they say that they do."""
        return scheduler_step(self.ctx, state, ends or self.ends_as_said, index, time)
