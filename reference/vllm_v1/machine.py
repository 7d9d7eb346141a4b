"""The vLLM V1 machine: first state, arrivals, aborts and ends of loads, steps."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from attrs import frozen

from reference.core.block_pool import new_pool
from reference.core.machine import ReferenceMachine
from reference.vllm_v1 import transitions
from reference.vllm_v1.step import Environment, scheduler_step
from spec.core.requests import Request, refuse_broken_session
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Sequence, State, Step, context_of
from spec.vllm_v1.requests import refuse_unservable


@frozen
class VllmV1Machine(ReferenceMachine[Context, State]):
    """A scheduler for one configuration and a set of requests that may arrive."""

    transitions: ClassVar[Any] = transitions

    @staticmethod
    def of(
        config: VllmV1Config,
        requests: Iterable[Request],
        external: Mapping[str, int] | None = None,
        if_lost: Mapping[str, int] | None = None,
    ) -> "VllmV1Machine":
        """The machine for these requests; `external`: tokens of each that a connector can bring.

        `if_lost`: those of them that come although the load is lost.

        Raises:
            WorkloadError: a request that could never be served, or a session without its next turn.
        """
        ctx = context_of(config, requests, external, if_lost)
        for request in ctx.requests.values():
            refuse_unservable(request, config)
            refuse_broken_session(request, ctx.requests)
        return VllmV1Machine(ctx)

    def initial(self) -> State:
        """No request has arrived, all blocks are free."""
        return State(pool=new_pool(self.ctx.config.pool_blocks), unfilled=())

    def end_load(self, state: State, request_id: str, failed: bool = False) -> State:
        """An asynchronous load ends between two steps."""
        return transitions.end_load(self.ctx, state, request_id, failed)

    def answer(self, state: State, request_id: str) -> State:
        """The connector says between two steps what it has of a request."""
        return transitions.answer(self.ctx, state, request_id)

    def compiled(self, state: State, request_id: str) -> State:
        """A grammar is ready between two steps."""
        return transitions.compiled(self.ctx, state, request_id)

    def end_send(self, state: State, request_id: str) -> State:
        """The blocks of a request that has left are sent between two steps."""
        return transitions.end_send(self.ctx, state, request_id)

    def step(
        self,
        state: State,
        environment: Environment | None = None,
        index: int = 0,
        time: float = 0.0,
    ) -> Step:
        """One scheduler step; by default requests end, and drafts are accepted, as it is said."""
        chosen = environment or Environment(self.ends_as_said, self.accepts_as_configured)
        return scheduler_step(self.ctx, state, chosen, index, time)

    def accepts_as_configured(self, _row: Sequence, drafts: int) -> int:
        """How many of a request's drafts the configuration has accepted."""
        most = self.ctx.config.accepted_drafts
        return drafts if most is None else min(most, drafts)
